"""The command line: verbs, flags, tables, and how a command ends."""
