"""What kernels are attacked on: the regions of real models' graphs, each with points of its templates' spaces.

In: a target and a seed. Out: `Subject`s. Models are captured from their configurations alone: a checkpoint is written
whose tensors are a hole in a file, because capture reads names and shapes and no weights.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.catalog import Catalog, default_root, load
from agentcompile.check import check, errors, meant_for
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.region import Region
from agentcompile.ir.target import Target
from agentcompile.ir.template import Candidate, Language, Source, Template
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS, fits
from agentcompile.regions.kinds import facts
from agentcompile.regions.partition import partition
from agentcompile.space import Space
from agentcompile.tuning.partitions import graph_of, regimes

from ..models import presets as models
from ..models.presets import PRESETS, Dtype, Preset, with_layers

UNEVEN = "uneven"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A model's shape at one dtype, and the context that it is compiled for."""

    preset: Preset
    dtype: Dtype
    context: int


SHAPES: tuple[Shape, ...] = (
    Shape(preset=models.SHAPES["sample"], dtype="bf16", context=2048),
    Shape(preset=models.SHAPES["smollm2-135m"], dtype="bf16", context=2048),
    Shape(preset=PRESETS["qwen3-0.6b"], dtype="bf16", context=1024),
    Shape(preset=PRESETS["tiny-llama"], dtype="bf16", context=509),
    Shape(preset=models.SHAPES["sample"], dtype="fp32", context=700),
    Shape(preset=PRESETS["tiny-llama"], dtype="fp32", context=96),
    Shape(preset=models.SHAPES[UNEVEN], dtype="bf16", context=300),
    Shape(preset=models.SHAPES[UNEVEN], dtype="fp32", context=300),
)
"""Biases are the tiny Llama's alone."""
_LAYERS = 2
"""Two, so that a layer's end and the next one's beginning meet in one region where they do."""
MOST_BYTES = 24 << 20
"""Of weights and states that a region may have: float64 references of a whole vocabulary take seconds a case."""
MOST_TABLE_BYTES = 64 << 20
"""Of a table of which a launch reads rows: drawing, packing and hashing more of it is most of a validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One candidate at a real shape."""

    model: str
    region: Region
    template: Template
    candidate: Candidate
    target: Target
    source: Source

    @property
    def name(self) -> str:
        """For people: the candidate, the model and, where it is not all that the host has, the instruction set."""
        isa = "" if self.target.device != FEWER else f" with {_widest(self.target)} alone"
        return f"{self.candidate.label} of {self.model}{isa}"

    @property
    def variant(self) -> str:
        """The template as regions of some dtypes see it: ``linear/packed (fp32)``."""
        return f"{self.template.id} ({', '.join(self.template.dtypes)})"

    @property
    def lanes(self) -> int:
        """Floats in a vector, as `_include/simd.h` has it."""
        return 16 if "avx512f" in self.target.isa else 8 if "avx2" in self.target.isa else 4

    @property
    def numbers(self) -> dict[str, int]:
        """The candidate's parameters that are whole numbers, ``LANES`` and ``NATIVE`` as `loops.Asked` has them."""
        native = self.lanes == 16 and "avx512_bf16" in self.target.isa
        told = {name: value for name, value in dict(self.candidate.params).items() if isinstance(value, int)}
        return {**told, "LANES": self.lanes, "NATIVE": int(native)}


FEWER = "fewer instructions"
"""The device's name in a target that has not all of the host's extensions."""


def _widest(target: Target) -> str:
    return next((isa for isa in ("avx512f", "avx2") if isa in target.isa), "no vectors")


def lesser(target: Target) -> Target | None:
    """The same host as one that has AVX2 and nothing wider; None where it has no more."""
    fewer = tuple(name for name in target.isa if not name.startswith(("avx512", "amx")))
    return replace(target, isa=fewer, device=FEWER) if fewer != target.isa and "avx2" in fewer else None


