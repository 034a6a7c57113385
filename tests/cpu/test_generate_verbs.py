"""`generate`, `explain` and `verify` on the sample's lock, as a user types them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from agentcompile.replay.load import replay_lock
from agentcompile.runs.session import RunDirectory
from agentcompile.runtime.text import Tokenizer
from tests.cpu import flows
from tests.cpu.conftest import SAMPLE_CONTEXT
from tests.cpu.courses import Course
from tests.cpu.templated import with_template

Make = Callable[[str, str], Path]
PROMPT = "def add(a, b):\n    return"


def verb(home: Path, *arguments: object) -> flows.Ended:
    return flows.verb(home, *arguments, "--model", flows.SAMPLE, "--threads", flows.THREADS)


def test_the_command_streams_what_the_library_generates(warm: Path, planted: Make) -> None:
    lock = planted("sample", "bf16")
    done = verb(warm, "generate", lock, "--prompt", PROMPT, "--max-new-tokens", 20)
    assert done.code == 0, done.err
    model = replay_lock(lock, flows.options(warm, flows.SAMPLE, SAMPLE_CONTEXT))
    made = model.generate(PROMPT, max_new_tokens=20)
    assert not isinstance(made, list)
    assert done.out == f"{PROMPT}{made.text}\n"
    assert "tokens/s" in done.err


def test_a_seed_and_a_stop_string_reach_the_model(warm: Path, planted: Make) -> None:
    lock = planted("sample", "bf16")
    sampled = ("--temperature", 0.9, "--seed", 4, "--max-new-tokens", 30, "--json")
    first, again, other = (
        json.loads(verb(warm, "generate", lock, "--prompt", PROMPT, *sampled[:3], seed, *sampled[4:]).out)["text"]
        for seed in (4, 4, 5)
    )
    assert first == again != other
    stop = first[3:6]
    cut = json.loads(verb(warm, "generate", lock, "--prompt", PROMPT, *sampled, "--stop", stop).out)["text"]
    assert cut == first[: first.index(stop)]


def test_prompts_come_as_chats_as_ids_and_several_at_once(warm: Path, planted: Make, tmp_path: Path) -> None:
    lock, checkpoint = planted("sample", "bf16"), with_template(tmp_path / "chat")

    def told(*arguments: object) -> object:
        asked = ("--max-new-tokens", 6, "--json", "--model", checkpoint, "--threads", flows.THREADS)
        done = flows.verb(warm, "generate", lock, *arguments, *asked)
        assert done.code == 0, done.err
        value = json.loads(done.out)
        return [one["text"] for one in value] if isinstance(value, list) else value["text"]

    whole = "# user: hello\n# assistant: "
    ids = ",".join(map(str, Tokenizer(checkpoint).encode(whole)))
    chatted, written, by_ids = told("--prompt", "hello", "--chat"), told("--prompt", whole), told("--prompt-ids", ids)
    assert chatted == written == by_ids
    assert told("--prompt", whole, "--prompt-ids", ids) == [written, by_ids]
    base = verb(warm, "generate", lock, "--prompt", "hello", "--chat")
    base.refuses(2, "chat template")


def test_eager_runs_beside_it_on_demand(warm: Path, planted: Make) -> None:
    done = verb(
        warm, "generate", planted("sample", "bf16"), "--prompt", PROMPT, "--max-new-tokens", 8, "--beside-eager",
        "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["eager_tokens_per_s"] > 0
    assert 0 <= told["others"] <= 1


def test_the_accuracy_of_a_lock_is_verified_on_the_users_prompts(warm: Path, planted: Make, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("import os, sys\n\nclass Node: def __init__(self, value): self.value = value\n")
    done = verb(warm, "verify", planted("sample", "bf16"), "--prompts", prompts, "--json")
    assert done.code == 0, done.err
    figures = json.loads(done.out)
    assert figures["tokens"] > 10
    assert figures["KL ratio (at most 1.25)"] <= 1.25


def test_a_float32_lock_is_verified_too(warm: Path, planted: Make, tmp_path: Path, checkpoint: Make) -> None:
    """Its eager loss is zero, so there is nothing to be 1.25 times of."""
    import shutil

    model = Path(shutil.copytree(checkpoint("tiny-qwen3", "fp32"), tmp_path / "model"))
    (model / "tokenizer.json").write_text(_tokenizer())
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a b c d e f\n")
    done = flows.verb(
        warm, "verify", planted("tiny-qwen3", "fp32"), "--prompts", prompts, "--json", "--model", model,
        "--threads", flows.THREADS,
    )  # fmt: skip
    assert done.code == 0, done.err


def _tokenizer() -> str:
    """A letter a token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({chr(97 + i): i + 2 for i in range(26)} | {"?": 0}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return str(made.to_str())


def test_prompts_too_short_to_score_are_refused(warm: Path, planted: Make, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("x\n")
    verb(warm, "verify", planted("sample", "bf16"), "--prompts", prompts).refuses(2, "two tokens")


def test_a_file_of_prompts_that_is_not_there_is_named(warm: Path, planted: Make, tmp_path: Path) -> None:
    path = tmp_path / "gone.txt"
    verb(warm, "verify", planted("sample", "bf16"), "--prompts", path).refuses(2, str(path))


def test_explain_shows_every_candidate_that_was_tried_for_a_region(compiled: Course) -> None:
    state = RunDirectory.open(compiled.run).state()
    tried = [trial for trial in state.trials if trial.candidate.region == state.trials[0].candidate.region]
    row = state.row(tried[0].candidate.region)
    assert row is not None
    shown = flows.verb(compiled.home, "explain", row.name, "--run-dir", compiled.run)
    assert shown.code == 0, shown.err
    assert shown.out.startswith(f"{row.name}: ")
    for trial in tried:
        assert trial.candidate.label in shown.out


def test_explain_names_the_regions_when_asked_for_another(compiled: Course) -> None:
    done = flows.verb(compiled.home, "explain", "softmax", "--run-dir", compiled.run)
    done.refuses(2, "softmax", "linear-merged@")
