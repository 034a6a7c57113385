"""Old ids of templates: those that once had a folder for one dtype, mapped to the template and dtype used now.

Locks, recorded runs and the measurement database call a template by the id that it had when they were written.
"""

from __future__ import annotations

from dataclasses import replace

from agentcompile.ir.template import Language, Template

KERNEL_FILES: dict[Language, str] = {"cpp": "kernel.cpp", "cuda": "kernel.cu", "triton": "kernel.py"}
"""The default name of the kernel file in each language; `library` has none."""
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
"""Old id to the present id and the dtype that the old template served."""
_OLD = {now: old for old, now in ALIASES.items()}


def called(template: Template, id: str) -> Template:
    """Return `template` under an old id, with the default kernel file name that it had then.

    While its text is unchanged, the result equals the old template byte for byte: digest and program texts are the old
    ones.
    """
    return replace(template, id=id, source_name=KERNEL_FILES.get(template.language, ""))


def formerly(template: Template) -> Template | None:
    """Return `template` under its old id; None for a template that never had another id."""
    old = _OLD.get((template.id, template.dtypes[0])) if len(template.dtypes) == 1 else None
    return called(template, old) if old is not None else None
