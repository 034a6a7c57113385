"""Quantiles of Student's t distribution, from the regularised incomplete beta function (standard library only)."""

from __future__ import annotations

import math
from functools import lru_cache

_TINY = 1e-300
_TERMS = 300


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta I_x(a, b), by Lentz's continued fraction (Numerical Recipes, sec. 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges fast on the other side only
        return 1.0 - front * _fraction(b, a, 1.0 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1.0 / _away(1.0 - (a + b) * x / (a + 1.0))
    total = d
    for m in range(1, _TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 / _away(1.0 + term * d)
            c = _away(1.0 + term / c)
            total *= d * c
        if abs(d * c - 1.0) < 1e-15:
            break
    return total


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def t_cdf(t: float, freedom: float) -> float:
    """Return P(T <= t) of Student's t distribution with `freedom` degrees of freedom."""
    tail = 0.5 * incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + t * t))
    return 1.0 - tail if t > 0 else tail


@lru_cache(maxsize=1024)  # who compares runs asks for the same few again and again
def t_quantile(p: float, freedom: float) -> float:
    """Return the t with P(T <= t) = p, found by bisection.

    Raises:
        ValueError: `p` is not between 0 and 1, or `freedom` is not above 0.
    """
    if not 0.0 < p < 1.0 or freedom <= 0:
        raise ValueError(f"p = {p} must be inside (0, 1) and freedom = {freedom} above 0")
    if p < 0.5:
        return -t_quantile(1.0 - p, freedom)
    low, high = 0.0, 1.0
    while t_cdf(high, freedom) < p:
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if t_cdf(middle, freedom) < p else (low, middle)
    return (low + high) / 2.0
