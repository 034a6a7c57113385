"""The benchmark suite: end-to-end workloads, all arms in one run, and one result file that can be checked."""
