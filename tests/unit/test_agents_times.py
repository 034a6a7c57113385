"""A session whose times to beat were taken at a busy moment: what it asks, and which kernel counts as the fastest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentcompile.agents.journal import SessionJournal, nodes_of, opened_of, read_entries
from agentcompile.agents.refining import Settings, refine
from agentcompile.ir.attempt import Evaluated, Times, Written
from tests.unit.refined import CONTRACT, RAN, Script, contract_in, draft


class Moment:
    """A gate that was opened at a busy moment, and knows the times to beat better since the first kernel."""

    def __init__(self) -> None:
        self.times = Times(reference_ns=1000.0, incumbent_ns=700.0, arms='{"fastest":"pytorch"}')

    def evaluate(self, written: Written) -> Evaluated:
        """AttemptEvaluator by the first line: the time, and its share of the reference's beside it."""
        ns, share = written.kernel.partition("\n")[0].removeprefix("// ").split()
        return Evaluated(verdict=RAN, ns=float(ns), over_reference=float(share), times=self.times)


def test_times_that_were_taken_at_a_busy_moment_are_taken_anew_for_all_that_follows(tmp_path: Path) -> None:
    opened = replace(CONTRACT, reference_ns=10_000.0, incumbent_ns=7_451.0, measured={"baseline": {"fastest": "?"}})
    answers = ["// 1030 1.03\n", "// 3000 0.6\n", "// 690 0.69\n"]
    script = Script(lambda prompt, data: draft(answers[data["attempt"] - 1]))
    with SessionJournal(tmp_path / "journal") as journal:
        found = refine(opened, Moment(), script, journal, Settings(arm="search-only", strategy="greedy", attempts=3))
    systems = [contract_in(prompt.system) for prompt in script.asked]
    assert [one["incumbent_us"] for one in systems] == [7.451, 0.7, 0.7]
    assert [one["reference_us"] for one in systems] == [10.0, 1.0, 1.0]
    assert [one["measured"]["baseline"]["fastest"] for one in systems] == ["?", "pytorch", "pytorch"]
    assert [one.times is not None for one in found.nodes] == [False, True, False, False], "they agree afterwards"
    # The first is slower than PyTorch, although it took a tenth of what PyTorch did at the busy moment.
    assert [one.parent for one in found.nodes] == [None, 0, 0, 2]
    assert found.best is not None
    assert found.best.id == 2, "the third was faster by the clock, at a moment at which everything was"
    assert read_entries(tmp_path / "journal") == found.entries
    assert nodes_of(found.entries) == found.nodes
    again = opened_of(found.entries)
    assert (found.nodes[0].ns, again.reference_ns, again.incumbent_ns) == (1000.0, 1000.0, 700.0)
