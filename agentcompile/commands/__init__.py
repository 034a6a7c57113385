"""The verbs of the command line. Each function takes plain values and a `Screen` and returns an exit code."""
