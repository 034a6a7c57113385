"""Advice about what to try first: takes a question about one region, returns an order of its candidates.

Advice only orders the search; measurements decide.
"""
