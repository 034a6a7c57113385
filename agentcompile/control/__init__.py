"""Steering a run from outside: commands, when each is allowed, the socket that carries them, and who answers."""
