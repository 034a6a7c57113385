"""Regions of a prefill at one number of tokens, as a worker validates and times the kernels that serve any number."""

from __future__ import annotations

from dataclasses import replace

from agentcompile.capture.chunked import at_tokens
from agentcompile.ir.graph import Dim, concrete
from agentcompile.ir.region import Region

VALIDATED = 33
"""The tokens of the chunk on which a kernel for any chunk is validated: longer ones only take longer to compute
exactly, and whatever is timed is compared at the longest."""
SHORTEST = (1, 2)
"""The other numbers of tokens, beside the longest and one less, at which a kernel passes what a search tests.

At all others it launches on one input each, at acceptance alone.
"""


def any_chunk(region: Region) -> bool:
    """Return whether the number of tokens of a region is open."""
    return any(isinstance(dim, str) for port in region.ports for dim in port.shape)


def validated(region: Region) -> int:
    """Return the tokens of the chunk on which the whole correctness suite runs; 0 where their number is fixed."""
    return min(VALIDATED, region.longest_chunk) if any_chunk(region) else 0


def at_length(region: Region, tokens: int = 0) -> Region:
    """Return a region with `tokens` for the number of tokens (0: the longest chunk), without its sites.

    A region whose extents are numbers already is returned as it is, without its sites.
    """
    if not any_chunk(region):
        return replace(region, sites=())
    count = tokens or region.longest_chunk

    def sized(shape: tuple[Dim, ...]) -> tuple[int, ...]:
        return concrete(shape, count)

    return replace(
        region,
        body=at_tokens(region.body, count),
        ports=tuple(replace(port, shape=sized(port.shape)) for port in region.ports),
        dims=tuple((name, count if name == "tokens" else extent) for name, extent in region.dims),
        sites=(),
    )


def lengths(region: Region) -> tuple[Region, ...]:
    """Return a region of any chunk at the other lengths of which a search would test one; none for one length."""
    if not any_chunk(region):
        return ()
    most = region.longest_chunk
    others = {*SHORTEST, most - 1, most} - {0, validated(region)}
    return tuple(at_length(region, tokens) for tokens in sorted(others) if tokens <= most)
