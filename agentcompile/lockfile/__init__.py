"""The lockfile: choices for a model and a machine, with their evidence; read, written, checked for drift."""
