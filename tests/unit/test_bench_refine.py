"""A study of arms of agents: its statistics, its limits, going on after a kill, its files; gates are scripts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import ModelRequest, Reply
from agentcompile.agents.agents import LONGEST_ANSWER, Agent, Team
from agentcompile.agents.refining import ARMS, Asks
from agentcompile.agents.tree import Node
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.attempt import Evaluated, Role, Written
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.trial import BuildFailed, Crashed, Incorrect, NumericReport, Rejected, TimedOut
from bench.harness.ledger import Ledger as Kept
from bench.refine.gates import Gates, Untimed
from bench.refine.markdown import rows as table
from bench.refine.result import Attempt, Beside, Row, Study, TaskFacts, compiled
from bench.refine.sessions import Limits, Runner
from bench.refine.summary import BASELINE, curve, fast_share, geometric, summaries, wilson
from bench.refine.tables import report
from tests.unit.refined import CONTRACT, RAN, Gate, Wires, capable

FORMS = ("pytorch", "torch.compile")


def beside(*ratios: float, comparison: str = "FASTER", contended: bool = False) -> tuple[Beside, ...]:
    """A fresh timing beside each form of PyTorch."""
    return tuple(
        Beside(arm=arm, speedup=ratio, low=ratio / 1.1, high=ratio * 1.1, comparison=comparison, contended=contended)
        for arm, ratio in zip(FORMS, ratios, strict=True)
    )


def row(task: str, arm: str, *ratios: float, seed: int = 0, **more: Any) -> Row:
    attempts = (Attempt(parent=0, what="measured", roles=("code",)),) * 2
    found = {"best": 1 if ratios else 0, "us": 10.0, "beside": beside(*ratios) if ratios else (), "compiled": 2}
    made = {"attempts": attempts, "ended": "attempts", "stopped": "2 of 2", "correct": 1, **found, **more}
    return Row(task=task, arm=arm, seed=seed, **made)


def study(*rows: Row, **more: Any) -> Study:
    plain = Study(
        arms=tuple(dict.fromkeys(one.arm for one in rows)),
        seeds=(0,),
        attempts=2,
        tokens=1000,
        strategy="greedy",
        models=("somebody",),
        device="Test CPU",
        threads=2,
        tasks=tuple(TaskFacts(name=name, text="t") for name in dict.fromkeys(one.task for one in rows)),
        rows=rows,
    )
    return replace(plain, **more)


@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(5, 10, 0.2366, 0.7634), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (1, 32, 0.0055, 0.1575), (0, 0, 0.0, 1.0)],
)
def test_a_rate_has_the_score_interval(count: int, of: int, low: float, high: float) -> None:
    found = wilson(count, of)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))
    assert found.low <= found.value <= found.high


def test_a_mean_of_speedups_is_geometric_and_its_interval_holds_it() -> None:
    value, low, high = geometric([0.5, 2.0, 4.0])
    assert low is not None
    assert high is not None
    assert value == pytest.approx(4 ** (1 / 3))
    assert 0.5 <= low < value < high <= 4.0
    assert geometric([2.0, 2.0]) == (pytest.approx(2.0),) * 3
    assert geometric([2.0]) == (2.0, None, None), "one task says nothing of others"
    assert geometric([0.5, 2.0, 4.0]) == (value, low, high), "it draws the same numbers every time"


def test_a_kernel_counts_as_fast_only_when_it_surely_beats_every_form_of_pytorch() -> None:
    assert row("a", "stark", 2.0, 1.2).fast
    assert not row("a", "stark", 2.0, 1.0, beside=(beside(2.0, 1.0)[0], beside(2.0, 1.0, comparison="SAME")[1])).fast
    assert not row("a", "stark").fast
    least = row("a", "stark", 2.0, 1.2).least
    assert least is not None
    assert least.arm == "torch.compile", "the baseline is the fastest form"


def test_the_curve_falls_from_the_share_that_was_solved() -> None:
    rows = [row("a", "x", 3.0, 2.0), row("b", "x", 1.5, 0.8), row("c", "x"), row("d", "x", 2.0, 2.0)]
    assert curve(rows) == ((0.8, 0.75), (2.0, 0.5))
    assert fast_share(rows, 1.0) == 0.5
    assert fast_share(rows, 1.0, "pytorch") == 0.75
    assert fast_share([], 1.0) == 0.0


def test_a_task_counts_once_in_a_mean_and_sessions_count_in_rates() -> None:
    rows = (row("a", "x", 4.0, 2.0), row("a", "x", 1.0, 2.0, seed=1), row("b", "x", 8.0, 2.0), row("c", "x"))
    one = summaries(study(*rows))[0]
    means = {mean.over: mean for mean in one.means}
    assert (means["pytorch"].tasks, means["pytorch"].value) == (2, pytest.approx(4.0))
    assert means[BASELINE].value == pytest.approx(math.sqrt(math.sqrt(2.0) * 2.0))
    assert (one.success.count, one.success.of, one.fast.count) == (3, 4, 3)
    assert (one.compiled.count, one.compiled.of, one.correct.count) == (8, 8, 4)
    assert one.ended == (("attempts", 4),)


@pytest.mark.parametrize(
    ("verdict", "built"),
    [
        (Rejected(findings=()), False),
        (BuildFailed(log=""), False),
        (TimedOut(stage="build", limit_s=1.0), False),
        (TimedOut(stage="measure", limit_s=1.0), True),
        (Crashed(stage="validate", signal=11), True),
        (Incorrect(report=NumericReport(checks=(), error_ratio=0.0, cases=1, repeats=1)), True),
        (RAN, True),
        (None, False),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_what_compiled_is_told_from_the_verdict(verdict: Any, built: bool) -> None:
    assert compiled(verdict) is built


def test_a_report_names_every_session_its_end_and_what_disturbed_it() -> None:
    rows = (row("softmax", "stark", 2.0, 1.2, ended="tokens"), row("softmax", "sampling"))
    disturbed = replace(rows[0], beside=beside(2.0, 1.2, contended=True))
    text = "\n".join(report(study(disturbed, rows[1])))
    for part in ("softmax", "2.00× (1.82–2.20)", "faster, contended", "tokens", "none", "100% (21%–100%)", "estimates"):
        assert part in text
    assert "estimates" not in "\n".join(report(study(*rows)))


def test_a_study_is_read_as_it_was_written() -> None:
    one = study(row("a", "stark", 2.0, 1.2), row("b", "stark"))
    assert decode(Study, json.loads(json.dumps(encode(one))), "study") == one


# Sessions


class Killed(BaseException):
    """The process dies here."""


@dataclass
class World:
    """A study whose processes may die at a step: a question, an answer, a verdict."""

    folder: Path
    limits: Limits = field(default_factory=lambda: Limits(attempts=3, tokens=0, strategy="greedy"))
    dies_at: int = 0
    silent_from: int = 1 << 30
    untimed: Untimed | None = None
    steps: int = 0
    asked: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise Killed

    def runner(self, *, replays: bool = False) -> Runner:
        self.folder.mkdir(exist_ok=True)
        return Runner(
            opens=self.opens,
            teams=self.replayed if replays else self.team,
            folder=self.folder / "sessions",
            ledger=Kept(self.folder / "partial.jsonl", ("t",)),
            limits=self.limits,
            say=self.lines.append,
            goes_on="agentcompile bench refine again",
            replays=replays,
            clock=lambda: 0.0,
        )

    @contextmanager
    def opens(self, path: Path, text: str) -> Iterator[Gates]:
        self.opened.append(path.stem)
        world = self

        class Mortal(Gate):
            def evaluate(self, written: Written) -> Evaluated:
                world.step()
                return super().evaluate(written)

        def again(node: Node) -> tuple[Beside, ...] | Untimed:
            return self.untimed or beside(1000.0 / node.ns, 900.0 / node.ns)

        facts = TaskFacts(name=path.stem, text=text, us={"pytorch": 1.0})
        yield Gates(contract=CONTRACT, evaluator=Mortal(), facts=facts, device="Test CPU", again=again)

    def agents(self, arm: str, name: str, wire: Any) -> Team:
        roles: tuple[Role, ...] = ("plan", "code", "debug")
        ceilings = Ceilings(calls=1000, tokens=10**7, answer=LONGEST_ANSWER)
        agents = {role: Agent(model="m", wire=wire) for role in roles}
        return Team(agents, Ledger(ceilings), Cassette(self.folder / "answers" / name), counts_recorded=False)

    @contextmanager
    def team(self, arm: str, name: str) -> Iterator[Asks]:
        world = self

        class Mortal(Wires):
            def send(self, ask: ModelRequest) -> Reply:
                world.step()
                if len(world.asked) >= world.silent_from:
                    return Reply(status=401, text="who are you?")
                world.asked.append(f"{name} {ask.user}")
                reply = super().send(ask)
                world.step()
                return reply

        yield self.agents(arm, name, Mortal(lambda data: capable(data, data["role"])))

    @contextmanager
    def replayed(self, arm: str, name: str) -> Iterator[Asks]:
        yield self.agents(arm, name, None)

    def rows(self, arms: Sequence[str] = ("sampling", "stark"), *, replays: bool = False) -> tuple[Row, ...]:
        path = self.folder.parent / "task.py"
        path.write_text("a task")
        return next(iter(self.runner(replays=replays).run([path], arms, [0])))[1]


def world(tmp_path: Path, name: str = "world", **more: Any) -> World:
    return World(folder=tmp_path / name, **more)


def bare(rows: Sequence[Row]) -> list[Row]:
    """Rows without the seconds in which models answered."""
    return [replace(one, asked_s=0.0) for one in rows]


def test_every_arm_ends_at_the_same_number_of_attempts(tmp_path: Path) -> None:
    rows = world(tmp_path).rows(tuple(ARMS))
    assert [one.arm for one in rows] == list(ARMS)
    assert {len(one.attempts) for one in rows} == {3}
    assert {one.ended for one in rows} == {"attempts"}
    assert all(one.success and one.beside for one in rows)
    assert rows[0].calls > rows[1].calls == 3, "three agents ask more for an attempt"


def test_every_arm_ends_at_the_same_ceiling_on_tokens(tmp_path: Path) -> None:
    limits = Limits(attempts=100, tokens=700, strategy="greedy")
    rows = world(tmp_path, limits=limits).rows(tuple(ARMS))
    assert {one.ended for one in rows} == {"tokens"}
    assert all(one.tokens + 110 >= 700 and one.tokens < 700 + 110 for one in rows)
    assert "ceiling" in rows[0].stopped


def test_a_study_that_was_killed_anywhere_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    whole = world(tmp_path, "whole")
    expected = bare(whole.rows())
    assert whole.steps > 20
    for at in range(1, whole.steps + 1):
        mortal = world(tmp_path, f"killed-{at}", dies_at=at)
        with pytest.raises(Killed):
            mortal.rows()
        mortal.dies_at = 0
        assert bare(mortal.rows()) == expected, at
        assert len(mortal.asked) <= len(whole.asked) + 1, "only an answer that was on its way is asked for again"


def test_finished_sessions_are_not_run_again(tmp_path: Path) -> None:
    one = world(tmp_path)
    rows = one.rows()
    asked, opened = len(one.asked), len(one.opened)
    assert one.rows() == rows
    assert (len(one.asked), len(one.opened)) == (asked, opened)
    assert one.rows(("sampling", "stark", "reflexion"))[:2] == rows
    assert len(one.opened) == opened + 1, "the task is opened for what is missing"


def test_a_session_that_nobody_answers_ends_the_study_with_the_command_that_goes_on(tmp_path: Path) -> None:
    one = world(tmp_path, silent_from=4)
    with pytest.raises(AgentCompileError) as caught:
        one.rows()
    assert caught.value.exit_code is ExitCode.ENVIRONMENT
    assert "nobody answers" in caught.value.message
    assert "agentcompile bench refine again" in caught.value.hint
    one.silent_from = 1 << 30
    assert bare(one.rows()) == bare(world(tmp_path, "whole").rows())


def test_a_replay_makes_the_same_rows_and_ends_where_the_ceiling_was(tmp_path: Path) -> None:
    limits = Limits(attempts=100, tokens=700, strategy="greedy")
    one = world(tmp_path, limits=limits)
    rows = one.rows()
    (one.folder / "partial.jsonl").unlink()
    for path in one.folder.glob("sessions/*/*"):
        path.unlink()
    asked = len(one.asked)
    assert one.rows(replays=True) == rows
    assert len(one.asked) == asked


@pytest.mark.parametrize("wrong", [True, False])
def test_a_kernel_that_fails_its_fresh_timing_counts_as_none(wrong: bool, tmp_path: Path) -> None:
    (found,) = world(tmp_path, untimed=Untimed(reason="element: 2 > 1", wrong=wrong)).rows(("sampling",))
    assert found.success is not wrong
    assert not found.fast
    assert found.untimed == "element: 2 > 1"


def test_a_replay_without_an_answer_says_so_and_goes_on(tmp_path: Path) -> None:
    rows = world(tmp_path).rows(replays=True)
    assert {one.ended for one in rows} == {"unanswered"}
    assert "no answer" in rows[0].stopped


def test_a_page_shows_each_task_with_the_speedup_of_every_arm_over_the_fastest_form() -> None:
    tasks = (TaskFacts(name="a", text="t", us={"pytorch": 30.0, "torch.compile": 20.0}, floor_us=2.5),)
    tasks += (TaskFacts(name="b", text="t"),)
    made = study(
        row("a", "stark", 2.0, 1.5), row("a", "sampling", beside=beside(3.0, 2.2, contended=True)), tasks=tasks
    )
    assert list(table(replace(made, rows=(*made.rows, row("b", "stark"))))) == [
        "| task | PyTorch's fastest form, µs | roofline, µs | stark | sampling |",
        "|---|--:|--:|--:|--:|",
        "| a | 20.0 | 2.50 | 1.50× (1.36–1.65), 1 of 2 | 2.20× (2.00–2.42, contended), 1 of 2 |",
        "| b | - | - | none, 1 of 2 | - |",
    ]
