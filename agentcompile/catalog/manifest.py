"""The shape of template.toml as people write it, and its translation into a `Template`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from agentcompile.ir.graph import Phase
from agentcompile.ir.template import Accumulation, Language, Launch, Param, ParamValue, Template, Workspace

Count = int | str
"""A whole number or an expression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestParam:
    """``[params.ROWS]``."""

    domain: tuple[ParamValue, ...]
    default: ParamValue
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestWorkspace:
    """``[[workspaces]]``."""

    name: str
    dtype: Literal["fp32", "int64", "int32", "bf16"]
    count: Count
    initial: Literal["undefined", "zero"] = "undefined"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLaunch:
    """``[[launch]]``; everything after `arguments` is read on CUDA alone."""

    entry: str
    arguments: tuple[str, ...]
    grid: tuple[Count, ...] = ()
    block: tuple[Count, ...] = ()
    shared_bytes: Count = 0
    cooperative: bool = False
    cluster: tuple[Count, ...] = ()
    pdl: bool = False
    early: tuple[str, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()
    pitched: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole of template.toml."""

    region: str
    language: Language
    about: str
    dtypes: tuple[Literal["bf16", "fp16", "fp32"], ...]
    arch: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ("decode",)
    tokens: tuple[int, int] = (1, 1)
    accumulation: Accumulation = "float32"
    deterministic: bool = True
    requires: tuple[str, ...] = ()
    rounds: tuple[tuple[str, Literal["bf16", "fp16", "fp32"]], ...] = ()
    call: str = ""
    layouts: dict[str, str] = field(default_factory=dict)
    params: dict[str, ManifestParam] = field(default_factory=dict)
    workspaces: tuple[ManifestWorkspace, ...] = ()
    launch: tuple[ManifestLaunch, ...] = ()

    def template(self, *, id: str, source_name: str, source: str, includes: tuple[tuple[str, str], ...]) -> Template:
        """The same facts as a `Template`, with the texts that lie beside the manifest."""
        return Template(
            id=id,
            region=self.region,
            language=self.language,
            about=self.about,
            dtypes=self.dtypes,
            arch=self.arch,
            phases=self.phases,
            tokens=self.tokens,
            layouts=tuple(sorted(self.layouts.items())),
            requires=self.requires,
            params=tuple(
                Param(name=name, domain=param.domain, default=param.default, about=param.about)
                for name, param in self.params.items()
            ),
            rounds=self.rounds,
            accumulation=self.accumulation,
            deterministic=self.deterministic,
            workspaces=tuple(
                Workspace(name=space.name, dtype=space.dtype, count=str(space.count), initial=space.initial)
                for space in self.workspaces
            ),
            launches=tuple(_launch(launch) for launch in self.launch),
            call=self.call,
            source_name=source_name,
            source=source,
            includes=includes,
        )


def _launch(launch: ManifestLaunch) -> Launch:
    return Launch(
        entry=launch.entry,
        arguments=launch.arguments,
        grid=tuple(str(extent) for extent in launch.grid),
        block=tuple(str(extent) for extent in launch.block),
        shared_bytes=str(launch.shared_bytes),
        cooperative=launch.cooperative,
        cluster=tuple(str(extent) for extent in launch.cluster),
        pdl=launch.pdl,
        early=launch.early,
        in_place=launch.in_place,
        pitched=launch.pitched,
    )
