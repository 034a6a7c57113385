"""Templates that had a folder of their own for one dtype, by that folder: where they are now.

Locks and recorded runs name them as they were called when they were written.
"""

from __future__ import annotations

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
