"""Arguments of the public interface, right and wrong: for each, values of every type that a caller might pass.

A right value comes with the plain one that it means, and both calls must give the same; a wrong one must be refused.
"""

from __future__ import annotations

import array
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

WRONG = object()
"""The marker in place of a meaning: the value is wrong."""


class Hostile:
    """An object that raises when its repr, its length or its value as a float is asked for."""

    def _raises(self) -> Any:
        raise RuntimeError("none")

    __repr__ = __len__ = __float__ = _raises


class Value(NamedTuple):
    """The value of one argument: what is passed, and the plain value that it means."""

    given: Any
    means: Any = WRONG


def _all_wrong(*given: Any) -> list[Value]:
    return [Value(given=one) for one in given]


def anything() -> list[Value]:
    """Return values that no argument takes, unless the argument is a module or a function."""
    return _all_wrong(
        None, b"x", bytearray(b"x"), memoryview(b"x"), {}, {"a": 1}, {1, 2}, object(), Hostile(), 1 + 2j, Ellipsis,
        NotImplemented, type, iter((1, 2)), (one for one in (1, 2)), slice(1), float("nan"), ValueError("x"),
    )  # fmt: skip


def counts(most: int) -> list[Value]:
    """Return values for a whole number from 0 to `most`, of which 3 is a plain one."""
    import numpy as np
    import torch

    right = [np.int64(3), np.int32(3), np.uint8(3), torch.tensor(3)]
    wrong = (True, False, 1.0, 3.5, "3", "", -1, -(2**70), most + 1, 2**70, float("inf"), [3], (3,), np.float32(3))
    return [*(Value(given=one, means=3) for one in right), *_all_wrong(*wrong, np.array([1, 2]), torch.tensor([1, 2]))]


def reals(plain: float, least: float, most: float) -> list[Value]:
    """Return values for a number from `least` to `most`; `plain` is a plain one."""
    import numpy as np

    right = [np.float64(plain), np.float32(plain), plain]
    wrong = (True, "0.5", "", [plain], float("inf"), -float("inf"), least - 1e-3, most + 1e-3, -(10**400), 10**400)
    return [*(Value(given=one, means=plain) for one in right), *_all_wrong(*wrong, np.array([0.5, 0.5]))]


def switches() -> list[Value]:
    """Return values for True or False."""
    return [Value(given=True, means=True), *_all_wrong(0, 1, 0.0, "yes", "", [True], [])]


def likeliest() -> list[Value]:
    """Return values for True, False, or a number of likeliest ids; the plain value is True."""
    right = [Value(given=one, means=True) for one in (True, 1, 5)]
    return [*right, *_all_wrong(0, -1, 2**40, 0.0, 2.5, "yes", "", [True], [])]


def texts() -> list[Value]:
    """Return values for one text or several; the plain value is no text."""
    return [
        *(Value(given=one, means=()) for one in ([], "", [""], ("", ""))),
        *_all_wrong(5, 0.5, True, [b"x"], [None], ["a", 5], "\ud800", ["a", "x\udfff"], {"a": "b"}, [["a"]]),
    ]


def paths() -> list[Value]:
    """Return values for a path that must exist; none of these does."""
    return _all_wrong(
        5, 0.5, True, [], ["a"], "\udcff", "a\0b", "a" * 300, "a/" * 3000, "/", "..", "/no/such/place",
        "~no-such-user/x", "\n", "a\nb", "\x1b[31m", "preset:", "preset:nothing", "%s%n", " ", "\u202e", "con:",
        "file:///etc/passwd",
    )  # fmt: skip


def ids(rng: random.Random, vocab: int, context: int) -> Value:
    """Draw a list of token ids in some form, or one with a single wrong item in it."""
    import numpy as np
    import torch

    plain = [rng.randrange(vocab) for _ in range(rng.randrange(1, 24))]
    forms: Sequence[Callable[[list[int]], Any]] = (
        list, tuple, np.array, torch.tensor, lambda row: array.array("i", row), lambda row: [np.int64(i) for i in row],
        lambda row: np.array(row, dtype=np.uint16), lambda row: [torch.tensor(i) for i in row],
    )  # fmt: skip
    if rng.random() < 0.3:
        return Value(given=rng.choice(forms)(plain), means=plain)
    huge = (2**31, 2**63, 2**70, -(2**70), float("nan"))
    item = rng.choice([1.0, True, None, "a", b"a", -1, vocab, *huge, [1], (), 1j, Hostile()])
    at = rng.randrange(len(plain) + 1)
    return Value(given=rng.choice([list, tuple])([*plain[:at], item, *plain[at:]]))


