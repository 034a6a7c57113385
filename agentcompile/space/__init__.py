"""Bounds what may be tried: a region, its templates and a target go in, the set of legal candidates comes out."""

from agentcompile.space.space import Exclusion, OutsideError, Space

__all__ = ["Exclusion", "OutsideError", "Space"]
