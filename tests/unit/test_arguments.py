"""Arguments: numbers of any library are taken for what they are; the rest is refused with name, value and hint."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcompile import arguments
from agentcompile.errors import AgentCompileError, ExitCode
from bench.campaign import api
from bench.campaign.wrong import Hostile


def test_numbers_of_other_libraries_are_numbers() -> None:
    assert arguments.whole("n", np.int64(3), 0, 9) == 3
    assert arguments.real("t", np.float32(0.5), 0.0, 1.0, "") == 0.5
    assert arguments.real("t", 1, 0.0, 1.0, "") == 1.0
    for given in ([1, 2], (1, 2), np.array([1, 2]), array("i", [1, 2]), [np.uint8(1), 2], range(1, 3)):
        assert list(arguments.ids("prompt", given)) == [1, 2]


REFUSED: list[tuple[str, Callable[[], object]]] = [
    ("n", lambda: arguments.whole("n", True, 0, 9)),
    ("n", lambda: arguments.whole("n", 1.0, 0, 9)),
    ("n", lambda: arguments.whole("n", 10, 0, 9)),
    ("n", lambda: arguments.whole("n", Hostile(), 0, 9)),
    ("n", lambda: arguments.whole("n", np.array([1, 2]), 0, 9)),
    ("t", lambda: arguments.real("t", float("nan"), 0.0, 1.0, "")),
    ("t", lambda: arguments.real("t", 10**400, 0.0, 1.0, "")),
    ("t", lambda: arguments.real("t", "0.5", 0.0, 1.0, "")),
    ("t", lambda: arguments.real("t", Hostile(), 0.0, 1.0, "")),
    ("b", lambda: arguments.switch("b", 1)),
    ("s", lambda: arguments.text("s", b"x")),
    ("s", lambda: arguments.text("s", "a\udcff")),
    (r"stop\[1\]", lambda: arguments.texts("stop", ["a", 5])),
    ("p", lambda: arguments.path("p", "a\0b")),
    ("p", lambda: arguments.path("p", Path("a" * 300))),
    ("p", lambda: arguments.path("p", None)),
    ("ids", lambda: arguments.ids("ids", b"ab")),
    ("ids", lambda: arguments.ids("ids", {1: 2})),
    (r"ids\[1\]", lambda: arguments.ids("ids", [1, True])),
    (r"ids\[0\]", lambda: arguments.ids("ids", [2**63])),
    (r"ids\[0\]", lambda: arguments.ids("ids", np.array([1.5]))),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_what_is_no_such_argument_is_a_usage_error_that_names_it(case: int) -> None:
    words, call = REFUSED[case]
    with pytest.raises(AgentCompileError, match=f"^{words}: ") as caught:
        call()
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    caught.value.message.encode()


def refuse(hint: str, code: ExitCode = ExitCode.USAGE) -> Any:
    raise AgentCompileError("no", hint=hint, exit_code=code)


@pytest.mark.parametrize(
    ("run", "plain", "outcome", "fault"),
    [
        (lambda: refuse("do"), None, "refused", ""),
        (lambda: 3, lambda: 3, "answered", ""),
        ([].pop, None, "wrong", "IndexError"),
        (lambda: refuse(""), None, "wrong", "hint ''"),
        (lambda: refuse("do", ExitCode.DRIFT), None, "wrong", "exit code 3"),
        (lambda: 3, None, "wrong", "expected a refusal"),
        (lambda: refuse("do"), lambda: 3, "wrong", "expected an answer"),
        (lambda: 4, lambda: 3, "wrong", "expected 3, got 4"),
    ],
)
def test_the_campaign_finds_every_way_a_call_can_go_wrong(
    run: Callable[[], Any], plain: Callable[[], Any] | None, outcome: str, fault: str
) -> None:
    found, why, _ = api.outcome_of(api.ApiCall(label="call", run=run, plain=plain))
    assert found == outcome
    assert (fault in why) if fault else not why


class Own:
    """A value whose own code fails, whatever it is asked."""

    def __getattr__(self, name: str) -> object:
        raise ValueError(name)

    def __index__(self) -> int:
        raise OSError("no index")


class Text(str):
    """A text whose own code fails."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def encode(self, *_: object, **__: object) -> bytes:
        raise RuntimeError("no bytes")


def own_arguments() -> list[Callable[[], object]]:
    import torch

    nowhere = torch.empty(2, dtype=torch.int64, device="meta")
    return [
        *(lambda: arguments.ids("a", Own()), lambda: arguments.ids("a", [Own()]), lambda: arguments.ids("a", nowhere)),
        *(lambda: arguments.ids("a", torch.tensor([1, 0]).to_sparse()), lambda: arguments.ids("a", range(10**12))),
        *(lambda: arguments.ids("a", range(10**30)), lambda: arguments.ids("a", [torch.tensor(True)])),
        *(lambda: arguments.whole("a", torch.tensor(True), 0, 9), lambda: arguments.whole("a", Own(), 0, 9)),
        *(lambda: arguments.real("a", np.bool_(True), 0, 9, ""), lambda: arguments.real("a", Own(), 0, 9, "")),
    ]


@pytest.mark.parametrize("case", range(len(own_arguments())))
def test_a_value_whose_own_code_fails_and_a_range_longer_than_memory_are_usage_errors(case: int) -> None:
    with pytest.raises(AgentCompileError, match=r"^a(\[0\])?: ") as caught:
        own_arguments()[case]()
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_class_derived_from_text_is_taken_for_its_letters() -> None:
    given = arguments.text("s", Text("abc"))
    assert type(given) is str
    assert given == "abc"
    assert not arguments.is_batch([Own()])
