"""What collecting costs: the sum of two kinds of visit, what is said beside the limit, and one run on a real lock."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from agentcompile.bench.harness.rates import Visit
from agentcompile.bench.overhead import Pair, pair_of, run, summary

from agentcompile.errors import AgentCompileError
from agentcompile.evaluation.evaluator import WorkerEvaluator
from tests.cpu import flows


def visit(first_s: float, rest_s: float, others: float = 0.0) -> Visit:
    return Visit(
        first_s=first_s, token_s=rest_s, generations=1, waited=0.0, others=others, tries=1, firsts_s=(first_s,) * 3,
        rests_s=(rest_s, rest_s, 90.0),
    )  # fmt: skip


def pairs(*overheads: float, kept: bool = True) -> list[Pair]:
    return [Pair(process=0, collected_s=1 + share, plain_s=1.0, kept=kept) for share in overheads]


def test_a_round_is_the_time_of_the_tokens_after_the_first_in_either_kind() -> None:
    made = pair_of(1, [visit(2.0, 10.2), visit(2.0, 10.2)], [visit(0.0, 12.0), visit(0.0, 12.0)], 11)
    assert (made.process, made.kept) == (1, True)
    assert made.plain_s == pytest.approx(1.0)  # twelve seconds, of which two were the first token's
    assert made.collected_s == pytest.approx(1.02)


@pytest.mark.parametrize("disturbed", [0, 1])
def test_a_round_with_a_disturbed_visit_of_either_kind_is_dropped(disturbed: int) -> None:
    kinds = [[visit(1.0, 2.0), visit(1.0, 2.0)], [visit(0.0, 3.0), visit(0.0, 3.0)]]
    kinds[disturbed][1] = visit(1.0, 2.0, others=0.5)
    assert not pair_of(0, *kinds, 3).kept


def test_what_is_found_is_beside_its_limit() -> None:
    reached, missed, untold = (
        summary(pairs(*values)) for values in ((0.001, 0.002, 0.0), (0.05, 0.051, 0.049), (0.0, 0.03, 0.01))
    )
    assert reached is not None
    assert missed is not None
    assert untold is not None
    assert (reached.verdict, missed.verdict) == ("reached", "missed")
    assert untold.verdict.startswith("not told")
    assert reached.overhead == pytest.approx(math.exp(sum(map(math.log, (1.001, 1.002, 1.0))) / 3) - 1)
    assert reached.low < reached.overhead < reached.high


def test_too_few_rounds_and_too_many_dropped_ones_say_nothing() -> None:
    assert summary(pairs(0.0, 0.001)) is None
    assert summary([*pairs(0.0, 0.001, 0.002), *pairs(0.0, kept=False)]) is None
    assert summary([*pairs(0.0, 0.001, 0.002, 0.0), *pairs(9.0, kept=False)]) is not None


def test_what_cannot_be_measured_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run([])
    assert "--lock: agentcompile needs one" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(["--arm", "hf-eager", "--rounds", "0"])
    for words, said in ((("--model", "smaple"), "--model: 'smaple'"), (("--workload", "chats"), "--workload: 'chats'")):
        with pytest.raises(AgentCompileError, match=said):
            run(["--arm", "hf-eager", *words, "--cache", str(tmp_path)])


def test_a_first_token_longer_than_a_whole_generation_is_a_disturbed_round() -> None:
    made = pair_of(0, [visit(5.0, 2.0), visit(5.0, 2.0)], [visit(0.0, 3.0), visit(0.0, 3.0)], 3)
    assert not made.kept
    assert summary([made] * 3) is None


def test_a_lock_s_overhead_is_measured_with_its_rounds_kept(
    warm: Path, planted: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(warm))
    # The machine's rates, which the visits of a suite are preceded by, are no part of what is timed: once will do.
    monkeypatch.setattr(WorkerEvaluator, "ceiling", functools.cache(WorkerEvaluator.ceiling))
    out = tmp_path / "overhead.json"
    words = ["--lock", str(planted("sample", "bf16")), "--threads", str(flows.THREADS), "--workload", "chat-small"]
    words += ["--mode", "sampled", "--rounds", "3", "--processes", "1", "--cache", str(tmp_path), "--out", str(out)]
    code = run(words, calm=lambda share: None)
    found = json.loads(out.read_text())
    assert (found["workload"], found["limit"], len(found["pairs"])) == ("sample.chat-small.sampled", 0.01, 3)
    assert all(pair["collected_s"] > 0 for pair in found["pairs"])
    assert all(pair["plain_s"] > 0 for pair in found["pairs"] if pair["kept"])
    if found["found"] is None:  # others kept the machine busy
        assert code == 7
    else:
        low, high = found["found"]["low"], found["found"]["high"]
        assert code == (0 if high <= 0.01 else 5 if low > 0.01 else 7)
    assert str(tmp_path) not in out.read_text()