def regions(target: Target, folder: Path, shapes: Iterable[Shape] = SHAPES) -> dict[str, list[tuple[str, Region]]]:
    """The regions of every shape's decode step, and on a GPU of its prefill, by kind, each with its model's name."""
    from agentcompile.capture import capture

    found: dict[str, list[tuple[str, Region]]] = {}
    seen: set[str] = set()
    for shape in shapes:
        path = hollow(shape, folder / f"{shape.preset.name}-{shape.dtype}")
        captured = capture(path, context=shape.context)
        for regime in regimes(shape.context, target.kind):
            graph, tokens = graph_of(captured, regime, target.kind)
            for region in partition(graph, regime, tokens=tokens).regions:
                held = region.cost.weight_bytes + region.cost.state_bytes
                table = sum(port.numel * ITEM_BYTES[port.dtype] for port in region.ports if port.role == "weight")
                if region.id not in seen and held <= MOST_BYTES and table <= MOST_TABLE_BYTES:
                    seen.add(region.id)
                    found.setdefault(region.kind, []).append((f"{shape.preset.name} {shape.dtype}", region))
    return found


def hollow(shape: Shape, folder: Path) -> Path:
    """A checkpoint of the right names and shapes whose tensors are a hole in a file, which takes no room."""
    preset = with_layers(shape.preset, _LAYERS)
    folder.mkdir(parents=True, exist_ok=True)
    config = json.dumps({**preset.config, "torch_dtype": models.TORCH_DTYPE[shape.dtype]})
    (folder / "config.json").write_text(config, encoding="utf-8")
    header, size = models.safetensors_header(preset.tensors, shape.dtype)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(header)
        os.truncate(file.fileno(), len(header) + size)
    return folder


def shipped() -> Catalog:
    """The templates that are part of the package."""
    return load([default_root()], kinds=facts(), layouts=tuple(LAYOUTS))


def subjects(
    found: Mapping[str, list[tuple[str, Region]]],
    catalog: Catalog,
    target: Target,
    languages: Collection[Language],
    rng: random.Random,
) -> dict[str, list[Subject]]:
    """For every kind, for every template of it in one of `languages`: its default at a drawn region, a point that is
    drawn, on a CPU with wide vectors for a host without them, and another where no extent is a multiple."""
    made: dict[str, list[Subject]] = {}
    fewer = lesser(target) if "cpp" in languages else None
    for template in catalog.templates:
        if template.language not in languages or not meant_for(template, target):
            continue
        served = [(name, r) for name, r in found.get(template.region, []) if _serves(template, r, target)]
        if not served:
            continue
        uneven = [(name, region) for name, region in served if name.startswith(UNEVEN)]
        for here, drawing, some in (
            (target, None, [row for row in served if row not in uneven]),
            (fewer or target, rng, served),
            (target, rng, uneven),
        ):
            if not some:
                continue
            model, region = rng.choice(some)
            point = _point(template, region, here, drawing)
            if point is not None:
                made.setdefault(template.region, []).append(_subject(model, region, template, point, here))
    return made


def _serves(template: Template, region: Region, target: Target) -> bool:
    if region.regime.phase not in template.phases:
        return False
    return _point(template, region, target, None) is not None


def _point(template: Template, region: Region, target: Target, rng: random.Random | None) -> Candidate | None:
    """A legal point: the default one, else, or with `rng`, one that is drawn; None where there is none."""
    space = Space(region, [template], target)
    default = space.default(template.id)
    if rng is None and default is not None and _legal(template, region, default, target):
        return default
    points = list(space)
    drawn = (rng or random.Random(0)).sample(points, len(points))
    return next((point for point in drawn if _legal(template, region, point, target)), None)


def _legal(template: Template, region: Region, point: Candidate, target: Target) -> bool:
    return not errors(check(region, template, point.params, target, layout_fits=fits))


def _subject(model: str, region: Region, template: Template, point: Candidate, target: Target) -> Subject:
    return Subject(
        model=model,
        region=region,
        template=template,
        candidate=point,
        target=target,
        source=specialise(template, region, point.params, target),
    )
