"""Agents that write kernels: who plans, who writes, who mends, on a tree of attempts (STARK, arXiv 2510.16996).

They propose; an `AttemptEvaluator` that others pass in says what became of it.
"""
