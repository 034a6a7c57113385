"""The last token's logits: a slice of the output moves up through operators that treat each token separately."""

from __future__ import annotations

from agentcompile.capture.layout import Inexpressible, dense
from agentcompile.capture.terms import Edge, Pool

ROWWISE = frozenset(
    {"linear", "rms_norm", "cast", "silu", "gelu", "gelu_tanh", "relu", "sigmoid", "tanh", "mul_scalar", "add_scalar"}
)
"""Operators that compute each row of the result from the same row of the first operand; they read other operands
whole.
"""


def last_token(pool: Pool, logits: Edge) -> Edge:
    """Turn logits [1, T or 1, vocab] into those of the last token, [1, 1, vocab], computed for that token only."""
    tokens, vocab = logits.shape[-2], logits.shape[-1]
    if tokens != 1:
        logits = logits.reshape((1, tokens, vocab)).slice(1, tokens - 1, tokens)
    return _rise(pool, logits.reshape((1, 1, vocab)))


def _rise(pool: Pool, edge: Edge) -> Edge:
    """Recompute an edge that reads one row of a row-wise operator from the same row of its operand."""
    term, base = edge.term, edge.base
    if term.op not in ROWWISE or pool.tokens == 1 or len(base) != 3 or base[0] != 1:
        return edge
    x, rows = term.args[0], base[1]
    if len(x.shape) != 3 or x.shape[1] != rows or edge.layout.numel != base[2]:
        return edge
    if rows > 1:
        if edge.layout.reshape((1, 1, base[2])) != dense(base).slice(1, rows - 1, rows):
            return edge
        try:
            x = x.slice(1, rows - 1, rows)
        except Inexpressible:
            return edge
    x = _rise(pool, x)
    pool.module, pool.source = term.module, term.source
    return pool.op(term.op, [x, *term.args[1:]], (1, 1, base[2]), term.outs[0][1], term.attrs).reshape(edge.shape)
