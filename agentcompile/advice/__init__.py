"""Says what to try first: a question about one region goes in, advice comes out; it never decides."""

from agentcompile.advice.advisers import ADVISERS, Adviser, NoAdvice, RandomOrder, adviser_of
from agentcompile.advice.heuristic import Heuristic

__all__ = ["ADVISERS", "Adviser", "Heuristic", "NoAdvice", "RandomOrder", "adviser_of"]
