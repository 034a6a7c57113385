"""Library calls: regions run by PyTorch in another way than they were captured, named by templates.

In: a region, a call's name and settings. Out: a function from input ports by name to output ports by name. States are
written in place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.region import Region
from agentcompile.ir.template import Params
from agentcompile.reference import OPERATORS, Operator, apply_views, attention

Function = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


def bind(call: str, region: Region, settings: Params) -> Function:
    """The function that runs `region` through library call `call`.

    Raises `AgentCompileError` for a call or a setting that is not in the table.
    """
    forms = CALLS.get(call)
    if forms is None:
        raise _unknown(f'call = "{call}"', CALLS)
    wanted = dict(settings).get("FORM", next(iter(forms)))
    replaced = forms.get(str(wanted))
    if replaced is None:
        raise _unknown(f'{call}: FORM = "{wanted}"', forms)
    return _body(region, {**OPERATORS, **replaced})


def _unknown(what: str, allowed: Mapping[str, object]) -> AgentCompileError:
    known = ", ".join(allowed)
    return AgentCompileError(f"{what} is unknown", exit_code=ExitCode.USAGE, hint=f"one of {known}")


def _body(region: Region, operators: Mapping[str, Operator]) -> Function:
    """The region's own operators in order, with these functions for them."""
    steps = [(operators[n.op], n.inputs, n.outputs[0], dict(n.attrs)) for n in region.body.nodes]
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
    """One token's x [1, 1, in] times w [out, in] transposed as a matrix-vector product -> [1, 1, out]."""
    flat = x.reshape(-1)
    return (torch.mv(w, flat) if b is None else torch.addmv(b, w, flat)).view(1, 1, -1)


def _matmul(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    """x times w transposed as a matrix-matrix product with the weights on the left: [out, in] @ [in, T]."""
    y = torch.matmul(w, x.reshape(-1, x.shape[-1]).t()).t().reshape(*x.shape[:-1], -1)
    return y if b is None else y + b


def _plain_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    *,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Decode attention as two batched products and a softmax, all in float32; shapes as in `reference.attention`."""
    if positions.is_cuda and torch.cuda.is_current_stream_capturing():
        return attention(q, keys, values, positions, scale=scale, window=window)
    last = int(positions[-1])
    low = max(0, last - window + 1) if window else 0
    heads, kv_heads, width = q.shape[1], keys.shape[1], q.shape[3]
    grouped = q.reshape(kv_heads, heads // kv_heads, width).float()
    scores = torch.bmm(grouped, keys[0, :, low : last + 1].transpose(1, 2).float()) * scale
    mixed = torch.bmm(torch.softmax(scores, dim=-1), values[0, :, low : last + 1].float())
    return mixed.to(q.dtype).view(1, heads, 1, width)


CALLS: dict[str, dict[str, dict[str, Operator]]] = {
    "torch.linear": {"mv": {"linear": _mv}, "matmul": {"linear": _matmul}, "linear": {"linear": F.linear}},
    "torch.attention": {"sdpa": {}, "float": {"attention": _plain_attention}},
}
"""Call → value of its parameter FORM → the operators that it runs in its own way; the first form is the default."""
