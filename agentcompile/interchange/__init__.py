"""A run's trials in formats that others publish: Kernel Tuner's T4, and FlashInfer-Bench's trace sets.

In: trials, regions, program texts. Out: plain JSON values and files by their path. Pure; nothing is built or timed.
Invariant: a time is exported only for a trial that was measured, and what a trial did not record is left out or written
as unknown, never filled in.
"""
