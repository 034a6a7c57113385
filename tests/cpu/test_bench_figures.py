"""The figures' recipe on arms that are made up, and its PyTorch arm on a tiny checkpoint."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentcompile.bench.figures import recipe
from agentcompile.bench.figures.accuracy import divergence, interval, losses
from agentcompile.bench.figures.record import (
    Figure,
    accuracy_figures,
    arm_rows,
    arm_table,
    figure_table,
    figures_of,
    import_figure,
)
from agentcompile.bench.harness import course, rates, trial
from agentcompile.bench.harness.engines import Eager
from agentcompile.bench.harness.partial import Progress
from agentcompile.bench.harness.rates import (
    Round,
    Visit,
    agrees,
    bandwidth_share,
    bearable_on,
    speedup,
    visit,
)
from agentcompile.bench.harness.serving import ArmFailed, LiveArm
from agentcompile.bench.harness.times import Build, Imported
from agentcompile.bench.harness.trial import Outcome
from agentcompile.bench.harness.workload import Workload, make_workload, token_bytes
from agentcompile.bench.models.gguf_file import gguf_name
from agentcompile.bench.models.locate import SAMPLE
from agentcompile.bench.models.presets import PRESETS, materialise

from agentcompile.ir.codec import decode, encode
from agentcompile.options import DEFAULT_CONTEXT
from tests.cpu.trials import Commands, setup

FAKE = """
import sys
from agentcompile.bench.harness.channel import Generation, serve
class Fake:
    facts = {{"made up": True}}
    calls = 0
    def generate(self, ids, new):
        Fake.calls += 1
        print("a library prints on stdout")
        {act}
        return Generation([7] * new, 0.5, {token_s} * (new - 1))
    def tops(self, ids, new, count):
        return [7] * new, [[7, 1, 2, 3, 4]] * new
