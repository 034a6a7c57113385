"""The Python API on a compiled model: chat, several completions, likeliest ids, streams, closing, loading."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import agentcompile
from agentcompile.errors import AgentCompileError
from agentcompile.events import Event, LockWritten, TrialFinished, Warned
from agentcompile.lockfile.files import read_lock
from agentcompile.runs.session import RunDirectory
from agentcompile.runtime.model import CompiledModel, Completion
from agentcompile.runtime.text import Tokenizer
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.cpu.templated import with_template

Make = Callable[[str, str], Path]
PROMPT = "def add(a, b):\n    return"
CHAT = [{"role": "user", "content": "add two numbers"}]
RENDERED = "# user: add two numbers\n# assistant: "


@pytest.fixture(scope="module")
def model(warm: Path, planted: Make, tmp_path_factory: pytest.TempPathFactory) -> CompiledModel:
    """The sample checkpoint with a chat template."""
    checkpoint = with_template(tmp_path_factory.mktemp("chat") / "sample")
    return agentcompile.load(planted("sample", "bf16"), model=checkpoint, home=str(warm), threads=flows.THREADS)


def one(model: CompiledModel, prompt: Any, **settings: Any) -> Completion:
    made = model.generate(prompt, **settings)
    assert isinstance(made, Completion)
    return made


def test_a_conversation_is_completed_in_the_checkpoints_template(model: CompiledModel) -> None:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(RENDERED)
    assert model.tokenizer.template(CHAT) == ids
    made = model.chat(CHAT, max_new_tokens=12)
    assert made.prompt_tokens == len(ids)
    assert made.tokens == one(model, CHAT, max_new_tokens=12).tokens == one(model, ids, max_new_tokens=12).tokens
    streamed = [token for piece in model.stream(CHAT, max_new_tokens=12) for token in piece.tokens]
    assert tuple(streamed) == made.tokens
    both = model.generate([CHAT, PROMPT], max_new_tokens=12)
    assert isinstance(both, list)
    assert both[0].tokens == made.tokens


def test_an_answer_ends_at_a_token_that_the_checkpoint_names(model: CompiledModel, monkeypatch: Any) -> None:
    free = model.chat(CHAT, max_new_tokens=20, ignore_eos=True).tokens
    late = next(token for at, token in enumerate(free) if at >= 3 and token not in free[:at])
    monkeypatch.setattr(model, "info", replace(model.info, eos=(late,)))
    made = model.chat(CHAT, max_new_tokens=20)
    assert made.finish == "eos"
    assert made.tokens == free[: free.index(late) + 1]


def test_a_template_that_refuses_and_a_model_without_one_say_so(model: CompiledModel, monkeypatch: Any) -> None:
    with pytest.raises(AgentCompileError, match="no tools here"):
        model.chat([{"role": "tool", "content": "5"}])
    with pytest.raises(AgentCompileError, match=r"messages\[0\].role: 'clown'"):
        model.chat([{"role": "clown", "content": "a"}])
    monkeypatch.setattr(model, "tokenizer", Tokenizer(flows.SAMPLE))
    for ask in (model.chat, model.generate, model.stream):
        with pytest.raises(AgentCompileError, match="no chat template") as raised:
            ask(CHAT)
        assert raised.value.hint


def test_ids_that_replace_the_checkpoints_end_the_native_loop_and_the_other(model: CompiledModel) -> None:
    free = one(model, PROMPT, max_new_tokens=20, ignore_eos=True).tokens
    late = next(token for at, token in enumerate(free) if at >= 3 and token not in free[:at])
    for more in ({}, {"logprobs": True}):
        made = one(model, PROMPT, max_new_tokens=20, eos_token_id=[late], **more)
        assert (made.finish, made.tokens) == ("eos", free[: free.index(late) + 1])


def test_the_likeliest_ids_are_those_of_the_logits_and_hold_the_greedy_token(model: CompiledModel) -> None:
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(PROMPT)
    made = one(model, ids, max_new_tokens=8, logprobs=3, ignore_eos=True)
    assert [top[0][0] for top in made.top_logprobs] == list(made.tokens)
    assert [top[0][1] for top in made.top_logprobs] == pytest.approx(list(made.logprobs))
    rows = torch.log_softmax(model.logits([*ids, *made.tokens[:-1]], prompt=len(ids)).double(), -1)
    for top, row in zip(made.top_logprobs, rows, strict=True):
        values = [value for _, value in top]
        assert values == sorted(values, reverse=True)
        assert values == pytest.approx(row.topk(3).values.tolist(), abs=0.05)
    plain = one(model, ids, max_new_tokens=8, ignore_eos=True)
    assert (plain.tokens, plain.top_logprobs) == (made.tokens, ())
    pieces = list(model.stream(ids, max_new_tokens=8, logprobs=3, ignore_eos=True))
    assert tuple(top for piece in pieces for top in piece.top_logprobs) == made.top_logprobs


def test_logits_begin_with_the_last_token_that_is_prefilled(model: CompiledModel) -> None:
    ids = [5, 6, 7, 8, 9]
    whole = model.logits(ids, prompt=3)
    assert len(whole) == 3
    assert torch.equal(model.logits(ids, [4, 2], prompt=3), whole[[0, 2]])
    assert torch.equal(model.logits(ids, prompt=5)[0], model.prefill(ids))
    for prompt in (-1, 6, 1.5):
        with pytest.raises(AgentCompileError, match=r"^prompt: "):
            model.logits(ids, prompt=prompt)  # type: ignore[arg-type]
    for positions in ([1, 4], [0], [5]):
        with pytest.raises(AgentCompileError, match=r"^positions: ") as raised:
            model.logits(ids, positions, prompt=3)
        assert "from 2 to 4" in str(raised.value) + str(raised.value.hint)


def test_several_completions_are_those_of_their_seeds_and_the_prompt_is_prefilled_once(
    model: CompiledModel, monkeypatch: Any
) -> None:
    how: dict[str, Any] = {"max_new_tokens": 16, "temperature": 1.2, "ignore_eos": True}
    alone = [one(model, PROMPT, seed=seed, **how).tokens for seed in (4, 5, 6)]
    generator, runs = model._open().generator, list[int]()
    prefill = generator.chunks.run
    monkeypatch.setattr(generator.chunks, "run", lambda *given: runs.append(1) or prefill(*given))
    made = model.generate(PROMPT, n=3, seed=4, **how)
    assert isinstance(made, list)
    assert [each.tokens for each in made] == alone
    assert len(set(alone)) == 3
    assert len(runs) == 1
    single = model.generate(PROMPT, n=1, max_new_tokens=2)
    assert isinstance(single, list)
    for wrong in ({"prompt": PROMPT, "n": 0}, {"prompt": [PROMPT, PROMPT], "n": 2}, {"prompt": PROMPT, "n": True}):
        with pytest.raises(AgentCompileError, match=r"^n: "):
            model.generate(**wrong)
    with pytest.raises(AgentCompileError, match=r"^n: 2"):
        model.stream(PROMPT, n=2)  # type: ignore[call-arg]


def test_an_asynchronous_stream_gives_what_the_other_gives_and_leaves_the_model_free(model: CompiledModel) -> None:
    expected = one(model, PROMPT, max_new_tokens=24, ignore_eos=True)

    async def read() -> tuple[list[int], str]:
        pieces = [piece async for piece in model.astream(PROMPT, max_new_tokens=24, ignore_eos=True)]
        return [token for piece in pieces for token in piece.tokens], "".join(piece.text for piece in pieces)

    async def leave() -> tuple[int, ...]:
        stream = model.astream(PROMPT, max_new_tokens=60, ignore_eos=True)
        await anext(stream)
        with pytest.raises(AgentCompileError, match="already generating"):
            model.generate(PROMPT)
        await stream.aclose()
        return one(model, PROMPT, max_new_tokens=24, ignore_eos=True).tokens

    tokens, text = asyncio.run(read())
    assert (tuple(tokens), text) == (expected.tokens, expected.text)
    assert asyncio.run(leave()) == expected.tokens
    with pytest.raises(AgentCompileError, match="max_new_tokens"):
        model.astream(PROMPT, max_new_tokens=-1)


def test_plan_and_report_are_those_of_the_lock(model: CompiledModel, planted: Make) -> None:
    lock = read_lock(planted("sample", "bf16"))
    report: Any = json.loads(json.dumps(model.report()))
    assert report["lock"] == lock.content_hash
    kernels = {choice.template for plan in model.plan for choice in plan.choices if choice.use == "kernel"}
    assert kernels == {choice.template for plan in lock.plan for choice in plan.choices if choice.template}
    report["lock"] = ""
    assert model.report()["lock"] == lock.content_hash


@pytest.fixture
def short(warm: Path, planted: Make) -> Iterator[CompiledModel]:
    """A model that the test may close."""
    with agentcompile.load(planted("sample", "bf16"), model=flows.SAMPLE, home=str(warm)) as loaded:
        yield loaded


def test_a_closed_model_has_freed_its_memory_and_refuses_whatever_runs_it(short: CompiledModel) -> None:
    stream = short.stream([5, 6], max_new_tokens=20, ignore_eos=True)
    next(stream)
    with pytest.raises(AgentCompileError, match="already generating"):
        short.close()
    stream.close()  # type: ignore[attr-defined]
    held = weakref.ref(short._open().generator.memory)
    waiting = short.stream([5, 6], max_new_tokens=2)
    short.close()
    short.close()
    gc.collect()
    assert held() is None
    calls: list[Callable[[], object]] = [
        lambda: short.generate([5, 6]),
        lambda: short.stream([5, 6]),
        lambda: short.astream([5, 6]),
        lambda: short.chat(CHAT),
        lambda: short.logits([5, 6]),
        lambda: short.prefill([5, 6]),
        lambda: short.clock,
        short.__enter__,
        lambda: next(waiting),
    ]
    for call in calls:
        with pytest.raises(AgentCompileError, match="closed") as raised:
            call()
        assert raised.value.hint
    assert short.plan
    assert short.report()["lock"]


def test_an_error_in_the_block_is_not_hidden_by_a_stream_that_is_still_open(short: CompiledModel) -> None:
    stream = short.stream([5, 6], ignore_eos=True)

    def fail() -> None:
        with short:
            next(stream)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    stream.close()  # type: ignore[attr-defined]


class CompilesAgain(Exception):
    """Raised in place of a compilation that takes half a minute."""


def test_a_checkpoint_is_compiled_once_and_again_when_its_lock_does_not_hold(
    warm: Path, checkpoint: Make, tmp_path: Path
) -> None:
    path, events = checkpoint("tiny-llama", "fp32"), list[Event]()
    how: dict[str, Any] = {
        "context": CONTEXT, "threads": flows.THREADS, "choose": "pytorch", "home": warm, "seed": 77,
    }  # fmt: skip
    with agentcompile.load(path, **how, emit=events.append, run_dir=tmp_path / "run") as loaded:
        tokens = one(loaded, [5, 6, 7], max_new_tokens=6, ignore_eos=True).tokens
    (written,) = [event for event in events if isinstance(event, LockWritten)]
    lock = Path(written.path)
    assert lock.parent == warm / "locks"
    assert lock.name.startswith(f"{path.name}-")
    assert RunDirectory.open(tmp_path / "run").state().status == "finished"
    events.clear()
    with agentcompile.load(path, **how, emit=events.append) as loaded:
        assert one(loaded, [5, 6, 7], max_new_tokens=6, ignore_eos=True).tokens == tokens
    assert not [event for event in events if isinstance(event, (LockWritten, Warned))]

    def stop(event: Event) -> None:
        if isinstance(event, Warned) and "compiled again" in event.text:
            raise CompilesAgain(event.text)

    for damage in (
        lambda: flows.rewrite(read_lock(lock), lock, target={"device": "another"}),
        lambda: lock.write_text(""),
    ):
        damage()
        with pytest.raises(CompilesAgain, match=r"another|lock-version"):
            agentcompile.load(path, **how, emit=stop)
    with pytest.raises(AgentCompileError, match="already holds a run"):
        agentcompile.compile(path, **how, out=lock, run_dir=tmp_path / "run")


def test_a_compile_writes_the_lock_with_its_sources_where_it_is_asked_to(
    warm: Path, checkpoint: Make, tmp_path: Path
) -> None:
    path, lock = checkpoint("tiny-llama", "fp32"), tmp_path / "tiny.lock.toml"
    how: dict[str, Any] = {"context": CONTEXT, "threads": flows.THREADS, "choose": "first", "home": warm, "seed": 78}
    made = agentcompile.compile(path, **how, out=lock, bundle=True)
    together = tmp_path / "tiny.lock.bundle.tar.xz"
    assert any(part.use == "kernel" for plan in made.plan for part in plan.choices)
    with agentcompile.load(together, model=path, home=warm) as loaded, agentcompile.load(lock, home=warm) as other:
        assert one(loaded, [5, 6, 7], max_new_tokens=4).tokens == one(other, [5, 6, 7], max_new_tokens=4).tokens


def test_a_run_that_was_stopped_goes_on_and_measures_nothing_twice(
    warm: Path, checkpoint: Make, tmp_path: Path
) -> None:
    path, run, told = checkpoint("tiny-llama", "fp32"), tmp_path / "run", list[TrialFinished]()
    how: dict[str, Any] = {"home": warm, "seed": 79}
    more: dict[str, Any] = {
        "context": CONTEXT, "threads": flows.THREADS, "choose": "isolated", "seconds": 5,
        "out": tmp_path / "a.lock.toml",
    }  # fmt: skip

    def stop(event: Event) -> None:
        if isinstance(event, TrialFinished):
            told.append(event)
            if len(told) == 3:
                raise CompilesAgain

    with pytest.raises(CompilesAgain):
        agentcompile.compile(path, **how, **more, run_dir=run, emit=stop)
    assert not (tmp_path / "a.lock.toml").exists()
    with pytest.raises(AgentCompileError, match=r"^seed: 80, but the run to resume has 79$"):
        agentcompile.compile(resume=True, run_dir=run, home=warm, seed=80)
    with pytest.raises(AgentCompileError, match=r"^resume: no unfinished run$") as none:
        agentcompile.compile(resume=True, home=tmp_path / "empty")
    assert "run_dir takes one" in none.value.hint
    lock = agentcompile.compile(resume=True, run_dir=run, **how)
    assert lock.plan == read_lock(tmp_path / "a.lock.toml").plan
    state = RunDirectory.open(run).state()
    assert (state.status, state.resumed) == ("finished", 1)
    made = [(trial.candidate.id, trial.fidelity) for trial in state.trials]
    assert len(made) == len(set(made)) > 3
    assert made[:3] == [(event.trial.candidate.id, event.trial.fidelity) for event in told]


def test_a_compile_of_no_model_says_what_to_give() -> None:
    with pytest.raises(AgentCompileError, match=r"^model: none was named$") as refused:
        agentcompile.compile()
    assert "a checkpoint directory" in refused.value.hint


def test_a_run_that_goes_on_saves_no_weights_again(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match=r"^save_to: .*: a run that goes on has its model") as refused:
        agentcompile.compile(resume=True, save_to=tmp_path / "other", home=tmp_path)
    assert "leave save_to out" in refused.value.hint
    assert not (tmp_path / "other").exists()


def test_a_run_that_fails_on_its_arguments_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="nowhere"):
        agentcompile.compile(tmp_path / "nowhere", run_dir=tmp_path / "run", home=tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_run_that_fails_on_its_arguments_leaves_a_folder_that_was_there(tmp_path: Path) -> None:
    mine = tmp_path / "run" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("kept", encoding="utf-8")
    with pytest.raises(AgentCompileError, match="nowhere"):
        agentcompile.compile(tmp_path / "nowhere", run_dir=mine.parent, home=tmp_path)
    assert mine.read_text(encoding="utf-8") == "kept"
