"""A team of agents: one for each role, with a model, a transport and a temperature of its own, and every answer kept.

A question that is too long for a server is asked with less of the tree; what the server holds is known from then on.
An answer that is recorded for a question is not asked for again. Without a transport an agent answers from the record
alone: by the same prompt, or else by the same place in a session, since measured times differ from run to run.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from agentcompile.advice.client import PromptRequest, Requester, TooLong, Unanswered, Unrecorded
from agentcompile.advice.exchange import Cassette, Exchange, Rung
from agentcompile.advice.ledger import Ledger, Price
from agentcompile.advice.room import Room
from agentcompile.advice.wire import Reply, Wire
from agentcompile.agents.answers import UNREADABLE
from agentcompile.agents.prompts import RolePrompt
from agentcompile.events import Emit, silent
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import Role

LONGEST_ANSWER = 32_768
"""Most tokens of an answer that a ledger for agents should allow: a whole kernel, and what a model thinks before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Who answers for a role."""

    model: str
    wire: Wire | None = None
    """None for one that answers from the record alone."""
    temperature: float | None = None
    """None leaves it to the server."""
    price: Price | None = None
    """What its tokens cost; None where that is as the ledger's ceilings say."""
    context: int = 0
    """The tokens that its server holds, question and answer together; 0: it will say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer, not read yet."""

    text: str
    model: str
    exchange: str
    """Digest of the recorded exchange."""
    usage: Usage


class Team:
    """The agents of a session, which share one ledger and one record."""

    def __init__(
        self,
        agents: Mapping[Role, Agent],
        ledger: Ledger,
        cassette: Cassette,
        *,
        emit: Emit = silent,
        sleep: Callable[[float], object] = time.sleep,
        answered_by: str = "",
        counts_recorded: bool = True,
    ) -> None:
        """Create a team that looks answers up in `cassette` and keeps new ones there.

        `answered_by` is recorded in place of the model that a server reports. Without `counts_recorded` the ledger
        knows of all requests of earlier processes, so that a recorded answer costs nothing more.
        """
        self._agents, self._ledger, self._cassette = agents, ledger, cassette
        self._answered_by, self._counts_recorded = answered_by, counts_recorded
        self._counted = set[str]()
        numbers = itertools.count(1)
        self._requesters = {
            role: Requester(agent.wire, ledger, emit=emit, sleep=sleep, numbers=numbers, price=agent.price)
            for role, agent in agents.items()
            if agent.wire is not None
        }

        # Roles that one model has share what is learnt of its server.
        self._rooms = {agent.model: Room(agent.context) for agent in agents.values()}

    @property
    def spent(self) -> Usage:
        """What all requests used."""
        return self._ledger.spent

    def ask(self, prompt: RolePrompt) -> Said | Unanswered:
        """Ask the agent for the role of `prompt`, or return its recorded answer.

        Raises:
            AgentCompileError: the answer cannot be kept (environment).
        """
        agent = self._agents.get(prompt.role)
        if agent is None:
            return Unanswered(reason=f"there is no agent for the role {prompt.role}", final=True)
        found = self._recorded(prompt, agent)
        if found is None:
            requester = self._requesters.get(prompt.role)
            if requester is None:
                return Unrecorded(reason=f"no answer of the role {prompt.role} is recorded for this", final=True)
            got = self._asked(prompt, agent, requester)
            if isinstance(got, Unanswered):
                return got
            found = got
            self._cassette.keep(found)
        elif agent.wire is not None and self._counts_recorded and found.digest not in self._counted:
            # It was asked for before the process was killed, and is not in the session's journal yet.
            self._ledger.add(found.usage)
        self._counted.add(found.digest)
        return Said(text=found.answer, model=found.model, exchange=found.digest, usage=found.usage)

    def close(self) -> None:
        """End all connections."""
        for agent in self._agents.values():
            if agent.wire is not None:
                agent.wire.close()

    def _recorded(self, prompt: RolePrompt, agent: Agent) -> Exchange | None:
        found = self._cassette.get(prompt.digest)
        if agent.wire is None:
            return found if found is not None else self._cassette.get(prompt.place)
        return found if found is not None and found.model == agent.model else None

    def _asked(self, prompt: RolePrompt, agent: Agent, requester: Requester) -> Exchange | Unanswered:
        before, room = self._ledger.spent, self._rooms[agent.model]
        got: tuple[str, Rung, str] | Unanswered = TooLong(reason="")
        while isinstance(got, TooLong):  # the room gets smaller until a question fits, or none does
            asked = next((one for one in _lengths(prompt) if room.fits(one)), None)
            if asked is None:
                about = f"which holds about {room.tokens} tokens{f': {room.said}' if room.said else ''}"
                return Unanswered(reason=f"even the shortest question is too long for the server, {about}")
            got = requester.ask(_request(asked, agent, room), _read)
            if isinstance(got, TooLong) and got.allowed:
                room.refused(asked, got.allowed, got.reason)
        if isinstance(got, Unanswered) and not got.answered:
            return got
        assert asked is not None
        answered_by, rung, text = got if not isinstance(got, Unanswered) else _unreadable(got)
        return Exchange(
            keys={prompt.role: prompt.digest, "place": prompt.place},
            model=agent.model,
            answered_by=self._answered_by or answered_by,
            rung=rung,
            system=asked.system,
            user=asked.user,
            answer=text,
            usage=self._ledger.spent - before,
            at_ms=int(time.time() * 1000),
        )


def _lengths(prompt: RolePrompt) -> Iterator[RolePrompt]:
    """Yield a question, and then the same with less and less detail."""
    yield prompt
    yield from (replace(prompt, user=user) for user in prompt.shorter)


def _request(asked: RolePrompt, agent: Agent, room: Room) -> PromptRequest:
    return PromptRequest(
        system=asked.system,
        user=asked.user,
        schema=asked.schema,
        form="plan" if asked.role == "plan" else "kernel",
        temperature=agent.temperature,
        most_answer=lambda: room.answer(asked),
    )


def _read(reply: Reply, rung: Rung) -> tuple[str, Rung, str]:
    text = reply.text.encode(errors="replace").decode()
    if reply.cut_off:
        text = f"{UNREADABLE}the answer was cut off after {len(text)} characters"
    return reply.model, rung, text


def _unreadable(got: Unanswered) -> tuple[str, Rung, str]:
    return "", "json_schema", f"{UNREADABLE}{got.reason}"
