"""Tasks in KernelBench's format: what a file asks for, and the gates in front of kernels that are written for it."""
