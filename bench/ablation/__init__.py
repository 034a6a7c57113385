"""The ablation of advisers: where each one's order puts the fastest candidate of a region.

Every candidate of a region is evaluated once, so that all orders are compared on the same times.
"""

from __future__ import annotations
