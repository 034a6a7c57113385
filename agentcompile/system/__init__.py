"""The machine: its description, its GPUs, the file store, files that others wrote, and NVIDIA's bindings."""
