"""The judge in front of the workers: jobs go in, verdicts come out; and what this machine is."""
