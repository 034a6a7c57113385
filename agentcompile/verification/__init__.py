"""Checks the whole compiled model against the float32 model before a lockfile is written."""
