"""What recipes that measure share: arms in processes of their own, rounds, statistics, partial results, result files.

Every arm lives in a process (`serving` speaks to it, `channel` is its side, `engines` are the arms), so that a crash is
a row with a reason. `workload` says what is asked, `trial` runs the arms of a checkpoint, `rates` interleaves them,
`times` runs the command line, `means` and `found` make medians and intervals of it, `result` is the file. `partial`
keeps what was found, so that a run that is cut goes on; `identity` says which run that is.
"""
