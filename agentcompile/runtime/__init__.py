"""The runtime, which executes plans: lowering, memory, the native executor, sampling and text."""
