"""A chunk whose tokens are of many styles, for kernels that work on each token alone.

A kernel may have a way of its own for chunks of some lengths. There it meets large, tiny and equal numbers, zeros, NaN
and infinities in these chunks only: all that cases do at one length.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

import torch
from torch import Tensor

from agentcompile.ir.graph import TOKENS
from agentcompile.ir.region import Port, Region
from agentcompile.validate.cases import Case
from agentcompile.validate.inputs import Generator
from agentcompile.validate.worn import PLACES

_CASES = (
    *(Case(style=style, place=0.0) for style in ("huge", "outliers", "zeros", "large", "small", "constant")),
    *(Case(style="worn", place=place) for place in PLACES[3:]),
    *(Case(style="impulse", place=place) for place in (0.0, 1.0)),
)
_BROKEN = (math.nan, math.inf, -math.inf)
PERIOD = 2 * (len(_CASES) + len(_BROKEN))
"""The tokens after which styles repeat: every second one is normal."""


def rows_of(region: Region) -> dict[str, int]:
    """Return the inputs with a row for each token, and which dimension counts the tokens."""
    ports = (port for port in region.ports if port.role == "activation" and TOKENS in port.shape)
    return {port.name: port.shape.index(TOKENS) for port in ports}


def mixed(
    region: Region, parameters: Mapping[str, Tensor], *, seed: int, tokens: int, length: int
) -> dict[str, Tensor]:
    """Draw a chunk of `tokens` tokens, whose last position is `length` − 1."""
    draws, rng = Generator(region, seed=seed, tokens=tokens), random.Random(seed)
    found = draws.draw(Case(style="normal", length=length), parameters)
    dims = {name: dim for name, dim in rows_of(region).items() if _plain(region, region.port(name))}
    for at, case in enumerate(_CASES):
        drawn = draws.draw(case, parameters) if not _too_large(region, case) else found
        some = torch.arange(2 * at + 1, tokens, PERIOD)
        for name, dim in dims.items():
            found[name].index_copy_(dim, some, drawn[name].index_select(dim, some))
    for at, number in enumerate(_BROKEN, len(_CASES)):
        for token in range(2 * at + 1, tokens, PERIOD) if dims else ():
            name = rng.choice(sorted(dims))
            row = found[name].select(dims[name], token)
            row[tuple(rng.randrange(extent) for extent in row.shape)] = number
    return found


def _plain(region: Region, port: Port) -> bool:
    angles = {use.value for node in region.body.nodes if node.op == "rope" for use in node.inputs[1:]}
    return port.dtype not in ("int64", "int32") and port.name not in angles


def _too_large(region: Region, case: Case) -> bool:
    """Return whether fp16 would lose what no bound covers."""
    return case.style == "worn" and any(port.dtype == "fp16" for port in region.ports)
