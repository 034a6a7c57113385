"""The subjects of campaigns: regions of real models' graphs, with points of their templates' spaces.

In: a target and a seed. Out: `Subject`s. Models are captured from their configurations alone: a checkpoint is written
whose tensors are a hole in a file, because capture reads names and shapes and no weights.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from agentcompile.backends import backend_of
from agentcompile.capture import capture
from agentcompile.catalog import Catalog, default_root, load
from agentcompile.check import check, errors, meant_for
from agentcompile.evaluation.jobs import EvaluationJob
from agentcompile.ir.graph import ITEM_BYTES
from agentcompile.ir.region import Regime, Region
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


class Shape(NamedTuple):
    """A model's shape at one dtype, and the context that it is compiled for."""

    preset: Preset
    dtype: Dtype
    context: int


SHAPES = (
    Shape(models.SHAPES["sample"], "bf16", 2048),
    Shape(models.SHAPES["smollm2-135m"], "bf16", 2048),
    Shape(PRESETS["qwen3-0.6b"], "bf16", 1024),
    Shape(PRESETS["tiny-llama"], "bf16", 509),
    Shape(models.SHAPES["sample"], "fp32", 700),
    Shape(PRESETS["tiny-llama"], "fp32", 96),
    Shape(models.SHAPES[UNEVEN], "bf16", 300),
    Shape(models.SHAPES[UNEVEN], "fp32", 300),
)
"""The shapes that regions come from. Only the tiny Llama has biases."""
_BATCHES = (1, 4)
"""The sequences of a decode step, on a device that serves several at once."""
_LAYERS = 2
"""The layers of a captured model: two, so that a region may join a layer's end and the next one's beginning."""
MOST_BYTES = 24 << 20
"""The most bytes of weights and states in a region: float64 references of a whole vocabulary take seconds a case."""
MOST_TABLE_BYTES = 64 << 20
"""The most bytes of a table that a launch reads rows of; with more, validation mostly draws, packs and hashes it."""


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
        """The name for people: the candidate and the model.

        The widest instruction set is added for a target with fewer of them than the host.
        """
        widest = next((isa for isa in ("avx512f", "avx2") if isa in self.target.isa), "no vectors")
        isa = "" if self.target.device != FEWER else f" with {widest} alone"
        return f"{self.candidate.label} of {self.model}{isa}"

    @property
    def variant(self) -> str:
        """The template with the dtypes that it serves here, as in ``linear/packed (fp32)``."""
        return f"{self.template.id} ({', '.join(self.template.dtypes)})"

    @property
    def job(self) -> EvaluationJob:
        """The subject as an evaluator takes it."""
        return EvaluationJob(candidate=self.candidate, region=self.region, template=self.template, source=self.source)

    @property
    def numbers(self) -> dict[str, int]:
        """The candidate's integer parameters, with ``LANES`` and ``NATIVE`` as in `extents.Asked`."""
        isa = self.target.isa
        lanes = 16 if "avx512f" in isa else 8 if "avx2" in isa else 4  # as in `_include/simd.h`
        told = {name: value for name, value in self.candidate.params if isinstance(value, int)}
        return {**told, "LANES": lanes, "NATIVE": int(lanes == 16 and "avx512_bf16" in isa)}


FEWER = "fewer instructions"
"""The device's name in a target without some of the host's instruction sets."""


def lesser(target: Target) -> Target | None:
    """Return the same host with AVX2 and nothing wider; None where the host has nothing wider, or no AVX2."""
    fewer = tuple(name for name in target.isa if not name.startswith(("avx512", "amx")))
    return replace(target, isa=fewer, device=FEWER) if fewer != target.isa and "avx2" in fewer else None


def regions(target: Target, folder: Path, shapes: Iterable[Shape] = SHAPES) -> dict[str, list[tuple[str, Region]]]:
    """Return the regions of every shape's decode steps and of its prefill, by kind.

    Each comes with its model's name. Regions above the limits in bytes are left out, and so are repeated ones.
    """
    found: dict[str, list[tuple[str, Region]]] = {}
    seen: set[str] = set()
    for shape in shapes:
        path = hollow(shape, folder / f"{shape.preset.name}-{shape.dtype}")
        captured = capture(path, context=shape.context)
        batches = _BATCHES if backend_of(target.kind).serves_batches else (1,)
        prefill = Regime(phase="prefill", context=(1, shape.context))
        for regime in (*regimes(shape.context, target.kind, batches), prefill):
            graph, tokens = graph_of(captured, regime, target.kind)
            for region in partition(graph, regime, tokens=tokens).regions:
                held = region.cost.weight_bytes + region.cost.state_bytes
                table = sum(port.numel * ITEM_BYTES[port.dtype] for port in region.ports if port.role == "weight")
                if region.id not in seen and held <= MOST_BYTES and table <= MOST_TABLE_BYTES:
                    seen.add(region.id)
                    found.setdefault(region.kind, []).append((f"{shape.preset.name} {shape.dtype}", region))
    return found


def hollow(shape: Shape, folder: Path) -> Path:
    """Write a checkpoint with the right names and shapes whose tensors are a hole in a file, which takes no space."""
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
    """Return the templates that ship with the package."""
    return load([default_root()], kinds=facts(), layouts=tuple(LAYOUTS))


def subjects(
    found: Mapping[str, list[tuple[str, Region]]],
    catalog: Catalog,
    target: Target,
    languages: Collection[Language],
    rng: random.Random,
) -> dict[str, list[Subject]]:
    """Return, by kind of region, subjects for every template of that kind in one of `languages`.

    Each template gets its default at a drawn region, a drawn point (on a CPU with wide vectors, for a host without
    them), and another drawn point where no extent is a multiple of a vector or tile.
    """
    made: dict[str, list[Subject]] = {}
    fewer = lesser(target) if "cpp" in languages else None
    for template in catalog.templates:
        if template.language not in languages or not meant_for(template, target):
            continue
        served = [
            (name, region)
            for name, region in found.get(template.region, [])
            if region.regime.phase in template.phases and _point(template, region, target, None) is not None
        ]
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
                source = specialise(template, region, point.params, here)
                subject = Subject(
                    model=model, region=region, template=template, candidate=point, target=here, source=source
                )
                made.setdefault(template.region, []).append(subject)
    return made


def chosen(made: Mapping[str, Sequence[Subject]], only: str) -> dict[str, list[Subject]]:
    """Return the subjects in whose template's id the regular expression `only` is found, by kind of region."""
    found = {kind: [one for one in these if re.search(only, one.template.id)] for kind, these in made.items()}
    return {kind: these for kind, these in found.items() if these}


def _point(template: Template, region: Region, target: Target, rng: random.Random | None) -> Candidate | None:
    """Return a legal point: without `rng` the default if it is legal, otherwise a drawn one; None if there is none."""
    space = Space(region, [template], target)
    default = space.default(template.id)
    if rng is None and default is not None and _legal(template, region, default, target):
        return default
    points = list(space)
    drawn = (rng or random.Random(0)).sample(points, len(points))
    return next((point for point in drawn if _legal(template, region, point, target)), None)


def _legal(template: Template, region: Region, point: Candidate, target: Target) -> bool:
    return not errors(check(region, template, point.params, target, layout_fits=fits))
