"""The machine below: what it is, its GPUs, the store, files that others wrote, bindings."""
