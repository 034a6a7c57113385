"""What a person decided on the regions of a plan, and whether that still holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agentcompile.control.review import Item, items
from agentcompile.ir.template import Candidate
from agentcompile.runs.progress import State

from .ink import Span

Word = Literal["undecided", "measured", "stale", "approved", "rejected", "overridden", "kept"]

_SPANS: dict[Word, Span] = {
    "undecided": ("? undecided", "warn"),
    "measured": ("● measured", "dim"),
    "stale": ("≠ stale", "bad"),
    "approved": ("✓ approved", "good"),
    "rejected": ("✗ rejected", "bad"),
    "overridden": ("§ override", "accent"),
    "kept": ("- nothing", "dim"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A decision: its word, a sentence on it, and the candidate that a person put in place of the measured one."""

    word: Word = "kept"
    detail: str = "It runs as captured: there is nothing to decide."
    instead: Candidate | None = None
    reason: str = ""
    safe: bool = False

    @property
    def span(self) -> Span:
        """The decision as glyph and word."""
        return _SPANS[self.word]

    @property
    def open(self) -> bool:
        """Whether it keeps a reviewed lock from being written."""
        return self.word in ("undecided", "stale")


NOTHING = Decided()


def decisions(state: State) -> Mapping[str, Decided]:
    """Region id to what stands on it, for every region that there is something to decide on."""
    asked = state.review is not None or state.lock is None
    return {item.region: _decided(item, asked) for item in items(state)}


def _decided(item: Item, asked: bool) -> Decided:
    """`asked` says whether a person is waited for; a lock that was written without one was decided by measurement."""
    if item.standing == "undecided" and not asked:
        return Decided(word="measured", detail="Nobody was asked: the measurement decided.", safe=item.safe)
    ruling = item.ruling
    instead = ruling.candidate if ruling is not None and ruling.word == "override" else None
    reason = ruling.reason if ruling is not None else ""
    match item.standing:
        case "undecided":
            text = "Safe to approve: faster beyond its interval, every check passed." if item.safe else item.why
            detail = text or "Not safe to approve blindly: its interval or its checks leave a doubt."
        case "stale":
            detail = item.why
        case "approved":
            detail = f"What was on the screen then is what is chosen now ({item.approval[:12]})."
        case "rejected":
            detail = f"It runs as captured, in PyTorch{': ' + reason if reason else '.'}"
        case "overridden":
            detail = f"{instead.label if instead else 'Another candidate'} runs instead: {reason}"
    return Decided(word=item.standing, detail=detail, instead=instead, reason=reason, safe=item.safe)


def approval_of(state: State, region: str) -> str:
    """The digest of what is on the screen of a region; empty when it cannot be approved."""
    return next((item.approval for item in items(state) if item.region == region), "")
