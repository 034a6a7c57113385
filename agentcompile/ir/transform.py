"""Transformations of candidates: legal changes of one point of a space into another, and sequences of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentcompile.ir.template import ParamValue


@dataclass(frozen=True, slots=True, kw_only=True)
class SetParams:
    """A change of parameter values: of one, or of several where no single change is legal by itself."""

    kind: Literal["set-params"] = "set-params"
    values: tuple[tuple[str, ParamValue], ...]
    """(parameter, new value), sorted by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTemplate:
    """A change to another template: parameters of the same name keep values that it allows, others are defaults."""

    kind: Literal["switch-template"] = "switch-template"
    template: str


Transform = SetParams | SwitchTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The `steps` that lead, one after another, from the default of `template` to a candidate."""

    template: str
    steps: tuple[Transform, ...] = ()
