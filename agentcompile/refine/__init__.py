"""Kernels that are written anew: what one must do, what the gates say of one, and where an admitted one is kept."""
