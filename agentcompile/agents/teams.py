"""Who answers in a session, from its settings: a model and a temperature for each role, limits, and where answers lie.

In: the settings of the model and of the session. Out: a `Team`; with recorded exchanges, one that asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.advice.client import Unanswered
from agentcompile.advice.configure import ceilings_of
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger
from agentcompile.advice.wire import OpenAIWire, needs_openai
from agentcompile.agents.agents import LONGEST_ANSWER, Agent, Said, Team
from agentcompile.agents.arms import ARMS, models_of, replayed
from agentcompile.agents.folder import EXCHANGES, Asked
from agentcompile.agents.prompts import RolePrompt
from agentcompile.agents.refining import Asks
from agentcompile.arguments import OPENAI_ADVISOR
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import Role
from agentcompile.options import Options, advisor_secret

HOTTEST = 2.0
"""The highest temperature that servers take."""


@dataclass(slots=True)
class Listener:
    """A team, and why the last question had no answer."""

    team: Asks
    silence: Unanswered | None = None

    def ask(self, prompt: RolePrompt) -> Said | Unanswered:
        """Ask the team."""
        found = self.team.ask(prompt)
        self.silence = found if isinstance(found, Unanswered) else None
        return found


def temperatures_of(asked: Asked) -> dict[Role, float | None]:
    """Return the temperature of each role; None leaves it to the server.

    Raises:
        AgentCompileError: one is no number from 0 to 2, and not ``none`` (usage).
    """
    usual = ARMS[asked.arm].temperatures
    own: Mapping[Role, str] = {
        "plan": asked.plan_temperature,
        "code": asked.code_temperature,
        "debug": asked.debug_temperature,
    }
    return {role: _temperature(role, own[role], usual[role]) for role in usual}


def _temperature(role: Role, text: str, usual: float) -> float | None:
    if text in ("", "none"):
        return usual if not text else None
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= HOTTEST:
        hint = f"allowed: a number from 0 to {HOTTEST:g}, or none to leave it to the server"
        raise AgentCompileError(f"--{role}-temperature: {text[:80]!r} is not allowed", hint=hint)
    return found


def secrets_of(options: Options, asked: Asked) -> tuple[str, ...]:
    """Return the keys of all models that are asked, to be removed from what is written.

    Raises:
        AgentCompileError: the variable of one is not set (usage).
    """
    return tuple({key for name in models_of(options, asked).values() if name and (key := _key(options, name))})


def team_of(options: Options, asked: Asked, folder: Path, emit: Emit, spent: Usage) -> Team:
    """Return the agents of a session in `folder` whose earlier processes have `spent` so much.

    Raises:
        AgentCompileError: a role has nobody, a temperature or a price is missing or wrong, a key is not set, there is
            nothing to replay (usage); the `openai` package is missing (environment).
    """
    models, temperatures = models_of(options, asked), temperatures_of(asked)
    if source := replayed(options, asked):
        cassette = Cassette(Path(source))
        if not len(cassette):
            hint = f"name the folder `{EXCHANGES}` of a session, or what --record named"
            raise AgentCompileError(f"--replay {source}: holds no exchange", hint=hint)
        nobody: dict[Role, Agent] = {role: Agent(model="") for role in models}
        return Team(nobody, Ledger(Ceilings()), cassette)
    needs_openai()
    ceilings = replace(ceilings_of(options), answer=LONGEST_ANSWER)
    agents: dict[Role, Agent] = {role: _agent(options, name, temperatures[role]) for role, name in models.items()}
    kept = Cassette(Path(asked.record) if asked.record else folder / EXCHANGES)
    ledger = Ledger(ceilings, spent)
    return Team(agents, ledger, kept, emit=emit, answered_by=asked.answered_by, counts_recorded=False)


def _agent(options: Options, name: str, temperature: float | None) -> Agent:
    found = OPENAI_ADVISOR.fullmatch(name)
    assert found is not None, name
    wire = OpenAIWire(found["model"], found["url"] or "", _key(options, name))
    return Agent(model=found["model"], wire=wire, temperature=temperature)


def _key(options: Options, name: str) -> str:
    return advisor_secret(replace(options, advisor=name))
