"""The ladder: from PyTorch eager to the normal compile in rungs that differ by one thing each, timed side by side.

`rungs` defines them, `engines` runs each in a process of its own (`decoder` is the hand-written one, `insides` times
the parts of a lock's step), `locks` compiles the locks of the upper rungs, `climb` times all rungs, and `gains` shares
each gain out to regions. Rounds, checks against fp32, results and resuming are those of the harness.
"""