serve(lambda request: Fake())
"""
TOLD = "import time; time.sleep(0.02); return Generation([{token}] * new, 0.1, 0.07)"
"""Generates a token for so long that a visit of `LEAST_S` has several generations, and is none that takes long."""
LEAST_S = 0.3


def fake(name: str, tmp_path: Path, *, token_s: float = 0.01, act: str = "pass") -> LiveArm:
    code = FAKE.format(act=act, token_s=token_s)
    arm = LiveArm(name, [sys.executable, "-c", code], tmp_path / f"{name}.log")
    arm.load({}, 60)
    return arm


def workload(new: int = 8) -> Workload:
    return Workload(
        name="x",
        model=Path(),
        ids=(1, 2),
        new=new,
        context=8,
        token_bytes=1000,
        weight_bytes=900,
        cache_bytes=100,
        parameters=1,
    )


def one_round(*arms: LiveArm, least_s: float = 0.0, bearable: float = rates.CALM_SHARE) -> tuple[Round, dict[str, str]]:
    build = Build(model=Path(), lock=Path(), home=None, threads=1)
    made = replace(setup(Path(), Commands()), builds={"ours": build})  # an arm with a lock has steady tokens
    try:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(trial, "bearable_on", lambda device: bearable)
            return trial.run_round(0, arms, workload(), least_s, random.Random(0), made)
    finally:
        for arm in arms:
            arm.close()


def test_a_round_visits_every_arm_twice_and_knows_its_time_a_token(tmp_path: Path) -> None:
    timed, failed = one_round(fake("fast", tmp_path), fake("slow", tmp_path, token_s=0.02))
    assert not failed
    assert timed.token_s("fast") == pytest.approx(0.01)
    assert timed.token_s("slow") == pytest.approx(0.02)
    assert timed.visits["fast"][0].first_s == 0.5


def test_an_arm_that_takes_long_is_visited_once_a_round(tmp_path: Path) -> None:
    long = fake("long", tmp_path, token_s=rates.LONG_S / 7)
    timed, failed = one_round(fake("fast", tmp_path), long)
    assert not failed
    assert [len(timed.visits[name]) for name in ("fast", "long")] == [2, 1]
    assert timed.token_s("long") == pytest.approx(rates.LONG_S / 7)
    assert decode(Round, encode(timed)) == timed


def test_what_disturbs_on_a_cpu_may_be_borne_where_the_host_feeds_a_gpu() -> None:
    cpu, gpu = bearable_on("cpu"), bearable_on("cuda:0")
    for others, contended in ((0.04, (False, False)), (0.3, (True, False)), (0.6, (True, True))):
        made = [
            Visit(first_s=0.1, token_s=0.1, generations=1, waited=0.0, others=others, tries=1, bearable=share)
            for share in (cpu, gpu)
        ]
        assert tuple(one.contended for one in made) == contended


def test_an_arm_that_dies_is_a_reason_and_the_others_go_on(tmp_path: Path) -> None:
    dying = fake("dying", tmp_path, act="raise RuntimeError('out of ideas')")
    timed, failed = one_round(dying, fake("living", tmp_path))
    assert list(timed.visits) == ["living"]
    assert "out of ideas" in failed["dying"]


def test_an_arm_that_is_killed_says_by_what(tmp_path: Path) -> None:
    killed = fake("killed", tmp_path, act="import os; os.kill(os.getpid(), 9)")
    _, failed = one_round(killed)
    assert "signal 9" in failed["killed"]


def test_an_arm_that_hangs_is_given_up(tmp_path: Path) -> None:
    arm = fake("hanging", tmp_path, act="import time; time.sleep(60)")
    with pytest.raises(ArmFailed, match="no answer within"):
        arm.ask({"do": "generate", "ids": [1], "new": 2, "warm": 1, "least_s": 0}, 0.2)
    arm.close()


def test_an_arm_does_not_outlive_the_recipe_that_started_it(tmp_path: Path) -> None:
    start = FAKE.format(act="pass", token_s=0.01)
    code = (
        "import sys, os, pathlib\n"
        "from agentcompile.bench.harness.serving import LiveArm\n"
        f"arm = LiveArm('orphan', [sys.executable, '-c', {start!r}], pathlib.Path({str(tmp_path)!r}) / 'log')\n"
        "arm.load({}, 60)\n"
        "print(arm.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    state = Path(f"/proc/{killed.stdout.strip()}/stat")
    deadline = time.monotonic() + 30
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.02)


def test_a_peer_whose_tokens_change_keeps_its_round_and_ours_fails(tmp_path: Path) -> None:
    tokens = {"fast": "7", "peer": "Fake.calls", "ours": "Fake.calls"}
    arms = [fake(name, tmp_path, act=TOLD.format(token=token)) for name, token in tokens.items()]
    timed, failed = one_round(*arms, least_s=LEAST_S)
    assert failed == {"ours": "one prompt gave different tokens from one generation to the next"}
    assert set(timed.visits) == {"fast", "peer"}
    assert {name: [one.same for one in both] for name, both in timed.visits.items()} == {
        "fast": [True, True],
        "peer": [False, False],
    }
    assert timed.token_s("peer") == pytest.approx(0.01)
    assert decode(Round, encode(timed)) == timed


def test_tokens_that_change_from_one_visit_to_the_next_are_told_where_a_visit_makes_one_generation(
    tmp_path: Path,
) -> None:
    arms = [fake(name, tmp_path, act=TOLD.format(token="Fake.calls")) for name in ("peer", "ours")]
    timed, failed = one_round(*arms, bearable=1.0)
    assert [one.same for one in timed.visits["peer"]] == [True, False]
    assert failed == {"ours": "one prompt gave different tokens from one generation to the next"}


def test_what_changed_in_a_disturbed_try_is_not_forgotten(tmp_path: Path) -> None:
    # No try is undisturbed, so there are all of them; the second call is the first that is timed.
    for token, same in (("min(Fake.calls, 3)", False), ("7", True)):
        arm = fake("peer", tmp_path, act=TOLD.format(token=token))
        made = visit(arm, workload(), LEAST_S, lambda share: None, steady=False, bearable=-1.0)
        last = arm.ask({"do": "generate", "ids": [1], "new": 2, "warm": 1, "least_s": LEAST_S}, 60)
        arm.close()
        assert (made.tries, made.same, last["same"]) == (rates.TRIES, same, True)


def rounds(
    times: list[tuple[float, float]], others: float = 0.0, same: bool = True, names: tuple[str, str] = ("a", "b")
) -> list[Round]:
    """Of two arms; whether the tokens of the second were always the same."""

    def pair(token_s: float, same: bool) -> tuple[Visit, Visit]:
        made = Visit(first_s=1.0, token_s=token_s, generations=1, waited=0.0, others=others, tries=1, same=same)
        return made, made

    def visits(a: float, b: float) -> dict[str, tuple[Visit, Visit]]:
        return {names[0]: pair(a, True), names[1]: pair(b, same)}

    return [Round(process=0, visits=visits(a, b), read_bytes_per_s=1e6) for a, b in times]


def test_a_speedup_is_paired_by_round_so_that_drift_leaves_it_alone() -> None:
    found = speedup(rounds([(1.0, 2.0), (1.5, 3.0), (4.0, 8.0)]), "a", "b")
    assert found is not None
    assert found.value == pytest.approx(2.0)
    assert found.high - found.low < 1e-9


def test_contended_rounds_do_not_count() -> None:
    clean = rounds([(1.0, 2.0), (1.0, 2.0), (1.0, 2.0)])
    found = speedup([*clean, *rounds([(1.0, 50.0)], others=0.5)], "a", "b")
    assert found is not None
    assert (found.value, found.rounds) == (pytest.approx(2.0), 3)
    assert speedup(rounds([(1.0, 2.0)] * 4, others=0.5), "a", "b") is None


def test_an_arm_that_was_always_disturbed_has_a_row_that_says_so() -> None:
    outcome = Outcome(rounds=rounds([(1.0, 2.0)] * 2, others=0.5))
    part: Any = SimpleNamespace(
        workload=SimpleNamespace(name="sample"), arms=("a", "absent"), progress=Progress(outcome=outcome)
    )
    ((model, arm, rate, first, note),) = arm_rows(part)
    assert (model, arm, rate, first) == ("sample", "a", None, None)
    assert "disturbed" in note


def test_the_row_of_an_arm_whose_tokens_varied_says_so_beside_its_rate_and_what_else_is_wrong() -> None:
    clean, disturbed = rounds([(1.0, 2.0)] * 3), rounds([(1.0, 2.0)], others=0.5, same=False)
    outcome = Outcome(rounds=(*clean, *disturbed))
    part: Any = SimpleNamespace(
        workload=SimpleNamespace(name="sample"), arms=("a", "b"), progress=Progress(outcome=outcome)
    )
    assert list(arm_rows(part)) == [("sample", "a", 1.0, 1.0, ""), ("sample", "b", 0.5, 1.0, rates.VARIES)]
    outcome.agreement["b"] = "token 3 is 7"
    assert [row[-1] for row in arm_rows(part)] == ["", f"token 3 is 7; {rates.VARIES}"]
    assert rates.VARIES in arm_table(list(arm_rows(part))).rows[-1][-1]


def test_a_figure_beside_a_peer_whose_tokens_varied_says_so() -> None:
    peer = "static-max-autotune"

    def notes(count: int, same: bool) -> list[str]:
        outcome = Outcome(rounds=tuple(rounds([(1.0, 2.0)] * count, same=same, names=("agentcompile", peer))))
        workload = SimpleNamespace(name="qwen3-1.7b", token_bytes=1, weight_bytes=1, cache_bytes=1)
        part: Any = SimpleNamespace(workload=workload, progress=Progress(outcome=outcome))
        return [figure.note for figure in figures_of(part) if figure.name.endswith(f"vs {peer}")]

    assert notes(3, same=True) == ["", ""]
    assert notes(3, same=False) == [f"{peer}: {rates.VARIES}"] * 2
    assert notes(1, same=False) == ["too few rounds"] * 2


def test_the_share_of_bandwidth_is_bytes_a_token_over_time_and_ceiling() -> None:
    found = bandwidth_share(rounds([(0.01, 1.0)] * 3), "a", 9000)
    assert found is not None
    assert found.value == pytest.approx(0.9)


def test_tokens_agree_by_the_mutual_top_five_at_the_first_difference() -> None:
    ours = ([1, 2, 3], [[1], [2, 9], [3]])
    assert agrees(ours, ours) == ""
    assert agrees(ours, ([1, 9, 5], [[1], [9, 2], [5]])) == ""
    assert "top 5" in agrees(ours, ([1, 9, 5], [[1], [9, 8], [5]]))
    assert "top 5" in agrees(ours, ([1, 8, 5], [[1], [8, 2], [5]]))


@pytest.mark.parametrize("tied", [True, False])
def test_a_token_reads_each_weight_once_and_one_row_of_the_table(tied: bool) -> None:
    config = {
        "vocab_size": 10,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "hidden_size": 8,
        "num_attention_heads": 2,
    }
    tensors = {"model.embed_tokens.weight": 160, "w": 1000} | ({} if tied else {"lm_head.weight": 160})
    # Two steps after the first new token, at contexts of 4 and 5; 16 elements of two bytes a position.
    assert token_bytes(config, tensors, prompt=3, new=3) == 1000 + 160 + 16 + round(4.5 * 2 * 16)


def test_every_tensor_of_qwen3_has_a_name_in_gguf() -> None:
    names = [gguf_name(tensor.name) for tensor in PRESETS["qwen3-0.6b"].tensors]
    assert len(set(names)) == len(names)
    assert {"token_embd.weight", "blk.27.attn_q_norm.weight", "blk.0.ffn_down.weight"} <= set(names)


def test_a_figure_passes_at_its_target_and_a_missing_one_says_nothing() -> None:
    at = Figure(model="m", name="n", sense=">=", target=2.0, value=2.0)
    below = Figure(model="m", name="n", sense="<=", target=2.0, value=2.1)
    missing = Figure(model="m", name="n", sense="<=", target=2.0, note="exit code 3")
    assert (at.verdict, below.verdict, missing.verdict) == ("PASS", "short", "-")
    assert "exit code 3" in figure_table([at, below, missing]).rows[-1][-1]


def test_perplexity_passes_only_with_its_whole_interval() -> None:
    found = {"kl_ratio": 1.0, "ln_perplexity_ratio": 3e-4, "ln_perplexity_half_width": 3e-4}
    assert [figure.verdict for figure in accuracy_figures("m", found, "")] == ["PASS", "short"]


def test_an_import_that_brings_pytorch_along_is_no_figure() -> None:
    assert import_figure(Imported(median_ms=5.0, samples_ms=(5.0,), with_torch=True)).value is None


def test_divergence_is_zero_for_the_same_distribution_and_exact_for_a_known_one() -> None:
    logits = torch.randn(3, 7)
    assert divergence(logits, logits + 2.0).abs().max() < 1e-12
    fair, skewed = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.75, 0.25]]).log()
    known = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert float(divergence(fair, skewed)) == pytest.approx(known, abs=1e-7)


def test_losses_are_of_the_next_token() -> None:
    logits = torch.zeros(3, 4)
    logits[0, 2] = 50.0
    found = losses(logits, [0, 2, 1])
    assert found.tolist() == pytest.approx([0.0, math.log(4)], abs=1e-6)
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert half == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return materialise("tiny-qwen3", tmp_path_factory.mktemp("tiny") / "model")


def test_eager_makes_exactly_as_many_tokens_as_asked_and_agrees_with_fp32(tiny: Path) -> None:
    work = replace(make_workload("tiny", tiny, seed=0), new=6)
    bf16 = Eager({"model": str(tiny), "threads": 1})
    exact = Eager({"model": str(tiny), "threads": 1, "dtype": "fp32"})
    done = bf16.generate(work.ids, 6)
    tops = bf16.tops(work.ids, 6, 5)
    assert len(done.tokens) == 6
    assert done.first_s > 0 < done.rest_s
    assert tops[0] == done.tokens == [top[0] for top in tops[1]]
    assert agrees(exact.tops(work.ids, 6, 5), tops) == ""
    json.dumps(bf16.facts)


def test_memory_is_held_against_the_cache_that_the_lock_has(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [SimpleNamespace(batch=1), SimpleNamespace(batch=8)]
    lock = SimpleNamespace(model=SimpleNamespace(context=33_024), plan=plans)
    monkeypatch.setattr(recipe, "read_lock", lambda path: lock)
    workload = make_workload("sample", SAMPLE, seed=0)
    found = recipe._with_cache_of(workload, Path("many.lock.toml"))
    assert found == replace(workload, cache_bytes=workload.cache_bytes * 33_024 * 8 // DEFAULT_CONTEXT)


def test_arms_on_a_gpu_have_the_processors_that_the_recipe_may_run_on() -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert course.threads_of(SimpleNamespace(device="cuda:0")) == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("words", "word"), [(["--minutes", "0"], "--minutes"), (["--retry-failed"], "--resume")])
def test_settings_of_a_run_that_is_cut_are_checked(
    words: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        recipe.run(words)
    assert word in capsys.readouterr().err.splitlines()[-1]
