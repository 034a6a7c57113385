"""A run's trials in the formats that others publish: Kernel Tuner's T4, and FlashInfer-Bench's trace sets.

In: trials, regions, program texts. Out: plain JSON values and files by their path. Pure; nothing is built or timed.
Invariant: a time leaves only as the time of a trial that was measured, and what a trial did not record is left out or
written as unknown, never filled in.
"""
