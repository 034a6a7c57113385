"""Advice about what to try first: takes a question about one region, returns an order of its candidates.

Advice only orders the search; measurements decide.
"""

from agentcompile.advice.advisers import ADVISERS, Adviser, NoAdvice, RandomOrder, adviser_of
from agentcompile.advice.heuristic import Heuristic

__all__ = ["ADVISERS", "Adviser", "Heuristic", "NoAdvice", "RandomOrder", "adviser_of"]
