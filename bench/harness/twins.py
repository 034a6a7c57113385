"""Names of arms and their twins: a second process of an arm, as it is or slowed down, to compare the arm with itself.

``agentcompile=again`` is a second process of the same arm; ``agentcompile=slow:0.03`` is one that waits an extra 3 % of
its working time, so that the suite's comparisons can be tested on the real clock.
"""

from __future__ import annotations

import math

MOST_SLOWER = 10.0


def kind_of(name: str) -> str:
    """Return the arm that `name` is, or is a twin of."""
    return name.partition("=")[0]


def slower(name: str) -> float:
    """Return how long a twin waits, as a share of its working time; 0 for an arm that is not slowed down."""
    share = _share(name)
    return float(share) if share else 0.0


def fault(name: str) -> str:
    """Return what is wrong with a twin's name; empty when nothing is."""
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
