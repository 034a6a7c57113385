"""Names of arms: an arm may be asked for a second time, to be held against itself, as it is or slowed down.

``agentcompile=again`` is a process of its own of the same arm; ``agentcompile=slow:0.03`` is one that waits 3 % longer
than it worked, so that a verdict of the suite can be judged on the real clock.
"""

from __future__ import annotations

import math

MOST_SLOWER = 10.0


def kind_of(name: str) -> str:
    """The arm that `name` is, or is a twin of."""
    return name.partition("=")[0]


def slower(name: str) -> float:
    """How much longer than it worked an arm of this name waits, as a share of that; 0 for one that is left alone."""
    share = _share(name)
    return float(share) if share else 0.0


def fault(name: str) -> str:
    """What is wrong with a twin's name; empty when nothing is."""
    _, given, alias = name.partition("=")
    if not given:
        return ""
    if not alias.partition(":")[0]:
        return "the twin has no name: NAME=ALIAS or NAME=ALIAS:SHARE"
    if ":" not in alias:
        return ""
    try:
        share = float(_share(name))
    except ValueError:
        share = math.nan
    return "" if 0 < share <= MOST_SLOWER else f"{_share(name)!r} is no share above 0: 0.03 is 3 % slower"


def _share(name: str) -> str:
    return name.partition("=")[2].partition(":")[2]
