"""The benchmark suite: end-to-end workloads, arms side by side in one run, one result file that can be checked."""
