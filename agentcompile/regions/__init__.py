"""Partitioning of a graph into regions: every match of every kind, the hard boundaries, and the cheapest exact cover.

In: a `Graph` and a `Regime`. Out: `Partition` (the regions the graph could be cut into) and, given measured options,
`Solution` (the regions it will be cut into). Invariant: every region that is returned is legal, and every match that
was refused is returned with its reason.
"""
