"""What a study of refining found: a row for each task, arm and seed, and the times of PyTorch for each task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentcompile.agents.journal import Entry, Refused
from agentcompile.agents.tree import Node
from agentcompile.ir.trial import BuildFailed, Cancelled, Crashed, Disturbed, Measured, Rejected, TimedOut, Verdict

KIND, FORMAT = "agentcompile bench refine", 1
Ended = Literal["attempts", "tokens", "floor", "unanswered"]
"""What ended a session: a limit, a kernel at the floor, or a question that nobody answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A kernel timed beside a form of PyTorch in paired rounds of fresh processes."""

    arm: str
    """The form of PyTorch."""
    speedup: float
    low: float
    high: float
    """The interval of the speed-up."""
    comparison: str
    contended: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt of a session, without its times."""

    parent: int
    what: str
    """The verdict's kind, or ``refused`` for an answer that could not be used."""
    roles: tuple[str, ...]
    repeats: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One session: a task, an arm and a seed."""

    task: str
    arm: str
    seed: int
    device: str = ""
    """What ran it; "" in results from before rows said so."""
    attempts: tuple[Attempt, ...]
    ended: Ended
    stopped: str
    """Why it ended, in words."""
    best: int = 0
    """The node of its fastest kernel that passed every gate; 0 where there is none."""
    us: float = 0.0
    """That kernel's time of a launch, as it was evaluated."""
    beside: tuple[Beside, ...] = ()
    """That kernel timed once more, beside every form of PyTorch in the same rounds."""
    untimed: str = ""
    """Why it was not timed once more; a kernel that failed then counts as none."""
    compiled: int = 0
    """Attempts that compiled."""
    correct: int = 0
    """Attempts whose results were right."""
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cents: float = 0.0
    asked_s: float = 0.0
    """Seconds in which models answered, when the answers were made."""
    seconds: float = 0.0
    """Seconds of the process that ended the session, with builds, checks and timing."""

    @property
    def success(self) -> bool:
        """Whether a kernel passed every gate."""
        return self.best > 0

    @property
    def fast(self) -> bool:
        """Whether that kernel is surely faster than every form of PyTorch, by the intervals of the fresh timing."""
        return bool(self.beside) and all(one.comparison == "FASTER" for one in self.beside)

    @property
    def least(self) -> Beside | None:
        """The speed-up over the baseline, PyTorch's fastest form; None without a fresh timing."""
        return min(self.beside, key=lambda one: one.speedup, default=None)

    @property
    def contended(self) -> bool:
        """Whether other processes disturbed the fresh timing."""
        return any(one.contended for one in self.beside)

    @property
    def tokens(self) -> int:
        """The tokens of all questions and answers."""
        return self.prompt_tokens + self.completion_tokens

    def over(self, arm: str) -> Beside | None:
        """Return the speed-up over a form of PyTorch; None without one."""
        return next((one for one in self.beside if one.arm == arm), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """One task: what PyTorch takes for it."""

    name: str
    text: str
    """Digest of its file."""
    us: dict[str, float] = field(default_factory=dict)
    """The time of each form of PyTorch."""
    failed: dict[str, str] = field(default_factory=dict)
    """Why ``torch.compile`` failed, by form."""
    floor_us: float = 0.0
    """The least time that bytes and FLOPs allow; 0 where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Every session of a study, and what they have in common."""

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    attempts: int
    """The most attempts of a session."""
    tokens: int
    """The ceiling on tokens of a session; 0 for none."""
    strategy: str
    models: tuple[str, ...]
    """Who answered, as the servers or ``--answered-by`` say."""
    device: str
    threads: int
    """Threads that run a kernel, or what counts in their place: `unit`."""
    tasks: tuple[TaskFacts, ...]
    rows: tuple[Row, ...]
    unit: str = "threads"

    @property
    def machine(self) -> str:
        """The device, and how much of it runs a kernel."""
        return f"{self.device}, {self.threads} {self.unit}"

    def of(self, arm: str) -> tuple[Row, ...]:
        """Return the sessions of an arm."""
        return tuple(row for row in self.rows if row.arm == arm)

    @property
    def forms(self) -> tuple[str, ...]:
        """The forms of PyTorch that some kernel was timed beside."""
        return tuple(dict.fromkeys(one.arm for row in self.rows for one in row.beside))


def attempts_in(entries: Iterable[Entry]) -> tuple[Attempt, ...]:
    """Return the attempts of a session's journal, in their order."""
    return tuple(_attempt(entry) for entry in entries if isinstance(entry, (Node, Refused)))


def _attempt(entry: Node | Refused) -> Attempt:
    roles = tuple(step.role for step in entry.log)
    if isinstance(entry, Refused):
        return Attempt(parent=entry.node, what="refused", roles=roles)
    assert entry.verdict is not None
    assert entry.parent is not None
    return Attempt(parent=entry.parent, what=entry.verdict.kind, roles=roles, repeats=entry.repeats is not None)


def compiled(verdict: Verdict | None) -> bool:
    """Return whether a kernel with that verdict was built."""
    match verdict:
        case None | Rejected() | BuildFailed():
            return False
        case TimedOut(stage=stage) | Crashed(stage=stage) | Disturbed(stage=stage) | Cancelled(stage=stage):
            return stage in ("validate", "measure", "admit")
        case _:
            return True


def counts(nodes: Sequence[Node]) -> tuple[int, int]:
    """Return how many attempts compiled, and how many gave right results."""
    made = [node.verdict for node in nodes if node.written is not None]
    return sum(map(compiled, made)), sum(isinstance(one, Measured) for one in made)
