"""Library calls: regions run by PyTorch operators other than the captured ones, or by cuBLASLt; templates name them.

In: a region of a decode step of B sequences, a call's name and settings. Out: a function from input ports by name to
output ports by name. States are written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.region import Region
from agentcompile.ir.template import Params
from agentcompile.ops.attention import attention, unforeseen, visible
from agentcompile.ops.reference import OPERATORS, Operator, apply_views, keywords
from agentcompile.runtime import cublaslt

Function = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


def bind(call: str, region: Region, settings: Params) -> Function:
    """Return the function that runs `region` through library call `call`.

    Raises:
        AgentCompileError: the call or a setting is not in the table, or the call cannot serve `region` on this device.
    """  # noqa: DOC501
    forms = CALLS.get(call)
    if forms is None:
        raise _unknown(f'call = "{call}"', CALLS)
    if not isinstance(forms, dict):
        return _body(region, {**OPERATORS, **forms(region, settings)})
    wanted = dict(settings).get("FORM", next(iter(forms)))
    replaced = forms.get(str(wanted))
    if replaced is None:
        raise _unknown(f'{call}: FORM = "{wanted}"', forms)
    return _body(region, {**OPERATORS, **replaced})


def _unknown(what: str, allowed: Mapping[str, object]) -> AgentCompileError:
    known = ", ".join(allowed)
    return AgentCompileError(f"{what} is unknown", exit_code=ExitCode.USAGE, hint=f"one of {known}")


def _body(region: Region, operators: Mapping[str, Operator]) -> Function:
    steps = [(operators[n.op], n.inputs, n.outputs[0], keywords(region.body, n)) for n in region.body.nodes]
    outputs = region.body.outputs
    tokens = dict(region.dims).get("tokens", 1)

    @torch.inference_mode()
    def run(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        env: dict[str, Any] = dict(inputs)
        for operator, uses, out, attrs in steps:
            env[out] = operator(*[apply_views(env[use.value], use.views, tokens) for use in uses], **attrs)
        return {name: apply_views(env[use.value], use.views, tokens) for name, use in outputs}

    return run


def _mv(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply x [B, 1, in] by w [out, in] transposed, one matrix-vector product per sequence -> [B, 1, out]."""
    if x.shape[0] > 1:
        return torch.cat([_mv(x[i : i + 1], w, b) for i in range(x.shape[0])])
    flat = x.reshape(-1)
    return (torch.mv(w, flat) if b is None else torch.addmv(b, w, flat)).view(1, 1, -1)


def _matmul(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply x [B, 1, in] by w transposed, with the weights on the left: [out, in] @ [in, B]."""
    columns = x.reshape(-1, x.shape[-1]).t()
    y = torch.matmul(w, columns) if b is None else torch.addmm(b[:, None], w, columns)  # adds the bias before rounding
    return y.t().reshape(*x.shape[:-1], -1)


def _plain_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor, *, scale: float, window: int = 0
) -> torch.Tensor:
    """Compute decode attention as two batched products and a softmax, all in float32; shapes as in `attention`."""
    if unforeseen(positions):
        return attention(q, keys, values, positions, scale=scale, window=window)
    (batch, heads, _, width), kv_heads = q.shape, keys.shape[1]
    grouped = q.reshape(batch, kv_heads, heads // kv_heads, width).float()
    mixed = []
    for b, last in enumerate(positions.tolist()):
        seen = visible(last, last, window)
        scores = torch.bmm(grouped[b], keys[b, :, seen].transpose(1, 2).float()) * scale
        mixed.append(torch.bmm(torch.softmax(scores, dim=-1), values[b, :, seen].float()))
    return (mixed[0] if batch == 1 else torch.stack(mixed)).to(q.dtype).view(q.shape)


Forms = dict[str, dict[str, Operator]]
"""The operators that each value of the parameter FORM replaces; the first form is the default."""
CALLS: dict[str, Forms | Callable[[Region, Params], Mapping[str, Operator]]] = {
    "torch.linear": {"mv": {"linear": _mv}, "matmul": {"linear": _matmul}, "linear": {"linear": F.linear}},
    "torch.attention": {"sdpa": {}, "float": {"attention": _plain_attention}},
    "cublaslt.linear": cublaslt.operators,
}
"""The forms of each call, or a function that makes its replaced operators from a region and settings."""
