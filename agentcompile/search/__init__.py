"""Proposes what to try next from a space, advice and the trials so far; it measures nothing and decides nothing."""

from agentcompile.search.strategies import (
    STRATEGIES,
    Budget,
    Proposal,
    Strategy,
    exhaustive,
    halving,
    random_order,
    strategy_of,
)

__all__ = ["STRATEGIES", "Budget", "Proposal", "Strategy", "exhaustive", "halving", "random_order", "strategy_of"]
