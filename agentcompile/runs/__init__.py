"""A run on disk: its directory, the fold over its events, and rows of it for people."""
