"""Templates that had a folder of their own for one dtype, by that folder: where they are now.

Locks, recorded runs and the measurement database name them as they were called when they were written.
"""

from __future__ import annotations

from dataclasses import replace

from agentcompile.ir.template import Language, Template

KERNEL_FILES: dict[Language, str] = {"cpp": "kernel.cpp", "cuda": "kernel.cu", "triton": "kernel.py"}
"""The usual name of the kernel file; `library` has none."""
ALIASES: dict[str, tuple[str, str]] = {
    f"{kind}/{variant}-{dtype}": (f"{kind}/{variant}", dtype)
    for variant, dtype, kinds in (
        ("packed", "fp32", ("embedding", "gateup-silu-mul", "linear", "linear-argmax", "linear-merged")),
        ("packed", "fp32", ("linear-residual", "rmsnorm-gateup-silu-mul", "rmsnorm-linear", "rmsnorm-linear-argmax")),
        ("rows", "fp32", ("rmsnorm-gateup-silu-mul", "rmsnorm-linear", "rmsnorm-linear-argmax")),
        ("thin-rows", "fp16", ("rmsnorm-gateup-silu-mul", "rmsnorm-linear", "rmsnorm-linear-argmax")),
        ("heads", "fp32", ("rope-attention-decode", "qknorm-rope-attention-decode")),
        ("split", "fp32", ("rope-attention-decode", "qknorm-rope-attention-decode")),
    )
    for kind in kinds
}
"""Old id to the id now and the dtype that it served."""
_OLD = {now: old for old, now in ALIASES.items()}


def called(template: Template, id: str) -> Template:
    """A template under its old id, byte for byte as it was while its text is: digest and program texts are of then."""
    return replace(template, id=id, source_name=KERNEL_FILES.get(template.language, ""))


def formerly(template: Template) -> Template | None:
    """A template under the name that it had before; None for one that always had its name."""
    old = _OLD.get((template.id, template.dtypes[0])) if len(template.dtypes) == 1 else None
    return called(template, old) if old is not None else None
