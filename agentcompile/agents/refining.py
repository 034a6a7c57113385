"""A session that refines one kernel: choose a node, ask the agents, check and evaluate the answer, grow the tree.

In: a contract, who evaluates, who answers, the journal of the session, settings. Out: the fastest sound kernel, and why
the session ended. Every answer that ends an attempt costs exactly one: it was evaluated or refused, or its code was
there already. A session that was killed goes on from its journal, and with the recorded answers makes the same tree.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from agentcompile.advice.client import Unanswered, Unrecorded
from agentcompile.agents.agents import Said
from agentcompile.agents.answers import PlanAnswer, manifest_text, read_draft, read_plan
from agentcompile.agents.arms import ARMS, roles_for
from agentcompile.agents.journal import Entry, Opened, Pruned, Refused, attempts_of, nodes_of, opened_of, spent_of
from agentcompile.agents.policies import POLICIES, policy_of
from agentcompile.agents.principles import Principle, learnt, relevant
from agentcompile.agents.prompts import RolePrompt, prompt_of
from agentcompile.agents.spans import Spans, spans_of, whole
from agentcompile.agents.tree import ROOT, TOP, Node, RoleStep, best, dead
from agentcompile.agents.windows import alone, window
from agentcompile.errors import AgentCompileError
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import AttemptEvaluator, Contract, Evaluated, Role, Written
from agentcompile.ir.codec import encode
from agentcompile.ir.digest import canonical
from agentcompile.ir.trial import Measured

ATTEMPTS = 30
ROOFLINE = 1.05
"""A kernel within this share of the floor ends the session.

One that is further below shows that it is no floor: an algorithm with fewer FLOPs than the task's, or rates that were
measured too low.
"""
LEAST_ROUNDS = 4
"""Rounds with feedback before a session may give up (AgentCompile, arXiv 2606.07665)."""
SILENCES = 4
"""Questions without an answer, one after another, after which a session ends."""
LEARNT = 12
"""The last ideas of the session, refuted or proved, that a question shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a session: its arm, its policy, and its limits."""

    arm: str = "stark"
    strategy: str = next(iter(POLICIES))
    attempts: int = ATTEMPTS
    seed: int = 0
    top: int = TOP
    patience: int = 0
    """Attempts without a faster kernel after which it gives up, at least `LEAST_ROUNDS`; 0 for never."""
    seconds: float = math.inf
    """Seconds of work, of all processes of the session together, after which no attempt begins."""
    device: str = ""
    """The machine's name, for the evidence of what is learnt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSteering:
    """What a person asks of a session between two attempts."""

    stop: str = ""
    """Why it ends now; empty where it goes on."""
    prune: tuple[int, ...] = ()
    """Nodes whose branches are closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a session."""

    best: Node | None
    """The fastest sound kernel; None where there is none."""
    nodes: tuple[Node, ...]
    entries: tuple[Entry, ...]
    stopped: str
    """Why it ended."""

    @property
    def refused(self) -> int:
        """Attempts whose answer was refused."""
        return sum(isinstance(entry, Refused) for entry in self.entries)

    @property
    def repeated(self) -> int:
        """Attempts whose code was there already."""
        return sum(node.repeats is not None for node in self.nodes)

    @property
    def attempts(self) -> int:
        """All attempts: evaluated, repeated and refused."""
        return attempts_of(self.entries)

    @property
    def usage(self) -> Usage:
        """What the answers of all attempts used."""
        return spent_of(self.entries)


class Asks(Protocol):
    """Who answers: a `Team`, or a script."""

    def ask(self, prompt: RolePrompt) -> Said | Unanswered:
        """Answer a question, or say why not."""
        ...