def prompts(rng: random.Random, vocab: int, context: int) -> Value:
    """Draw a prompt: a text, token ids, or something wrong."""
    import numpy as np
    import torch

    if rng.random() < 0.6:
        return ids(rng, vocab, context)
    letters = "".join(chr(rng.choice([*range(32, 127), *range(0xA0, 0x250), 0x1F600, 0x202E])) for _ in range(20))
    at = rng.randrange(20)
    broken = [letters[:at] + surrogate + letters[at:] for surrogate in ("\ud83d", "\udcff")]
    return rng.choice(
        [
            *anything(),
            *_all_wrong("", [], (), 5, True, np.array([]), np.array([1.5]), np.array(3), torch.zeros(0)),
            *_all_wrong(torch.tensor(3), *broken, "a " * context * 2, "x" * 10_000_000, "word " * 2_000_000),
            *_all_wrong(
                "\U0001f600" * 2_500_000, [1] * (context + 1), [[1], []], [[1], None], ["a", 5], [[1], [vocab]]
            ),
            *_all_wrong(["a", "\ud800"], [[1.0]], [{}], [["a"]], np.array([[1, vocab]]), torch.zeros(0, 3)),
            *_all_wrong([{"role": "user"}], [{"role": "clown", "content": "a"}], [{"role": "user", "content": 5}]),
            *(Value(given=form([[3, 4, 5]]), means=[3, 4, 5]) for form in (np.array, torch.tensor)),
            *(Value(given=letters, means=letters), Value(given=range(3, 9), means=[3, 4, 5, 6, 7, 8])),
        ]
    )


def settings() -> Mapping[str, list[Value]]:
    """Return wrong and right values of everything that `generate` and `stream` take beside a prompt."""
    import numpy as np
    import torch

    return {
        # None is the default, whose 128 tokens take seconds.
        "max_new_tokens": [value for value in [*anything(), *counts(2**31 - 1)] if value.given is not None],
        "temperature": [*anything(), *reals(0.5, 0.0, 100.0), Value(given=1e-30), Value(given=5e-324)],
        "top_k": [*anything(), *counts(2**31 - 1)],
        "top_p": [*anything(), *reals(0.5, 0.0, 1.0), Value(given=0), Value(given=0.0)],
        "seed": [*anything(), *counts(2**64 - 1)[:10], Value(given=2**70), Value(given=-1, means=2**64 - 1)],
        "stop": [*anything(), *texts()],
        "logprobs": [*anything(), *likeliest()],
        "ignore_eos": [*anything(), *switches()],
        "do_sample": [value for value in [*anything(), *switches()] if value.given is not None],
        "eos_token_id": [
            *(value for value in anything() if value.given is not None),
            *(Value(given=one, means=(3,)) for one in (3, [3], (3, 3), np.int64(3), torch.tensor([3]))),
            *_all_wrong(-1, 2**31, True, 1.0, "3", [1.0], [-1], [[3]]),
        ],
        "stop_strings": [value for value in [*anything(), *texts()] if value.given is not None],
        "max_length": _all_wrong(5, None),
        "attention_mask": _all_wrong([[1]], None),
    }


def compiling() -> Mapping[str, list[Value]]:
    """Return values, only wrong ones, of what `compile` takes: a right one would compile."""
    import torch

    def wrong(*values: Value) -> list[Value]:
        return [value for value in values if value.means is WRONG and value.given is not None]

    files = wrong(*anything(), *paths()[:9])
    return {
        "model": [*anything(), *paths(), Value(torch.nn.Linear(2, 2))],
        "out": files,
        "save_to": files,
        "context": [*wrong(*anything(), *counts(1_048_576)), *_all_wrong(1, 0, 1_000_000)],
        "threads": wrong(*anything(), *counts(1024)),
        "budget": wrong(*anything(), *counts(1_000_000)),
        "batch": wrong(*anything(), *_all_wrong(0, 9, "1", [0], [1.0], [True])),
        "memory": wrong(*anything(), *_all_wrong(0, 1, "true")),
        "choose": wrong(*anything(), *_all_wrong("", "all", 5)),
        "seconds": wrong(*anything(), *counts(1_000_000)),
        "templates": wrong(*anything(), *_all_wrong(5, ["a\0b"], [5])),
        "advisor": wrong(*anything(), *_all_wrong(5, "", "nobody", "\ud800", "random:x", "replay:", "openai:", "a\0")),
        "emit": _all_wrong(None, 5, "x", [], object()),
    }


def lines(lock: str) -> list[list[str]]:
    """Return command lines that are wrong in one way each.

    A byte that is no UTF-8 appears as its surrogate, as in `sys.argv`.
    """
    ask = ["generate", lock, "--prompt"]
    settings = ("--temperature", "--top-p", "--top-k", "--seed", "--max-new-tokens", "--threads")
    wrong = ("nan", "x", "-1e9", "9" * 40, "", "\udcff", "1e999")
    long, verbs, numbers = "a" * 300, ("compile", "inspect", "replay"), ("--context", "--budget", "--seconds")
    return [
        *([*ask, "a", flag, value] for flag in settings for value in wrong if (flag, value) != ("--seed", "")),
        *([*ask, text] for text in ("", "\udcff", "a\udc80b")),
        *([*ask, "a", flag, "\udcff"] for flag in ("--stop", "--model", "--templates")),
        *(["generate", path, "--prompt", "a"] for path in ("\udcff", long, "a/" * 2000, "/", "/dev/null", "no")),
        *([verb, path] for verb in verbs for path in ("\udcff", long, "/", "no", "~no/x")),
        *(["compile", lock, flag, value] for flag in numbers for value in wrong if value),
        *(["verify", lock, "--prompts", path] for path in ("\udcff", long, "/", "no")),
        *([name, "\udcff"] for name in ("explain", "bench", "runs", "nothing", "export", "decide")),
        *(["generate", lock], ["generate"], ["compile", "--nothing"], ["replay", lock, "--locked=\udcff"], ["\udcff"]),
    ]
