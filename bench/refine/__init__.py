"""`agentcompile bench refine`: arms of agents compared on tasks, at equal attempts and equal tokens.

`sessions` runs them, `gates` opens tasks, `result` is what a study found, `summary` what follows from it, `tables` and
`plot` show it, and `recipe` is the command.
"""
