"""A contract, scripted agents and a gate of their own, for tests of sessions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentcompile.advice.client import Unanswered
from agentcompile.advice.wire import ModelRequest, Reply
from agentcompile.agents.agents import Said
from agentcompile.agents.journal import Entry
from agentcompile.agents.prompts import RolePrompt
from agentcompile.agents.rules import CONTRACT_BEGINS, CONTRACT_ENDS
from agentcompile.agents.tree import Node, RoleStep
from agentcompile.ir.advice import Usage
from agentcompile.ir.attempt import Contract, Evaluated, Role, Written
from agentcompile.ir.digest import digest
from agentcompile.ir.trial import BuildFailed, Verdict
from tests.unit.fakes import measured

CONTRACT = Contract(
    region="r0123",
    kind="rmsnorm",
    language="cpp",
    interface={
        "manifest": {
            "answer": {
                "layouts": [],
                "params": [],
                "workspaces": [],
                "requires": [],
                "arch": [],
                "accumulation": "float32",
                "rounds": [],
                "launch": [{"entry": "f", "arguments": ["x", "norm", "y"], "in_place": []}],
            },
            "example": 'region = "rmsnorm"\nlanguage = "cpp"\nabout = "a"\ndtypes = ["fp32"]\ntokens = [1, 1]\n',
        },
        "dims": {"hidden": 64, "groups": 1},
        "ports": [["x", "fp32", [1, 1, 64]], ["norm", "fp32", [64]], ["y", "fp32", [1, 1, 64]]],
    },
    floor_ns=100.0,
    reference_ns=1000.0,
    incumbent_ns=900.0,
)
LAUNCH = {"entry": "f", "arguments": ["x", "norm", "y"]}


def ran() -> Verdict:
    """The verdict of a kernel that passed every gate."""
    from agentcompile.ir.template import Candidate
    from tests.unit.fakes import DECODE

    one = Candidate(region="r", regime=DECODE, template="t", template_digest="d", params=(), target="cpu")
    return measured(one, 0.1).verdict


RAN, BROKEN = ran(), BuildFailed(log="kernel.cpp:3:1: error: no such register")


def contract_in(system: str) -> dict[str, Any]:
    """The contract in the first message of a question."""
    text = system.partition(f"{CONTRACT_BEGINS}\n")[2].partition(f"\n{CONTRACT_ENDS}")[0]
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def starting_in(system: str) -> Any:
    """The manifest to start from in the first message to the code or debug role."""
    return json.loads(system.rpartition('{"notes": "\u2026", "manifest": ')[2].partition(', "kernel"')[0])


def node(id: int, parent: int | None, ns: float = math.inf, instruction: str = "", **more: Any) -> Node:
    """A node of a fixture tree: a time, or a failure to build."""
    if parent is None:
        return Node(id=id, parent=None, ns=ns, over_reference=1.0)
    step = RoleStep(role="plan", model="m", exchange="e", instruction=instruction, usage=Usage())
    return Node(
        id=id,
        parent=parent,
        written=Written(manifest="", kernel=f"kernel {id}\n"),
        verdict=RAN if ns < math.inf else BROKEN,
        ns=ns,
        over_reference=ns / 1000.0,
        log=(step,) if instruction else (),
        **more,
    )


def tree(*rows: tuple[int, float]) -> tuple[Node, ...]:
    """A root of 1000 ns, and a node for each (parent, ns)."""
    return (node(0, None, 1000.0), *(node(at, parent, ns) for at, (parent, ns) in enumerate(rows, 1)))


def plan(kernel: str = "", instruction: str = "unroll", **more: Any) -> str:
    """An answer of the plan role."""
    told = {"diagnosis": "slow", "idea": "", "instruction": instruction, "kernel_with_marks": kernel, **more}
    return json.dumps(told)


def draft(kernel: str, **more: Any) -> str:
    """An answer of the code or debug role."""
    return json.dumps({"notes": "n", "manifest": {"launch": [LAUNCH]}, "kernel": kernel, **more})


class Gate:
    """Does as kernels say on their first line: that is a time in ns, or anything else to fail."""

    def __init__(self) -> None:
        self.evaluated: list[Written] = []

    def evaluate(self, written: Written) -> Evaluated:
        """AttemptEvaluator by the first line."""
        self.evaluated.append(written)
        first = written.kernel.partition("\n")[0]
        if first.removeprefix("// ").isdigit():
            return Evaluated(verdict=RAN, ns=float(first.removeprefix("// ")), feedback={"over_floor": 2.5})
        return Evaluated(verdict=BROKEN, feedback={"log": f"no such thing as {first}"})


class Script:
    """Agents that answer by a function of the question, and keep what they were asked."""

    def __init__(self, answer: Callable[[RolePrompt, dict[str, Any]], str | Unanswered]) -> None:
        self._answer = answer
        self.asked: list[RolePrompt] = []

    def ask(self, prompt: RolePrompt) -> Said | Unanswered:
        """Answer."""
        self.asked.append(prompt)
        text = self._answer(prompt, json.loads(prompt.user))
        if isinstance(text, Unanswered):
            return text
        usage = Usage(calls=1, prompt_tokens=100, completion_tokens=10)
        return Said(
            text=text, model=f"m-{prompt.role}", exchange=digest("test/1", prompt.digest, ascii(text)), usage=usage
        )

    @property
    def roles(self) -> list[Role]:
        """The roles that were asked, in order."""
        return [prompt.role for prompt in self.asked]


class Wires:
    """A transport that answers as a script does; its requests are kept."""

    def __init__(self, answer: Callable[[dict[str, Any]], str]) -> None:
        self._answer = answer
        self.asks: list[ModelRequest] = []

    def send(self, ask: ModelRequest) -> Reply:
        """Answer."""
        self.asks.append(ask)
        usage = Usage(prompt_tokens=100, completion_tokens=10)
        return Reply(status=200, text=self._answer(json.loads(ask.user)), model="served", usage=usage)

    def close(self) -> None:
        """Nothing is open."""


class Memory:
    """A record in memory."""

    def __init__(self, entries: Sequence[Entry] = ()) -> None:
        self._entries = list(entries)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries."""
        return tuple(self._entries)

    def append(self, entry: Entry) -> None:
        """Keep an entry."""
        self._entries.append(entry)


def capable(data: Mapping[str, Any], role: str) -> str:
    """Answer as a mind that gets faster, but fails at every third attempt."""
    number, kernel = data["attempt"], next(one for one in data["nodes"] if one["id"] == data["node"]).get("kernel")
    time = f"// {600 - 10 * number}" if number % 3 or role == "debug" else f"// broken {number}"
    if role == "plan":
        lines = kernel.splitlines() if kernel else []
        marked = ["<<<IMPROVE BEGINS>>>", *lines[:1], "<<<IMPROVE ENDS>>>", *lines[1:]] if kernel else []
        return plan("\n".join(marked), instruction=f"idea {number}")
    return draft(f"{time}\nrest();\n")
