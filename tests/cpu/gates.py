"""The gate before a lock over plans that were written down, and kernels that are wrong in the whole model alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentcompile import catalog
from agentcompile.evaluation.machine import this_machine
from agentcompile.events import Event
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Kernel, Plan
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.regions.kinds import facts as kinds
from agentcompile.verification.whole_model import Feeder, WholeModelGate
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT

PLANTED = {
    "wrong": "if (at > 30) at = 0;",
    "once": "if (at == 5) at = 0;",
    "crash": "if (at > 30) *(volatile int*)nullptr = 1;",
    "hang": "while (at > 30) usleep(1000);",
    "slow": "usleep(60000); (void)at;",
    "killed": "if (at > 30) kill(getpid(), SIGKILL);",
    "memory": r'if (at > 30) { dprintf(2, "what(): std::bad_alloc\n"); abort(); }',
}
"""What a kernel does beyond position 30, or at one alone, where no check of it alone looked."""

SYSTEM = ("hang", "slow", "killed", "memory")


def gate(home: Path, made: flows.Planted, evaluator: Feeder, events: list[Event], *folders: Path) -> WholeModelGate:
    here = this_machine(flows.options(home, made.model.captured.checkpoint, CONTEXT))
    here = replace(here, toolchain=replace(here.toolchain, keeps_state=True))  # some of these call the system
    found = catalog.load([catalog.default_root(), *folders], kinds=kinds(), layouts=LAYOUTS)
    return WholeModelGate(
        here=here,
        captured=made.model.captured,
        constants=made.model.constants,
        cuts=made.cuts,
        templates={template.digest: template for template in found.templates},
        evaluator=evaluator,
        emit=events.append,
        seed=0,
    )


def plans(made: flows.Planted) -> list[Plan]:
    covers = [*made.planned.decode, made.planned.prefill]
    return [
        Plan(regime=cut.partition.regime, parts=parts, exact=True) for cut, parts in zip(made.cuts, covers, strict=True)
    ]


def planted(made: flows.Planted, folder: Path, fault: str) -> tuple[list[Plan], str]:
    """The plans with a wrong kernel for the position tables, and the region that has it."""
    original, home = flows.ROOT / "templates/position-tables/copy", folder / "position-tables" / fault
    home.mkdir(parents=True)
    (home / "template.toml").write_text((original / "template.toml").read_text())
    text = (original / "kernel.cpp").read_text().replace("a.positions[0]", "at")
    text = text.replace("{\n", "{\n    long long at = a.positions[0];\n    " + PLANTED[fault] + "\n", 1)
    assert PLANTED[fault] in text
    if fault in SYSTEM:  # no space has a kernel that calls the system
        text = "#include <csignal>\n#include <cstdio>\n#include <cstdlib>\n#include <unistd.h>\n" + text
    (home / "kernel.cpp").write_text(text)
    (template,) = catalog.load([folder], kinds=kinds(), layouts=LAYOUTS).templates
    first, *others = plans(made)
    region = next(
        made.cuts[0].regions[part.region]
        for part in first.parts
        if made.cuts[0].regions[part.region].kind == "position-tables"
    )
    target = made.facts.target
    source = specialise(template, region, (), target)
    candidate = Candidate(
        region=region.id,
        regime=region.regime,
        template=template.id,
        template_digest=template.digest,
        params=(),
        target=target.digest,
    )
    kernel = Kernel(candidate=candidate, source=source.digest, speedup=9.0, half_width=0.0, decided_by="human")
    parts = tuple(replace(part, choice=kernel) if part.region == region.id else part for part in first.parts)
    return [replace(first, parts=parts), *others], region.id
