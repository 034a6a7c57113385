"""The figures of a CPU or GPU: decode rates beside peers, compile times, accuracy end to end, in one run and one JSON.

Every arm lives in a process of its own (`serving` speaks to it, `channel` is its side), so that a crash is a row with a
reason. `rates` interleaves the arms, `times` runs the command line, `accuracy` compares logits, `report` judges.
`partial` keeps what was found, so that a run that is cut goes on; `identity` says which run that is.
"""
