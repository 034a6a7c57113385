"""Who answers in a session, from its settings: a model and a temperature for each role, limits, and where answers lie.

In: the settings of the model and of the session. Out: a `Team`; with recorded exchanges, one that asks nobody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from agentcompile.advice.client import Unanswered
from agentcompile.advice.configure import ceilings_of
from agentcompile.advice.exchange import Cassette
from agentcompile.advice.ledger import Ceilings, Ledger, Price
from agentcompile.advice.wire import OpenAIWire, needs_openai
from agentcompile.agents.agents import LONGEST_ANSWER, Agent, Said, Team
from agentcompile.agents.arms import ARMS, models_of, replayed
from agentcompile.agents.folder import EXCHANGES, Asked
from agentcompile.agents.prompts import RolePrompt
from agentcompile.agents.refining import Asks
from agentcompile.arguments import OPENAI_ADVISOR, prices
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
        """Ask the team, and keep its failure where it gave no answer."""
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


def prices_of(asked: Asked) -> dict[Role, Price | None]:
    """Return what the tokens of each role cost; None for what the settings say.

    Raises:
        AgentCompileError: one is no price (usage).
    """
    own: Mapping[Role, str] = {"plan": asked.plan_price, "code": asked.code_price, "debug": asked.debug_price}
    found: dict[Role, Price | None] = {role: prices(own[role]) for role in own}
    for role, text in own.items():
        if text and found[role] is None:
            hint = "allowed: IN,OUT, in dollars for a million tokens"
            raise AgentCompileError(f"--{role}-price: {text[:80]!r} is not allowed", hint=hint)
    return found


def keys_of(asked: Asked) -> dict[Role, str]:
    """Return the variable that holds the key of each role's model; empty for that of the settings.

    Raises:
        AgentCompileError: one is no name of a variable (usage).
    """
    found: dict[Role, str] = {"plan": asked.plan_key, "code": asked.code_key, "debug": asked.debug_key}
    for role, name in found.items():
        if name and not re.fullmatch(r"[A-Z_][A-Z0-9_]{0,63}", name):
            hint = "put the key into a variable, say MY_KEY, and name that"  # the value may be the key itself
            raise AgentCompileError(f"--{role}-key: no name of a variable in capital letters", hint=hint)
    return found


def secrets_of(options: Options, asked: Asked) -> tuple[str, ...]:
    """Return the keys of all models that are asked, to be removed from what is written.

    Raises:
        AgentCompileError: the variable of one is not set (usage).
    """
    named = models_of(options, asked).items()
    return tuple({key for role, name in named if name and (key := _key(options, asked, role, name))})


def team_of(options: Options, asked: Asked, folder: Path, emit: Emit, spent: Usage) -> Team:
    """Return the agents of a session in `folder` whose earlier processes have `spent` so much.

    Raises:
        AgentCompileError: a role has nobody, a temperature or a price is missing or wrong, a key is not set, there is
            nothing to replay (usage); the `openai` package is missing (environment).
    """
    models, temperatures, costs = models_of(options, asked), temperatures_of(asked), prices_of(asked)
    keys_of(asked)
    if source := replayed(options, asked):
        cassette = Cassette(Path(source))
        if not len(cassette):
            hint = f"name the folder `{EXCHANGES}` of a session, or what --record named"
            raise AgentCompileError(f"--replay {source}: holds no exchange", hint=hint)
        nobody: dict[Role, Agent] = {role: Agent(model="") for role in models}
        return Team(nobody, Ledger(Ceilings()), cassette)
    needs_openai()
    if all(costs[role] is not None for role in models):
        options = replace(options, advisor_price=options.advisor_price or "0,0")
    ceilings = replace(ceilings_of(options), answer=LONGEST_ANSWER)
    agents: dict[Role, Agent] = {
        role: _agent(name, _key(options, asked, role, name), temperatures[role], costs[role], options.advisor_context)
        for role, name in models.items()
    }
    kept = Cassette(Path(asked.record) if asked.record else folder / EXCHANGES)
    ledger = Ledger(ceilings, spent)
    return Team(agents, ledger, kept, emit=emit, answered_by=asked.answered_by, counts_recorded=False)


def _agent(name: str, key: str, temperature: float | None, price: Price | None, context: int) -> Agent:
    found = OPENAI_ADVISOR.fullmatch(name)
    assert found is not None, name
    wire = OpenAIWire(found["model"], found["url"] or "", key)
    return Agent(model=found["model"], wire=wire, temperature=temperature, price=price, context=context)


def _key(options: Options, asked: Asked, role: Role, name: str) -> str:
    """Return the key of the model `name` that has a role; the variable of the role comes before that of all."""
    return advisor_secret(replace(options, advisor=name, advisor_key=keys_of(asked)[role] or options.advisor_key))
