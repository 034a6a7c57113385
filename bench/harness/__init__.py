"""The parts that measuring recipes share: arms in separate processes, rounds, statistics, partial and final results.

Every arm runs in a process of its own, so that a crash becomes a row with a reason: `serving` is our side of its pipe,
`channel` the arm's side, `engines` the arms. `workload` describes the requests, `trial` times the arms of a checkpoint
in interleaved rounds, `rates` makes their visits, `times` runs the command line, `means` and `found` compute medians
and intervals, `result` is the file. `partial` keeps results so that an interrupted run can be resumed; `identity` says
which run they belong to.
"""
