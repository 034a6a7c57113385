"""Evaluates candidates in worker processes: jobs go in, verdicts come out. Also describes the machine."""
