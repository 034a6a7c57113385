"""The files of `bench/tasks`: read, made and run as KernelBench does, and as rows of their README's table.

`python -m tests.unit.task_files` writes that table anew.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

TASKS = Path(__file__).resolve().parents[2] / "bench" / "tasks"
FILES = sorted(TASKS.glob("*.py"))
README = TASKS / "README.md"
BEGIN, END = "<!-- begin: python -m tests.unit.task_files -->\n", "<!-- end -->\n"
HEAD = (
    "| task | level | what it computes | inputs → output | bytes | FLOPs |\n"
    "| --- | --: | --- | --- | --: | --: |\n"
)  # fmt: skip
LEVELS = {
    1: (
        "argmax", "cross_entropy", "cumulative_sum", "elementwise_chain", "embedding_position", "group_norm",
        "layernorm", "row_mean_variance", "small_matmuls", "soft_capping", "softmax", "top_k", "transposed_copy",
    ),
    2: (
        "causal_softmax", "conv_norm_silu", "decode_attention", "depthwise_conv", "gelu_linear", "int8_matvec",
        "linear_recurrence", "linear_relu", "rmsnorm_residual", "rope", "scatter_add", "sliding_window_attention",
        "swiglu_residual", "w4a16_linear",
    ),
    3: ("attention_block", "decoder_layer", "gated_mlp", "moe_top2", "paged_attention"),
}  # fmt: skip
"""1: elementwise or one operator; 2: a few operators to fuse; 3: a block of a model."""


@dataclass(frozen=True)
class Made:
    """A model and its inputs, of one seed."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]

    @torch.no_grad()
    def output(self, *changed: torch.Tensor) -> torch.Tensor:
        out = self.model(*(changed or self.inputs))
        assert isinstance(out, torch.Tensor)
        return out


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"task_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(module: ModuleType, seed: int) -> Made:
    torch.manual_seed(seed)
    model = module.Model(*module.get_init_inputs())
    return Made(model, tuple(module.get_inputs()))


def flops(task: Made) -> int:
    """Of products and convolutions, as eager code executes them; attention counts as its two products."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        task.output()
    return counter.get_total_flops()


def moved_bytes(task: Made) -> int:
    """Every input, parameter, buffer and output once."""
    tensors = (*task.inputs, *task.model.parameters(), *task.model.buffers(), task.output())
    return sum(tensor.nbytes for tensor in tensors)


def _shape(tensor: torch.Tensor) -> str:
    short = {"float": "f", "bfloat": "bf", "int": "i"}
    kind = str(tensor.dtype).removeprefix("torch.")
    letters = kind.rstrip("0123456789")
    return f"{short[letters]}{kind.removeprefix(letters)} " + "×".join(map(str, tensor.shape))


def _shapes(task: Made) -> str:
    names = inspect.signature(task.model.forward).parameters
    given = ", ".join(f"{name} {_shape(one)}" for name, one in zip(names, task.inputs, strict=True))
    return f"{given} → {_shape(task.output())}"


def row(path: Path) -> str:
    module = module_of(path)
    task, (level,) = made(module, 0), [level for level, names in LEVELS.items() if path.stem in names]
    count = flops(task)
    cells = (
        f"[`{path.stem}`]({path.name})", str(level), (module.__doc__ or "").partition("\n")[0], _shapes(task),
        f"{moved_bytes(task) / 1e6:.2f} MB", f"{count / 1e6:.1f} M" if count else "–",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def table(files: Sequence[Path] = FILES) -> str:
    return HEAD + "".join(sorted(map(row, files), key=lambda one: one.split(" | ")[1]))


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    README.write_text(before + table() + after, encoding="utf-8")
