"""The names that an expression of a template can read, and their values for one region on one target.

These are the dimensions of the kind, integer parameters, `threads`, `cache_l1 cache_l2 cache_l3` (bytes; 0 when the
machine has no such level), `line_bytes`, `weight_bytes` (bytes of an element of the region's weight dtype),
`has_<family>`, `<family>_count`, and `isa_<extension>` as 0 or 1. The names are listed in this one place, so that the
catalog, the checker and the kernels' prologue agree on them.
"""

from __future__ import annotations

from agentcompile.ir.graph import ITEM_BYTES, DType
from agentcompile.ir.kind import TASK, KindFacts
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params

ISA: tuple[str, ...] = (
    "sse4_2", "avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni",
    "avx512f", "avx512cd", "avx512dq", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16",
    "avx512_vbmi", "amx_tile", "amx_bf16", "amx_int8", "neon", "bf16", "sve",
)  # fmt: skip
"""Extensions that templates may ask for in `arch` and read as `isa_<name>`."""
TARGET_NAMES: tuple[str, ...] = ("threads", "cache_l1", "cache_l2", "cache_l3", "line_bytes", "weight_bytes", "tokens")
FLOATS = ("bf16", "fp16", "fp32", "fp64")


def names_of(kind: KindFacts) -> tuple[str, ...]:
    """Return every name but the parameters that a template of this kind may read, sorted."""
    families = [port.family for port in kind.ports]
    derived = [f"has_{family}" for family in families] + [f"{family}_count" for family in families]
    return tuple(sorted({*kind.dims, *TARGET_NAMES, *derived, *(f"isa_{isa}" for isa in ISA)}))


def region_dtype(region: Region) -> DType:
    """Return the dtype that a template must serve.

    It is that of `w`, else of the first weight, state or activation that holds floats.
    """
    floats = [port for port in region.ports if port.dtype in FLOATS]
    ranked = sorted(floats, key=lambda port: (port.family != "w", port.role != "weight", port.role != "state"))
    return ranked[0].dtype if ranked else region.ports[0].dtype


def constants_of(region: Region, target: Target) -> dict[str, int]:
    """Return the dimensions and target facts that every kernel gets: `hidden`, `threads`, `cache_l2`, `tokens`, ….

    A task has no tokens and no weights as a decoder has them: its kernels get neither `tokens` nor `weight_bytes`.
    """
    caches = (*target.cache_bytes, 0, 0, 0)[:3]
    facts = {f"cache_l{level}": size for level, size in enumerate(caches, 1)}
    facts |= {"threads": target.threads, "line_bytes": target.line_bytes}
    if region.kind.startswith(TASK):
        return {**dict(region.dims), **facts}
    facts["weight_bytes"] = ITEM_BYTES[region_dtype(region)]
    return {"tokens": 1, **dict(region.dims), **facts}


def scope(region: Region, target: Target, params: Params = ()) -> dict[str, int]:
    """Return the value of every name for this region, target and configuration, as an `Absent` mapping."""
    names = Absent(constants_of(region, target))
    families = dict.fromkeys(port.family for port in region.ports)
    for family in families:
        names[f"has_{family}"] = 1
        names[f"{family}_count"] = len(region.family(family))
    for isa in ISA:
        names[f"isa_{isa}"] = int(isa in target.isa)
    names |= {name: value for name, value in params if isinstance(value, int)}
    return names


class Absent(dict[str, int]):
    """A scope in which `has_<family>` and `<family>_count` are 0 for families that the region lacks."""

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or _is_family_fact(name)

    def __missing__(self, name: str) -> int:
        if _is_family_fact(name):
            return 0
        raise KeyError(name)


def _is_family_fact(name: object) -> bool:
    return isinstance(name, str) and (name.startswith("has_") or name.endswith("_count"))
