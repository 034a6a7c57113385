"""The choice: only what is confirmed to be faster replaces the baseline, and everything else has its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.events import silent
from agentcompile.ir.template import Candidate, Template
from agentcompile.ir.trial import (
    BuildFailed,
    Choice,
    Crashed,
    Fallback,
    Finding,
    Impossible,
    Incorrect,
    Kernel,
    Measured,
    NumericReport,
    Part,
    Rejected,
    TimedOut,
    Trial,
    Verdict,
)
from agentcompile.planning import covering
from agentcompile.planning.plans import measured_ns
from agentcompile.space import Space
from agentcompile.tuning.ranking import LEAVING_NS, TIE, Ranking, Traits, finalists, rank, signature_of, why_fallback
from tests.unit.fakes import linear_region, measured, rows_template, target

PACKED = rows_template(id="linear/packed")
PLAIN = rows_template(id="linear/plain", layouts=(("w", "row-major"),))
OTHER = rows_template(id="linear/other", layouts=())
TEMPLATES: dict[str, Template] = {template.id: template for template in (PACKED, PLAIN, OTHER)}
SPACE = tuple(Space(linear_region(), list(TEMPLATES.values()), target()))
REPORT = NumericReport(checks=(), error_ratio=1.0, cases=1, repeats=16)


def of(template: str) -> list[Candidate]:
    return [candidate for candidate in SPACE if candidate.template == template]


def confirmed(candidate: Candidate, ratio: float, **more: object) -> Trial:
    return measured(candidate, ratio, fidelity="confirm", rounds=30, **more)  # type: ignore[arg-type]


def failed(candidate: Candidate, verdict: Verdict) -> Trial:
    return Trial(candidate=candidate, source="", verdict=verdict)


def median_ns(trial: Trial) -> int:
    assert isinstance(trial.verdict, Measured)
    return trial.verdict.measurement.median_ns


def plainly(_: Candidate) -> Traits:
    return Traits()


def ranked(trials: list[Trial]) -> Ranking:
    return rank(trials, TEMPLATES, traits=plainly)


def test_row_major_is_no_layout_of_a_signature() -> None:
    assert signature_of(PACKED) == (("w", "rows16-k2"),)
    assert signature_of(PLAIN) == signature_of(OTHER) == ()


def test_the_best_of_each_layout_is_ranked_and_the_fastest_of_all_is_best() -> None:
    packed, plain = of("linear/packed"), of("linear/plain")
    trials = [confirmed(packed[0], 0.5), confirmed(packed[1], 0.7), confirmed(plain[0], 0.6)]
    ranking = ranked(trials)
    kernels = dict(ranking.kernels)
    assert [kernel.candidate for kernel in kernels[(("w", "rows16-k2"),)]] == [packed[1], packed[0]]
    assert [kernel.candidate for kernel in dict(ranking.kernels).get((), ())] == [plain[0]]
    assert dict(ranking.kernels).get((("w", "other"),), ()) == ()
    assert isinstance(ranking.best, Kernel)
    assert ranking.best.candidate == packed[1]
    assert ranking.best.speedup == pytest.approx(math.exp(0.7))
    assert ranking.best.source == trials[1].source
    assert ranking.best.decided_by == "measured"
    assert ranking.best.reason == "2.014x pytorch in 30 paired rounds of 3 processes"


def test_only_faster_replaces_the_baseline() -> None:
    a, b, c, *_ = SPACE
    trials = [
        confirmed(a, 0.3, comparison="INCONCLUSIVE"),
        confirmed(b, 0.004, comparison="SAME"),
        confirmed(c, -0.2),
    ]
    assert isinstance(ranked(trials).best, Fallback)


def test_a_right_kernel_that_loses_by_less_than_leaving_native_code_costs_is_near() -> None:
    a, b, c, *_ = (*of("linear/plain"), *of("linear/packed"))

    def losing(candidate: Candidate, by_ns: float) -> Trial:
        trial = confirmed(candidate, -0.01, comparison="SLOWER")
        assert isinstance(trial.verdict, Measured)
        m = trial.verdict.measurement
        slower = replace(m, median_ns=m.baseline_ns + round(by_ns))
        return replace(trial, verdict=replace(trial.verdict, measurement=slower))

    crash = replace(failed(c, Crashed(stage="measure", signal=11)), fidelity="confirm")
    most = LEAVING_NS["decode"]
    ranking = ranked([losing(a, most - 1000), losing(b, most + 1000), crash])
    (near,) = [kernel for _, kernels in ranking.near for kernel in kernels]
    assert near.candidate == a
    assert ranking.is_near(near)
    assert ranking.best == ranking.fallback
    assert not ranking.is_near(ranking.best)
    won = ranked([confirmed(a, 0.5)])
    assert won.near == ()


def test_search_numbers_never_decide() -> None:
    ranking = ranked([measured(candidate, 0.9) for candidate in SPACE])
    assert ranking.kernels == ()
    assert "faster in search alone" in ranking.fallback.reason


def test_where_none_is_confirmed_the_fastest_in_search_may_stand_for_the_step_to_decide() -> None:
    packed, plain = of("linear/packed"), of("linear/plain")
    trials = [measured(one, 0.1 * at) for at, one in enumerate((*packed[:4], *plain[:2]), 1)]
    slower = measured(plain[2], -0.3, comparison="SLOWER")
    ranking = ranked([*trials, slower])
    near = {signature: [kernel.candidate for kernel in kernels] for signature, kernels in ranking.near}
    assert near == {(("w", "rows16-k2"),): [packed[3], packed[2]], (): [plain[1], plain[0]]}
    first = ranking.near[-1][1][0]
    assert first.reason.endswith("in search; there was no time to confirm it")
    assert measured_ns(first, [*trials, slower]) == median_ns(trials[3])
    one_confirmed = ranked([*trials, confirmed(plain[0], 0.0, comparison="SAME")])
    assert [kernel.candidate for _, kernels in one_confirmed.near for kernel in kernels] == [plain[0]]
    assert ranked([slower]).near == ()


@pytest.mark.parametrize(
    ("fidelity", "half_width", "disturbed", "said"),
    [
        ("search", 0.1, 0.0, "1.350x pytorch in search; there was no time to confirm it"),
        (
            *("search", 0.1, 0.61),
            "about 1.3x pytorch in search, contended: 61% of the rounds disturbed; there was no time to confirm it",
        ),
        ("search", math.inf, 0.0, "about 1x pytorch in search; there was no time to confirm it"),
        ("confirm", 0.1, 0.0, "1.350x pytorch in 5 paired rounds of 3 processes"),
        ("confirm", 0.1, 0.61, "about 1.3x pytorch, contended: 61% of the rounds disturbed"),
    ],
)
def test_a_reason_has_the_digits_of_its_ratio_and_says_that_it_is_contended(
    fidelity: Literal["search", "confirm"], half_width: float, disturbed: float, said: str
) -> None:
    trial = measured(SPACE[0], 0.3, comparison="FASTER", fidelity=fidelity, half_width=half_width)
    assert isinstance(trial.verdict, Measured)
    busy = replace(trial.verdict, measurement=replace(trial.verdict.measurement, disturbed=disturbed))
    ranking = ranked([replace(trial, verdict=busy)])
    ((_, (kernel,)),) = ranking.near if fidelity == "search" else ranking.kernels
    assert kernel.reason == said


def test_a_confirmed_time_counts_before_one_of_search_whichever_came_last() -> None:
    one = of("linear/plain")[0]
    trials = [confirmed(one, 0.5), measured(one, 0.9)]
    (kernel,) = dict(ranked(trials).kernels)[()]
    assert measured_ns(kernel, trials) == median_ns(trials[0])


def test_the_last_confirmation_of_a_candidate_stands() -> None:
    one = SPACE[0]
    assert ranked([confirmed(one, 0.5), confirmed(one, -0.1)]).kernels == ()
    assert isinstance(ranked([confirmed(one, -0.1), confirmed(one, 0.5)]).best, Kernel)


def test_a_candidate_that_crashed_in_confirmation_does_not_win() -> None:
    one = SPACE[0]
    crash = replace(failed(one, Crashed(stage="measure", signal=11)), fidelity="confirm")
    assert ranked([confirmed(one, 0.5), crash]).kernels == ()


def test_equals_are_told_apart_by_risk_then_workspace_then_id() -> None:
    a, b, c = sorted(of("linear/packed")[:3], key=lambda candidate: candidate.id)
    trials = [confirmed(a, 0.500), confirmed(b, 0.502), confirmed(c, 0.504)]

    def order(traits: dict[str, Traits]) -> list[Candidate]:
        ranking = rank(trials, TEMPLATES, traits=lambda candidate: traits.get(candidate.id, Traits()))
        return [kernel.candidate for kernel in dict(ranking.kernels).get(signature_of(PACKED), ())]

    assert order({}) == [a, b, c]
    assert order({a.id: Traits(risks=1)}) == [b, c, a]
    assert order({a.id: Traits(workspace_bytes=8), b.id: Traits(workspace_bytes=4)}) == [c, b, a]
    assert order({a.id: Traits(risks=1), b.id: Traits(workspace_bytes=4)}) == [c, b, a]


def test_traits_do_not_outweigh_a_real_difference() -> None:
    fast, tidy = of("linear/packed")[:2]
    ranking = rank(
        [confirmed(fast, 0.52), confirmed(tidy, 0.50)],
        TEMPLATES,
        traits=lambda candidate: Traits(risks=9 if candidate == fast else 0),
    )
    assert dict(ranking.kernels).get(signature_of(PACKED), ())[0].candidate == fast


RATIOS = st.lists(st.tuples(st.integers(0, len(SPACE) - 1), st.floats(-1, 1)), max_size=30)


@given(RATIOS, st.lists(st.integers(0, 2), min_size=len(SPACE), max_size=len(SPACE)))
def test_the_winner_is_as_good_as_any_and_what_is_slower_is_never_ranked(
    ratios: list[tuple[int, float]], risks: list[int]
) -> None:
    trials = [confirmed(SPACE[at], ratio) for at, ratio in ratios]
    by_id = {candidate.id: risks[at] for at, candidate in enumerate(SPACE)}
    ranking = rank(trials, TEMPLATES, traits=lambda candidate: Traits(risks=by_id[candidate.id]))
    last = {trial.candidate.id: trial.verdict.measurement for trial in trials if isinstance(trial.verdict, Measured)}
    faster = {id for id, measurement in last.items() if measurement.comparison == "FASTER"}
    shown = [kernel for _, kernels in ranking.kernels for kernel in kernels]
    assert sorted(kernel.candidate.id for kernel in shown) == sorted(faster)
    for signature, kernels in ranking.kernels:
        assert kernels
        assert {signature_of(TEMPLATES[kernel.candidate.template]) for kernel in kernels} == {signature}
        for at, kernel in enumerate(kernels):
            rest = kernels[at:]
            best = max(math.log(one.speedup) for one in rest)
            assert best - math.log(kernel.speedup) <= math.log1p(TIE) + 1e-12
            equals = [one for one in rest if best - math.log(one.speedup) <= math.log1p(TIE) - 1e-12]
            assert all(by_id[kernel.candidate.id] <= by_id[one.candidate.id] for one in equals)


@given(RATIOS, st.randoms(use_true_random=False))
def test_the_order_in_which_trials_came_does_not_matter(ratios: list[tuple[int, float]], dice: object) -> None:
    trials = [confirmed(SPACE[at], ratio) for at, ratio in dict(ratios).items()]
    shuffled = list(trials)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ranked(trials) == ranked(shuffled)


def test_finalists_are_the_best_few_of_each_layout_best_first() -> None:
    packed, plain = of("linear/packed"), of("linear/plain")
    trials = [measured(candidate, 0.1 * at) for at, candidate in enumerate(packed[:5])]
    trials += [measured(candidate, 0.25 + 0.1 * at) for at, candidate in enumerate(plain[:2])]
    assert finalists(trials, TEMPLATES, each=2) == (packed[4], plain[1], packed[3], plain[0])
    assert finalists(trials, TEMPLATES, each=2, others=1) == (packed[4], plain[1], packed[3])


def test_a_candidate_stands_as_a_finalist_by_its_longest_measurement() -> None:
    a, b = of("linear/packed")[:2]
    trials = [measured(a, 0.9, rounds=5), measured(a, 0.1, rounds=20), measured(b, 0.5, rounds=10)]
    assert finalists(trials, TEMPLATES, each=2) == (b, a)


def test_one_failure_of_a_candidate_keeps_it_from_the_final() -> None:
    a, b = of("linear/packed")[:2]
    trials = [measured(a, 0.9), failed(a, TimedOut(stage="measure", limit_s=1.0)), measured(b, 0.5)]
    assert finalists(trials, TEMPLATES, each=3) == (b,)
    assert finalists([], TEMPLATES, each=3) == ()


@given(RATIOS, st.integers(0, 4))
def test_finalists_never_miss_the_best_of_a_layout(ratios: list[tuple[int, float]], each: int) -> None:
    trials = [measured(SPACE[at], ratio) for at, ratio in dict(ratios).items()]
    chosen = finalists(trials, TEMPLATES, each=each)
    assert len(set(chosen)) == len(chosen)
    for signature in {signature_of(template) for template in TEMPLATES.values()}:
        own = [t for t in trials if signature_of(TEMPLATES[t.candidate.template]) == signature]
        kept = [candidate for candidate in chosen if signature_of(TEMPLATES[candidate.template]) == signature]
        assert len(kept) == min(each, len(own))
        if own and each:
            best = max(own, key=lambda t: (t.verdict.measurement.log_ratio,))  # type: ignore[union-attr]
            first = next(t for t in own if t.candidate == kept[0])
            assert first.verdict.measurement.log_ratio == best.verdict.measurement.log_ratio  # type: ignore[union-attr]


def test_the_fallback_counts_every_fate_and_names_the_nearest() -> None:
    measurement = measured(SPACE[0], 0.9).verdict
    assert isinstance(measurement, Measured)
    verdicts: list[Verdict] = [
        Rejected(findings=(Finding(rule="isa", severity="error", text="the machine lacks fma"),)),
        BuildFailed(log="error"),
        BuildFailed(log="error"),
        Incorrect(report=REPORT),
        Crashed(stage="validate", signal=11),
        TimedOut(stage="build", limit_s=60.0),
        Impossible(report=REPORT, measurement=measurement.measurement, floor_ns=100),
    ]
    trials = [failed(candidate, verdict) for candidate, verdict in zip(SPACE, verdicts, strict=False)]
    trials += [measured(SPACE[7], -0.3), measured(SPACE[8], 0.0, comparison="SAME")]
    trials += [measured(SPACE[9], 0.001, comparison="INCONCLUSIVE"), measured(SPACE[10], -0.01)]
    assert why_fallback(trials) == (
        "no kernel was shown to be faster: of 11 candidates 1 rejected, 2 failed to build, 1 incorrect, 1 crashed, "
        "1 timed out, 1 impossibly fast, 2 slower, 1 the same, 1 inconclusive; "
        f"the nearest, {SPACE[9].label}, ran at 1.001x pytorch"
    )


def test_each_candidate_is_counted_once_by_its_last_word() -> None:
    one = SPACE[0]
    assert why_fallback([measured(one, 0.3), confirmed(one, -0.1)]).startswith(
        "no kernel is faster: of 1 candidate 1 slower"
    )


def test_a_region_without_trials_says_that_nothing_serves_it() -> None:
    ranking = ranked([])
    assert ranking.best == Fallback(reason="no template serves this region here")


def test_a_kernel_that_is_not_accepted_is_named_in_the_reason_of_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SPACE[0]
    found = [measured(one, 0.3), confirmed(one, 0.3)]
    kernel = ranked(found).best
    told: list[str] = []

    def plan(*asked: Any) -> Any:
        told.append(asked[3]["r"].fallback.reason)
        return SimpleNamespace(decode=((Part(region="r", choice=kernel, sites=()),),), prefill=(), decode_ns=0.0)

    def accept(parts: Sequence[Part]) -> tuple[tuple[str, Choice], ...]:
        if len(told) > 1:
            return ()
        found.append(failed(one, Incorrect(report=REPORT)))
        return (("r", parts[0].choice),)

    here = SimpleNamespace(device="cpu", target=SimpleNamespace(kind="cpu"))
    prepared: Any = SimpleNamespace(
        ceiling=None, prefill=SimpleNamespace(residency="dram"), decode=(), tasks=(), prompt_tasks=(), here=here
    )
    scheduler: Any = SimpleNamespace(trials=SimpleNamespace(by_region={}), fallback_ns=lambda region: 1.0)
    acceptance: Any = SimpleNamespace(accept=accept)
    ranker: Any = SimpleNamespace(of=lambda region: ranked(found))
    monkeypatch.setattr(covering, "plan", plan)
    covering.cover(prepared, scheduler, ranker, acceptance, {"r": ranked(found)}, "admitted", silent)
    assert told[0].startswith("no kernel is faster: of 1 candidate 1 faster")
    assert told[1] == "no kernel is faster: of 1 candidate 1 incorrect"
