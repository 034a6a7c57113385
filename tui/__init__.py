"""The terminal app: reads a run's events, sends commands to its compiler, and never imports torch."""
