"""The ways to use agents, and from the settings of a session which model answers for each role. Nothing asks here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentcompile.agents.folder import Asked
from agentcompile.agents.policies import Chain, FromRoot, TreePolicy
from agentcompile.agents.tree import Node
from agentcompile.arguments import OPENAI_ADVISOR
from agentcompile.errors import AgentCompileError
from agentcompile.ir.attempt import Role
from agentcompile.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentArm:
    """A way to use agents; the paper compares these at equal budgets."""

    plans: bool
    """Whether three agents work, or the code role alone."""
    policy: TreePolicy | None
    """None for that of the settings: a search over the tree."""
    temperatures: Mapping[Role, float]
    """What its agents are sampled with."""
    remembers: bool = True
    """Whether an attempt sees others."""


_THREE: Mapping[Role, float] = {"plan": 0.8, "code": 0.1, "debug": 0.1}
_ONE: Mapping[Role, float] = {"code": 0.8}
ARMS: Mapping[str, AgentArm] = {
    "stark": AgentArm(plans=True, policy=None, temperatures=_THREE),
    "sampling": AgentArm(plans=False, policy=FromRoot(), temperatures=_ONE, remembers=False),
    "reflexion": AgentArm(plans=False, policy=Chain(), temperatures=_ONE),
    "search-only": AgentArm(plans=False, policy=None, temperatures=_ONE),
    "agents-only": AgentArm(plans=True, policy=Chain(), temperatures=_THREE),
}
"""Arms by name; the first is the default."""


def roles_for(node: Node, arm: AgentArm) -> tuple[Role, ...]:
    """Return who works on a node: debug where it failed, else plan and then code; where one agent works, code."""
    if not arm.plans:
        return ("code",)
    return ("plan", "code") if node.sound else ("debug",)


def roles_of(arm: AgentArm) -> tuple[Role, ...]:
    """Return the roles that an arm asks at some time."""
    return ("plan", "code", "debug") if arm.plans else ("code",)


def replayed(options: Options, asked: Asked) -> str:
    """Return the folder of exchanges that answer in place of models; empty where models are asked."""
    return asked.replay or (options.advisor.removeprefix("replay:") if options.advisor.startswith("replay:") else "")


def models_of(options: Options, asked: Asked) -> dict[Role, str]:
    """Return who answers for each role that the arm of the session has, as ``openai:MODEL[@BASE_URL]``.

    Raises:
        AgentCompileError: nobody was named for one of them, or the arm is none (usage).
    """
    if asked.arm not in ARMS:
        raise AgentCompileError(f"--arm: {asked.arm[:80]!r} is no arm", hint=f"arms: {', '.join(ARMS)}")
    roles = roles_of(ARMS[asked.arm])
    if replayed(options, asked):
        return dict.fromkeys(roles, "")
    usual = options.advisor if options.advisor.startswith("openai:") else ""
    own: Mapping[Role, str] = {"plan": asked.plan, "code": asked.code, "debug": asked.debug}
    found = {role: own[role] or usual for role in roles}
    for role, name in found.items():
        if not OPENAI_ADVISOR.fullmatch(name):
            text = f"--{role}: {name[:80]!r} is no model" if name else f"no model was named for the role {role}"
            hint = f"--advisor openai:MODEL@http://HOST:PORT/v1 for all roles, --{role} for this one, or --replay DIR"
            raise AgentCompileError(text, hint=hint)
    return found
