"""A campaign of mutants on one small kernel: faults are killed, and gates that accept everything are found out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.bench.campaign import false_rejects
from agentcompile.bench.campaign.drawing import Building, code_digest, draw
from agentcompile.bench.campaign.false_rejects import repeat
from agentcompile.bench.campaign.gates import Gates
from agentcompile.bench.campaign.mutants import attack, report, sliced
from agentcompile.bench.campaign.report import Campaign
from agentcompile.bench.campaign.subjects import Subject

from agentcompile.build import compile
from agentcompile.build.binary import Binary
from agentcompile.build.toolchain import find_toolchain
from agentcompile.evaluation.jobs import EvaluationJob, Prepared
from agentcompile.evaluation.machine import Machine
from agentcompile.ir.template import Depth, Launch, Source
from agentcompile.ir.trial import NumericReport, Verdict
from agentcompile.materialize import specialise
from agentcompile.space import Space
from agentcompile.system.probe import probe
from agentcompile.system.store import Store
from tests.cpu import jobs
from tests.templates.shapes import Extents, region
from tests.templates.suite import CATALOG


class AcceptsEverything:
    """An evaluator whose comparator is always true."""

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: Depth = "search"
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        for job in jobs:
            report = NumericReport(checks=(), error_ratio=1.0, cases=1, repeats=1)
            yield job, Prepared(job=job, binary=Binary(digest="d", path="p"), report=report)

    def close(self) -> None:
        """Nothing runs."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    toolchain = find_toolchain()
    folder = tmp_path_factory.mktemp("mutants")
    target = probe(toolchain=toolchain.name, threads=2)
    store = Store(folder / "store")
    return Machine(target=target, toolchain=toolchain, store=store, hashes=folder / "w", device="cpu")


@pytest.fixture(scope="module")
def subject(machine: Machine) -> Subject:
    template = CATALOG.get("silu-mul/plain")
    made = region("silu-mul", Extents(rows=(97,)))
    point = Space(made, [template], machine.target).default(template.id)
    assert point is not None
    source = specialise(template, made, (), machine.target)
    return Subject(model="none", region=made, template=template, candidate=point, target=machine.target, source=source)


def test_a_evaluator_that_accepts_everything_leaves_survivors(machine: Machine, subject: Subject) -> None:
    gates = Gates(machine, seed=0, evaluator=AcceptsEverything())
    asked = Campaign(count=4, seed=1, seconds=0.0)
    attacked = attack({"silu-mul": [subject]}, gates, machine, asked, lambda _: None)
    told = report([attacked])
    assert not told.ok
    # Which are drawn depends on the machine's instructions; some are equivalent, and are no survivors.
    survived = told.figures["survived"]
    assert {fate.fate for fate in attacked.fates} <= {"survived", "equivalent"}
    assert survived == sum(fate.fate == "survived" for fate in attacked.fates) >= 2
    assert len(told.failures) == survived + 1, "each, and that a trap is accepted"
    assert told.figures["score"] == "0.0 %"


def test_faults_are_killed_and_a_run_that_was_stopped_goes_on(
    machine: Machine, subject: Subject, tmp_path: Path
) -> None:
    asked = Campaign(count=3, seed=0, seconds=0.0, partial=tmp_path / "partial.jsonl")
    with Gates(machine, seed=0) as gates:
        first = attack({"silu-mul": [subject]}, gates, machine, asked, lambda _: None)
    assert first.originals["passed"] == first.originals["originals"] == 1
    assert "killed" in {fate.fate for fate in first.fates}
    again = attack({"silu-mul": [subject]}, Gates(machine, seed=0, evaluator=Silent()), machine, asked, lambda _: None)
    assert again == first


class Silent(AcceptsEverything):
    """An evaluator that must not be asked."""

    def prepare(
        self, jobs: Iterable[EvaluationJob], *, depth: Depth = "search"
    ) -> Iterator[tuple[EvaluationJob, Prepared | Verdict]]:
        raise AssertionError("everything is in the ledger")


