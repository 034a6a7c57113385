"""The figures of a CPU or GPU: decode rates beside peers, compile times, accuracy end to end, in one run and one JSON.

`recipe` runs it, `accuracy` compares logits, `record` and `report` judge; `firsts` and `long` are of a GPU alone.
"""
