"""The ladder: from PyTorch eager to the normal compile in rungs that differ by one thing each, timed side by side.

`rungs` names them, `engines` runs each in a process of its own (`decoder` is the one written by hand, `insides` looks
into steps of locks), `locks` compiles what the upper ones need, `climb` times them all, `gains` says which region
gained what. Rounds, checks against fp32, results and resuming are those of the harness.
"""
