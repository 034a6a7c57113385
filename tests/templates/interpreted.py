"""Runs Triton templates through Triton's interpreter under the correctness suite, in a process of their own.

Triton reads TRITON_INTERPRET when it is imported. The interpreter rounds to bf16 wrongly, so regions are in fp32.
Prints the failed checks of every id that it is given, as JSON by id.
"""

from __future__ import annotations

import json
import linecache
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch
import triton.language as tl

from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Params, Source, Template
from agentcompile.materialize import specialise
from tests.templates.suite import CATALOG, failed, odd, problems

TARGET = Target(kind="cuda", device="none", arch="sm_80", isa=(), threads=2, cache_bytes=(1 << 17, 1 << 25))
"""Without programmatic dependent launch, of which the interpreter knows nothing."""
NO_POINTER = torch.zeros(1)


def executed(text: str) -> ModuleType:
    """The text as a module; constants are plain values, as the interpreter's Python wants them."""
    module, name = ModuleType("kernel"), "<interpreted>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), module.__dict__)
    for key, value in list(vars(module).items()):
        if isinstance(value, tl.constexpr):
            setattr(module, key, value.value)
    return module


def arguments(source: Source, module: ModuleType, buffers: Mapping[str, torch.Tensor]) -> list[Any]:
    """The buffers of the only launch, in tuples where the function takes them so."""
    (launch,) = source.launches
    flat = [buffers[name] if name else NO_POINTER for name in launch.arguments]
    made: list[Any] = []
    for types in getattr(module, f"{launch.entry}_args").values():
        count = 1 if isinstance(types, str) else len(types)
        here, flat = flat[:count], flat[count:]
        made.append(here[0] if isinstance(types, str) else tuple(here))
    assert not flat, "the signature has fewer pointers than the launch"
    return made


def faults(template: Template, made: Region, params: Params) -> list[str]:
    """Failed checks of the suite, as text."""
    assert problems(made, template, params, TARGET) == ()
    source = specialise(template, made, params, TARGET)
    module = executed(source.text)
    (launch,) = source.launches

    def run(buffers: Mapping[str, torch.Tensor]) -> None:
        grid = tuple(int(extent) for extent in launch.grid)
        getattr(module, launch.entry)[grid](*arguments(source, module, buffers))

    return failed(template, made, source, run, fences=False)


def narrow(template: Template) -> Params:
    """The default with blocks of which a test's region has several, and few programs: each takes long here."""
    blocks = {"BLOCK_ROWS": 16, "BLOCK_K": 256, "BLOCK": 128}
    return tuple((name, blocks.get(name, value)) for name, value in template.defaults)


if __name__ == "__main__":
    found: dict[str, list[str]] = {id: [] for id in sys.argv[1:]}
    for id in found:
        chosen = CATALOG.get(id)
        for hidden in (97, 523):  # one step of the loops, and several, where nothing divides
            made = odd(chosen.region, "fp32", hidden=hidden, head_dim=16)
            found[id] += [f"{hidden}: {text}" for text in faults(chosen, made, narrow(chosen))]
    print(json.dumps(found))
