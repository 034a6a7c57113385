"""The structure of template.toml as people write it, and its translation into a `Template` for each of its dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentcompile.ir.graph import Phase
from agentcompile.ir.template import (
    Accumulation,
    Language,
    Launch,
    Param,
    ParamValue,
    Template,
    TensorMap,
    Workspace,
)

Count = int | str
"""A whole number or an expression."""
DType = Literal["bf16", "fp16", "fp32"]
Rounds = tuple[tuple[str, DType], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestParam:
    """The table ``[params.ROWS]``."""

    domain: tuple[ParamValue, ...]
    default: ParamValue
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestDTypeParam:
    """The table ``[dtype.fp32.params.ROWS]``; what is absent is as in ``[params.ROWS]``."""

    domain: tuple[ParamValue, ...] | None = None
    default: ParamValue | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestDType:
    """The table ``[dtype.fp32]``: what replaces the common values for one dtype; `layouts` and `params` by name."""

    kernel: str | None = None
    arch: tuple[str, ...] | None = None
    accumulation: Accumulation | None = None
    requires: tuple[str, ...] | None = None
    rounds: Rounds | None = None
    layouts: dict[str, str] = field(default_factory=dict)
    params: dict[str, ManifestDTypeParam] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestWorkspace:
    """A table ``[[workspaces]]``."""

    name: str
    dtype: Literal["fp32", "int64", "int32", "bf16"]
    count: Count
    initial: Literal["undefined", "zero"] = "undefined"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestMaps:
    """A table ``[[launch.maps]]``: the ports `of` which boxes of `box` rows are copied."""

    of: tuple[str, ...]
    box: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestLaunch:
    """A table ``[[launch]]``; everything after `arguments` is read on CUDA only."""

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
    token_major: tuple[tuple[str, str], ...] = ()
    maps: tuple[ManifestMaps, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The whole of template.toml.

    `kernel` is a file beside it, or one of another template, such as ``linear/rows/kernel.cpp``; empty for the default
    name.
    """

    region: str
    language: Language
    about: str
    dtypes: tuple[DType, ...]
    kernel: str = ""
    arch: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ("decode",)
    tokens: tuple[int, int] = (1, 1)
    accumulation: Accumulation = "float32"
    deterministic: bool = True
    requires: tuple[str, ...] = ()
    rounds: Rounds = ()
    call: str = ""
    layouts: dict[str, str] = field(default_factory=dict)
    params: dict[str, ManifestParam] = field(default_factory=dict)
    workspaces: tuple[ManifestWorkspace, ...] = ()
    launch: tuple[ManifestLaunch, ...] = ()
    dtype: dict[str, ManifestDType] = field(default_factory=dict)

    def parts(self) -> tuple[Manifest, ...]:
        """Return manifests without dtype tables, in the order of `dtypes`, each with the facts that its dtypes see.

        There is one for each dtype with a table of its own, and one for all other dtypes together.
        """
        groups: dict[str, list[DType]] = {}
        for name in self.dtypes:
            groups.setdefault(name if name in self.dtype else "", []).append(name)
        return tuple(self._seen(own, self.dtype.get(name)) for name, own in (groups or {"": []}).items())

    def _seen(self, dtypes: Sequence[DType], told: ManifestDType | None) -> Manifest:
        own = told or ManifestDType()
        given = {name: getattr(own, name) for name in ("kernel", "arch", "accumulation", "requires", "rounds")}
        return replace(
            self,
            dtypes=tuple(dtypes),
            dtype={},
            layouts=self.layouts | own.layouts,
            params={name: _param(param, own.params.get(name)) for name, param in self.params.items()},
            **{name: value for name, value in given.items() if value is not None},
        )

    def template(self, *, id: str, source_name: str, source: str, includes: tuple[tuple[str, str], ...]) -> Template:
        """Return the same facts as a `Template`, together with the texts of the files beside the manifest."""
        same = (
            "region", "language", "about", "dtypes", "arch", "phases", "tokens", "requires", "rounds", "accumulation",
            "deterministic", "call",
        )  # fmt: skip
        return Template(
            id=id,
            layouts=tuple(sorted(self.layouts.items())),
            params=tuple(
                Param(name=name, domain=param.domain, default=param.default, about=param.about)
                for name, param in self.params.items()
            ),
            workspaces=tuple(
                Workspace(name=space.name, dtype=space.dtype, count=str(space.count), initial=space.initial)
                for space in self.workspaces
            ),
            launches=tuple(_launch(launch) for launch in self.launch),
            source_name=source_name,
            source=source,
            includes=includes,
            **{name: getattr(self, name) for name in same},
        )


def _param(common: ManifestParam, own: ManifestDTypeParam | None) -> ManifestParam:
    if own is None:
        return common
    domain = common.domain if own.domain is None else own.domain
    return replace(common, domain=domain, default=common.default if own.default is None else own.default)


def _launch(launch: ManifestLaunch) -> Launch:
    same = ("entry", "arguments", "cooperative", "pdl", "early", "in_place", "pitched", "token_major")
    geometry: dict[str, Any] = {name: tuple(map(str, getattr(launch, name))) for name in ("grid", "block", "cluster")}
    return Launch(
        shared_bytes=str(launch.shared_bytes),
        maps=tuple(TensorMap(of=name, box=str(maps.box)) for maps in launch.maps for name in maps.of),
        **geometry,
        **{name: getattr(launch, name) for name in same},
    )