class RefusesOneSeed:
    """Validations of which one seed's fails."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, Depth]] = []

    def refuses(self, subject: Subject, seed: int, depth: Depth) -> str:
        self.asked.append((seed, depth))
        return "element: one too large" if seed == 37 else ""


def test_a_false_reject_fails_its_campaign_and_no_seed_is_tried_twice(subject: Subject, tmp_path: Path) -> None:
    asked, many = Campaign(count=100, seed=0, seconds=0.0, partial=tmp_path / "partial.jsonl"), RefusesOneSeed()
    for _ in range(2):
        told = false_rejects.report([repeat({"silu-mul": [subject, subject]}, many, asked, lambda _: None)])
        assert told.figures["validations"] == told.tried == len(many.asked) == 100
        assert told.failures == (f"{subject.name}: seed 37: element: one too large",)
    assert [seed for seed, depth in many.asked if depth == "accept"] == [49, 99]


def test_shares_try_all_turns_once_and_each_share_every_template(subject: Subject) -> None:
    other = replace(subject, template=replace(subject.template, dtypes=("fp16",)))
    made, found, tried = {"silu-mul": [subject, other]}, list[false_rejects.Findings](), list[tuple[int, Depth]]()
    for share in range(2):
        asked, many = Campaign(count=70, seed=1, seconds=0.0, share=share, shares=2), RefusesOneSeed()
        found.append(repeat(made, many, asked, lambda _: None))
        assert min(found[-1].tried.values()) >= 30
        tried += many.asked
    assert sorted(seed for seed, _ in tried) == sorted([*range(70, 140)] * 2)
    told = false_rejects.report(found)
    assert told.tried == 140
    assert told.figures["validations of the least tried template"] == 70
    assert told.figures["validations at acceptance"] == sum(depth == "accept" for _, depth in tried) == 2


def test_shares_have_different_subjects_and_their_scores_are_of_all_mutants(machine: Machine, subject: Subject) -> None:
    text = replace(subject.source, text=subject.source.text + "// another text, the same program\n")
    made = {"silu-mul": [subject, replace(subject, source=text)]}
    gates, found = Gates(machine, seed=0, evaluator=AcceptsEverything()), []
    for share in range(2):
        asked = Campaign(count=5, seed=1, seconds=0.0, share=share, shares=2)
        mine = sliced(made, asked)
        assert mine == {"silu-mul": [made["silu-mul"][share]]}
        found.append(attack(mine, gates, machine, asked, lambda _: None))
    assert [len(one.fates) for one in found] == [3, 2]
    killed = replace(found[0], fates=tuple(replace(fate, fate="killed") for fate in found[0].fates))
    told = report([killed, found[1]])
    codes = {fate.code for one in found for fate in one.fates}
    assert told.tried == told.figures["mutants"] == len(codes)
    assert told.figures["score"] == f"{100 * 3 / len(codes):.1f} %"
    same = [int(one.figures.get("drawn and the same machine code", 0)) for one in (told, *(report([f]) for f in found))]
    assert same[0] == same[1] + same[2] + 5 - len(codes), "what two shares drew is counted"


def test_no_two_mutants_and_no_original_have_the_same_machine_code(machine: Machine, subject: Subject) -> None:
    building, drawn = Building(machine), Counter[str]()
    mutants = draw({"silu-mul": [subject]}, building, 3, drawn)
    codes = [building.code(next(mutants).source) for _ in range(3)]
    assert len({*codes, building.code(subject.source)}) == 4
    commented = replace(subject.source, text=f"{subject.source.text}// the same program\n")
    assert building.code(commented) == building.code(subject.source)
    assert code_digest(b"no ELF") != code_digest(b"no elf")


GLOBALS = """constexpr unsigned ALL = {}; __device__ const float table[3] = {{1, {}, 3}}; __device__ int seen = {};
extern "C" __global__ void k(float* y, int i) {{ y[0] = {}; }}
"""


@pytest.mark.parametrize(
    ("reads", "told"),
    [("y[1]", (False, False, False)), ("table[i]", (False, True, True)), ("seen", (False, True, True))],
)
def test_a_constant_that_no_instruction_reads_makes_no_other_kernel(
    reads: str, told: tuple[bool, bool, bool], tmp_path: Path
) -> None:
    """Where one is read, what else lies beside it counts as read, too."""
    store = Store(tmp_path)

    def code(*texts: str) -> str:
        source = Source(
            language="cuda",
            text=GLOBALS.format(*texts, reads),
            launches=(Launch(entry="k", arguments=()),),
            workspaces=(),
            flags=("--gpu-architecture=sm_90a",),
        )
        built = compile(source, store, toolchain=jobs.toolchain(), limit_s=60)
        assert isinstance(built, Binary), built
        return code_digest(Path(built.path).read_bytes())

    first = code("7", "2", "1")
    others = [code("7", "2", "1"), code("7", "5", "1"), code("7", "2", "4")]
    assert tuple(other != first for other in others) == told
