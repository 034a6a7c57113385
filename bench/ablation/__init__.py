"""The ablation of what proposes candidates: of advisers on this machine, and of search strategies on recorded spaces.

`advisers` evaluates every candidate of a region once, so that all orders are compared on the same times. `recorded`
runs strategies on spaces that were evaluated before, so that nothing is built or timed.
"""

from __future__ import annotations