class EntryWriter(Protocol):
    """Where entries are kept: a `SessionJournal`."""

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in their order."""
        ...

    def append(self, entry: Entry) -> None:
        """Write an entry, so that it is on disk when this returns."""
        ...


def refine(
    contract: Contract,
    evaluator: AttemptEvaluator,
    team: Asks,
    record: EntryWriter,
    settings: Settings,
    *,
    principles: Sequence[Principle] = (),
    clock: Callable[[], float] = time.monotonic,
    spent_s: float = 0.0,
    steer: Callable[[], SessionSteering] = SessionSteering,
) -> Outcome:
    """Make attempts until a kernel is at the floor, the budget is used up, or nobody answers.

    `steer` is asked before every attempt, and may wait while a person pauses the session. Earlier processes of the
    session worked for `spent_s`.

    Raises:
        AgentCompileError: there is no such arm or strategy, the record is of another session (usage), or it cannot be
            written (environment).
    """
    session = _Session(_opened(contract, record, settings), evaluator, team, record, settings, principles)
    end, silences, stopped = clock() + settings.seconds - spent_s, 0, ""
    while not stopped:
        asked = steer()
        session.prune(asked.prune)
        stopped = asked.stop or session.over() or (f"{settings.seconds:g} s are over" if clock() >= end else "")
        if stopped:
            break
        silent = session.attempt()
        silences = silences + 1 if silent is not None else 0
        if silent is not None and (silent.final or silences == SILENCES):
            stopped = silent.reason
    return Outcome(best=best(session.nodes), nodes=session.nodes, entries=record.entries, stopped=stopped)


def _opened(contract: Contract, record: EntryWriter, settings: Settings) -> Contract:
    """Open the session or go on with it; return the contract with the times that its questions name."""  # noqa: DOC501
    if settings.arm not in ARMS:
        raise AgentCompileError(f"{settings.arm[:80]!r} is no arm", hint=f"arms: {', '.join(ARMS)}")
    policy_of(settings.strategy)
    now = Opened(
        contract=contract.digest,
        arm=settings.arm,
        strategy=settings.strategy,
        seed=settings.seed,
        floor_ns=contract.floor_ns,
        reference_ns=contract.reference_ns,
        incumbent_ns=contract.incumbent_ns,
        measured=canonical(contract.measured).decode(),
    )
    if not record.entries:
        record.append(now)
    first = record.entries[0]
    assert isinstance(first, Opened)
    for name in ("contract", "arm", "strategy", "seed"):
        if getattr(first, name) != getattr(now, name):
            raise AgentCompileError(
                f"the session was begun with {name} {getattr(first, name)}, and not {getattr(now, name)}",
                hint="go on with what it was begun with, or begin in another folder",
            )
    return opened_of(record.entries).timed(contract)


class _Session:
    """The tree so far, and how it grows."""

    def __init__(
        self,
        contract: Contract,
        evaluator: AttemptEvaluator,
        team: Asks,
        record: EntryWriter,
        settings: Settings,
        principles: Sequence[Principle],
    ) -> None:
        self._contract, self._evaluator, self._team, self._record = contract, evaluator, team, record
        self._settings, self._arm = settings, ARMS[settings.arm]
        self._policy = self._arm.policy or policy_of(settings.strategy)
        self._principles = relevant(principles, contract)
        self.nodes = nodes_of(record.entries)

    @property
    def _attempts(self) -> int:
        return attempts_of(self._record.entries)

    def prune(self, ids: Sequence[int]) -> None:
        """Close branches; the root, what is closed already and what does not exist are left alone."""
        for id in dict.fromkeys(ids):
            if 0 < id < len(self.nodes) and not self.nodes[id].pruned:
                self._record.append(Pruned(node=id))
                self.nodes = nodes_of(self._record.entries)

    def over(self) -> str:
        """Return why no further attempt is made; empty where one is."""
        fastest, made, settings = best(self.nodes), self._attempts, self._settings
        floor_ns = self._contract.floor_ns
        if fastest is not None and floor_ns / ROOFLINE <= fastest.ns <= ROOFLINE * floor_ns:
            return f"node {fastest.id} is within {ROOFLINE - 1:.0%} of its roofline"
        if made >= settings.attempts:
            return f"{made} of {settings.attempts} attempts are made"
        patience = max(settings.patience, LEAST_ROUNDS)
        if settings.patience and self._since_faster() >= patience:
            return f"no faster kernel in {patience} attempts"
        return ""

    def _since_faster(self) -> int:
        """Return the attempts since the fastest kernel; all where there is none."""
        fastest, since = best(self.nodes), 0
        for entry in reversed(self._record.entries):
            if isinstance(entry, Node) and fastest is not None and entry.id == fastest.id:
                break
            since += attempts_of((entry,))
        return since

    def attempt(self) -> Unanswered | None:
        """Make one attempt, or return why there was no answer.

        It starts from the node that the policy chooses. Where recorded answers are all that there is, times may fall in
        another order than when they were given, and the policy then chooses another node: the attempt starts from the
        newest that an answer is recorded for, of those that nobody closed. No role of such a team has a live model.
        """
        chosen = self._policy.choose(self.nodes, self._settings.seed, self._attempts + 1)
        silent = self._attempt(chosen)
        if isinstance(silent, Unrecorded):
            closed = dead(self.nodes, failures=len(self.nodes) + 1)
            open = [node for node in reversed(self.nodes) if node.id not in (chosen, *closed)]
            for node in sorted(open, key=lambda node: node.repeats is not None):
                if self._attempt(node.id) is None:
                    return None
        return silent

    def _attempt(self, id: int) -> Unanswered | None:
        node, log = self.nodes[id], list[RoleStep]()
        spans, plan = whole(node.kernel), None
        for role in roles_for(node, self._arm):
            said = self._team.ask(self._prompt(role, id, plan))
            if isinstance(said, Unanswered):
                return said
            step = RoleStep(role=role, model=said.model, exchange=said.exchange, usage=said.usage)
            if role == "plan":
                planned = _planned(said.text, node)
                if isinstance(planned, str):
                    self._refuse(id, f"plan: {planned}", (*log, step))
                    return None
                plan, spans = planned
                log.append(replace(step, instruction=plan.instruction, idea=plan.idea, notes=plan.diagnosis))
                continue
            draft = read_draft(said.text)
            # Without a plan everything may change; a mark must be left by no role, or no plan could mark the kernel.
            wrong = draft if isinstance(draft, str) else spans.refusal(draft.kernel)
            if isinstance(draft, str) or wrong:
                self._refuse(id, f"{role}: {wrong}", (*log, step))
                return None
            log.append(replace(step, notes=draft.notes))
            written = Written(manifest=manifest_text(self._contract, draft.manifest), kernel=draft.kernel)
            self._grow(id, written, tuple(log))
        return None

    def _prompt(self, role: Role, id: int, plan: PlanAnswer | None) -> RolePrompt:
        remembers = self._arm.remembers
        shown = window(role, self.nodes, id, top=self._settings.top) if remembers else alone(role)
        ideas = learnt(self.nodes, self._contract, self._settings.device)[-LEARNT:] if remembers else ()
        return prompt_of(
            self._contract,
            self.nodes,
            shown,
            attempt=self._attempts + 1,
            principles=() if role == "debug" else (*self._principles, *ideas),
            refused=self._refused(id) if remembers else (),
            plan=plan,
        )

    def _refused(self, id: int) -> list[str]:
        """Return why answers about a node were refused since something was last made from it."""
        found = list[str]()
        for entry in self._record.entries:
            if isinstance(entry, Refused) and entry.node == id:
                found.append(entry.reason)
            elif isinstance(entry, Node) and entry.parent == id:
                found.clear()
        return found

    def _refuse(self, id: int, reason: str, log: tuple[RoleStep, ...]) -> None:
        self._record.append(Refused(node=id, reason=reason, log=log))

    def _grow(self, parent: int, written: Written, log: tuple[RoleStep, ...]) -> None:
        same = next((one for one in self.nodes if one.settled and one.written == written), None)
        if same is not None:
            node = replace(
                same, id=len(self.nodes), parent=parent, log=log, repeats=_origin(same), pruned=False, times=None
            )
        else:
            node = _node(len(self.nodes), parent, written, self._evaluator.evaluate(written), log, self._contract)
        self._record.append(node)
        self.nodes = nodes_of(self._record.entries)
        self._contract = opened_of(self._record.entries).timed(self._contract)


def _origin(node: Node) -> int:
    return node.id if node.repeats is None else node.repeats


def _node(
    id: int, parent: int, written: Written, evaluated: Evaluated, log: tuple[RoleStep, ...], contract: Contract
) -> Node:
    sound, share, times = (
        isinstance(evaluated.verdict, Measured) and evaluated.ns > 0,
        evaluated.over_reference,
        evaluated.times,
    )
    if not 0 < share < math.inf:
        share = evaluated.ns / max(contract.reference_ns, 1.0)
    return Node(
        id=id,
        parent=parent,
        written=written,
        verdict=evaluated.verdict,
        ns=evaluated.ns if sound else math.inf,
        over_reference=share if sound else math.inf,
        times=times if times is not None and not times.agree(contract.times) else None,
        feedback=json.dumps(encode(evaluated.feedback), sort_keys=True),
        log=log,
    )


def _planned(text: str, node: Node) -> tuple[PlanAnswer, Spans] | str:
    """Return a plan for a node with its spans, or why the text is none."""
    plan = read_plan(text)
    if isinstance(plan, str):
        return plan
    if node.id == ROOT:
        wrong = "kernel_with_marks: node 0 has no kernel to mark; leave it empty"
        return wrong if plan.kernel_with_marks.strip() else (plan, whole(""))
    spans = spans_of(plan.kernel_with_marks, node.kernel)
    return f"kernel_with_marks: {spans}" if isinstance(spans, str) else (plan, spans)
