"""One region: its task, the trials that are known, how the budget is shared out, and the ranking."""
