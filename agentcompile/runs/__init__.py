"""A run on disk: its directory, the fold over its events, and its rows for people."""
