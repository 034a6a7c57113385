"""The rules by which a plan is chosen; light, because the settings import it. Standard library only."""

from __future__ import annotations

from typing import Literal

Rule = Literal["pytorch", "first", "isolated", "admitted"]
"""How a region's choice is made.

`pytorch`: all regions stay in PyTorch. `first`: the adviser's first candidate that passes every check, untimed.
`isolated`: the fastest by itself. `admitted`: the one with which the whole step is fastest.
"""
