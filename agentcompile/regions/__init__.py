"""Cuts a graph into regions: every match of every kind, the hard boundaries, and the cheapest exact cover.

In: a `Graph` and a `Regime`. Out: `Partition` (what could be a region) and, given measured options, `Solution`
(what will be one). Invariant: whatever is returned is legal; what was refused is returned with its reason.
"""
