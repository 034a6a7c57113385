"""Transformations of candidates: legal changes of one point of a space into another, and sequences of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.template import ParamValue


@dataclass(frozen=True, slots=True, kw_only=True)
class SetParams:
    """Gives parameters other values: one, or several where no single change is legal by itself."""

    kind: Literal["set-params"] = "set-params"
    values: tuple[tuple[str, ParamValue], ...]
    """(parameter, new value), sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTemplate:
    """Goes over to another template. Parameters of the same name keep values that it allows, others are at their
    defaults."""

    kind: Literal["switch-template"] = "switch-template"
    template: str


Transform = SetParams | SwitchTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """How a candidate is reached: `steps` one after another, from the default of `template`."""

    template: str
    steps: tuple[Transform, ...] = ()
