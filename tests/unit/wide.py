"""A question that is about as long as a real one."""

from __future__ import annotations

import random
from dataclasses import replace

from agentcompile.ir.advice import Question
from agentcompile.ir.template import Param
from agentcompile.space import Space
from tests.unit import fakes
from tests.unit.answers import question


def wide(rows: int = 4096) -> Question:
    """A region of hundreds of candidates with sixty trials, about as long a question as a real one."""
    numbers = (
        Param(name="TILES", domain=(1, 2, 4, 8, 16), default=1, about="rows side by side, each a stream " * 3),
        Param(name="AHEAD", domain=tuple(range(0, 102400, 4096)), default=4096, about="bytes ahead of a load " * 3),
        Param(name="INTO", domain=(1, 2, 3), default=1, about="the level of cache that is read into " * 3),
    )
    words = Param(name="FORM", domain=("mv", "linear"), default="mv", about="the routine")
    templates = (
        fakes.rows_template(id="linear/packed", arch=(), requires=("TILES > 0",), params=numbers, about="packed " * 20),
        fakes.rows_template(id="linear/form", arch=(), requires=(), params=(words,), workspaces=(), layouts=()),
    )
    region = fakes.linear_region(rows=rows)
    space = Space(region, templates, fakes.target())
    candidates = tuple(space)
    draw = random.Random(1)
    history = tuple(fakes.measured(one, draw.uniform(-1, 1)) for one in draw.sample(candidates, 60))
    return replace(question(), region=region, templates=space.templates, candidates=candidates, history=history)


WIDE = wide()
