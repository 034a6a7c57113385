"""A check that a captured graph runs at other lengths than the traced one, by shapes alone, on fake tensors."""

from __future__ import annotations

import torch
from torch._subclasses import fake_tensor

from agentcompile.ir.graph import Graph
from agentcompile.ops.reference import DTYPES, Interpreter


def fault(graph: Graph, tokens: int) -> str:
    """Return why `graph` cannot run on `tokens` tokens; empty when it can, or when shapes alone cannot tell."""
    table = graph.table()
    positions = torch.arange(tokens)  # real, because an operator may read the positions
    try:
        with fake_tensor.FakeTensorMode(allow_non_fake_inputs=True):
            bound = {
                name: torch.zeros(
                    [tokens if isinstance(extent, str) else extent for extent in table[name].shape],
                    dtype=DTYPES[table[name].dtype],
                )
                for name in graph.inputs
            }
            bound["positions"] = positions
            logits = Interpreter(graph)(bound)["logits"]
    except (
        fake_tensor.DataDependentOutputException,
        fake_tensor.DynamicOutputShapeException,
        fake_tensor.UnsupportedFakeTensorException,
    ):
        return ""
    except Exception as error:  # noqa: BLE001 - whatever an operator says of shapes that do not fit
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return "" if logits.numel() == logits.shape[-1] else f"logits of {list(logits.shape)} for the last token"
