"""The terminal app: reads events, sends commands, never imports torch. Not built yet: `cli.run` says so."""
