"""The search space of a region: takes its templates and a target, returns the set of legal candidates."""

from agentcompile.space.space import Exclusion, OutsideError, Space

__all__ = ["Exclusion", "OutsideError", "Space"]
