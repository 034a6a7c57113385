"""The verb `generate`: prompts from flags, stdin and ids, streamed one after another, timed beside eager."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentcompile.cli import running
from agentcompile.cli.flow import GenerateRequest, Generator, InputPrompt, Stream, TextPiece
from agentcompile.errors import AgentCompileError
from tests.unit.test_cli import flow, paper


def pieces(count: int) -> Iterator[TextPiece]:
    for i in range(count):
        yield TextPiece(text=f" {i}")


def generating(stream: Callable[[], Stream]) -> Callable[..., Generator]:
    return lambda lock, options, emit: lambda prompt, request: stream()


def test_generate_streams_the_prompt_and_its_continuation_beside_eager() -> None:
    screen, out, err = paper()
    functions = {
        "generate": generating(lambda: Stream(pieces=pieces(3), prompt_tokens=1)),
        "eager": lambda lock, options, prompt, request: pieces(3),
    }
    asked = running.prompts_of(["go", "on"], (), chat=False)
    assert (
        running.generate(
            {}, Path("x"), asked, GenerateRequest(), beside_eager=True, screen=screen, flow=flow(**functions)
        )
        == 0
    )
    assert out.getvalue() == "go 0 1 2\non 0 1 2\n"
    assert "3 tokens" in err.getvalue()
    assert "PyTorch eager" in err.getvalue()


def ids_alone() -> Stream:
    made = (TextPiece(text="", ids=(5,)), TextPiece(text="", ids=(7, 9), tokens=2, finish="length"))
    return Stream(pieces=iter(made), prompt_tokens=3, has_text=False)


def test_without_a_tokenizer_the_ids_are_shown_as_text() -> None:
    asked, how = running.prompts_of((), ["1,2,3"], chat=False), flow(generate=generating(ids_alone))
    screen, out, _ = paper()
    assert running.generate({}, Path("x"), asked, GenerateRequest(), beside_eager=False, screen=screen, flow=how) == 0
    assert out.getvalue() == "5,7,9\n"


def test_json_has_the_ids_the_length_of_the_prompt_and_why_it_ended() -> None:
    asked, how = running.prompts_of((), ["1,2,3"], chat=False), flow(generate=generating(ids_alone))
    screen, out, _ = paper("json")
    running.generate({}, Path("x"), asked, GenerateRequest(), beside_eager=False, screen=screen, flow=how)
    value = json.loads(out.getvalue())
    assert (value["text"], value["ids"], value["tokens"]) == ("", [5, 7, 9], 3)
    assert (value["prompt_tokens"], value["finish"]) == (3, "length")


def test_a_prompt_that_is_refused_is_not_shown_first() -> None:
    def refuses(lock: Path, options: object, emit: object) -> Generator:
        def run(prompt: InputPrompt, request: GenerateRequest) -> Stream:
            if prompt.text == "hello":
                raise AgentCompileError("there is no tokenizer", hint="--prompt-ids")
            return ids_alone()

        return run

    screen, out, _ = paper()
    asked = [InputPrompt(ids=(1,)), InputPrompt(text="hello")]
    with pytest.raises(AgentCompileError, match="no tokenizer"):
        running.generate(
            {}, Path("x"), asked, GenerateRequest(), beside_eager=False, screen=screen, flow=flow(generate=refuses)
        )
    assert out.getvalue() == ""


def test_a_ratio_that_was_taken_beside_other_processes_says_so() -> None:
    assert running.compared(40.0, 0.05) == "agentcompile is 40.00× as fast"
    busy = "agentcompile is 134.00× as fast, while other processes used 62% of the processors; "
    assert running.compared(134.0, 0.62) == busy + "on a quiet machine it may be far less"


def test_the_rate_counts_what_came_after_the_first_piece() -> None:
    speed = running.Speed(tokens=9, rest=8, first_s=1.0, rest_s=2.0)
    assert speed.tokens_per_s == 4.0
    assert running.Speed(tokens=1, rest=0, first_s=1.0, rest_s=0.0).tokens_per_s == 0.0


@pytest.mark.parametrize(
    ("texts", "ids", "chat", "told"),
    [
        ([""], [], False, "--prompt: is empty"),
        ([], [], False, "no prompt was given"),
        ([], ["1,x"], False, "--prompt-ids: '1,x' is no list of ids"),
        ([], [""], False, "--prompt-ids: '' is no list of ids"),
        (["hello"], ["1"], True, "--chat and --prompt-ids"),
    ],
)
def test_a_prompt_that_is_none_is_refused(texts: list[str], ids: list[str], chat: bool, told: str) -> None:
    with pytest.raises(AgentCompileError, match=re.escape(told)):
        running.prompts_of(texts, ids, chat=chat)


def test_prompts_are_texts_then_ids_and_a_dash_is_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    found = running.prompts_of(["one", "-"], ["1, 2,3"], chat=False)
    assert [one.text or one.ids for one in found] == ["one", "from a pipe\n", (1, 2, 3)]
    assert all(one.chat for one in running.prompts_of(["hi"], (), chat=True))
