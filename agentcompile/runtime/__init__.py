"""Runs plans: lowering, memory, the native executor, sampling and text."""
