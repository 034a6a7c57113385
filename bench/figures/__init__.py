"""The published figures of a CPU or GPU: decode rates beside peers, compile times and end-to-end accuracy.

All are measured in one run and written to one JSON file. `recipe` runs it, `accuracy` compares logits, `record`
compares the results with the targets; `firsts` and `long` are separate recipes.
"""
