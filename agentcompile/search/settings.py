"""Settings of a search method as people write them: ``branching=4,exploration=1``."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

from agentcompile.errors import AgentCompileError

T = TypeVar("T")


def with_settings(name: str, method: T, settings: str) -> T:
    """Return `method`, a dataclass of numbers, with the values of ``key=value,…``.

    Raises:
        AgentCompileError: the strategy has no such setting, or the value is no number of its kind (usage).
    """
    made: Any = method
    known = {field.name: getattr(made, field.name) for field in dataclasses.fields(made)}
    values: dict[str, float] = {}
    for part in settings.split(","):
        key, _, value = part.partition("=")
        if key not in known:
            hint = f"settings of {name}: {', '.join(known)}"
            raise AgentCompileError(f"--strategy {name}: {key[:80]!r} is no setting", hint=hint)
        whole = isinstance(known[key], int)
        try:
            number = int(value) if whole else float(value)
        except ValueError:
            number = math.nan
        if not whole <= number <= 1_000_000:
            wanted = "a whole number, at least 1" if whole else "a number, at least 0"
            raise AgentCompileError(
                f"--strategy {name}: {key}={value[:40]} is not {wanted}", hint=f"its default: {key}={known[key]}"
            )
        values[key] = number
    changed: T = dataclasses.replace(made, **values)
    return changed
