"""A compiled model in Hugging Face's libraries: pipelines, padded batches, streamers; what it cannot do is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from agentcompile import hf
from agentcompile.errors import AgentCompileError
from agentcompile.replay.load import replay_lock
from agentcompile.runtime.model import CompiledModel, Completion
from tests.cpu import flows
from tests.cpu.conftest import SAMPLE_CONTEXT

Make = Callable[[str, str], Path]
PROMPT = "def add(a, b):\n    return"


@pytest.fixture(scope="module")
def model(warm: Path, planted: Make) -> CompiledModel:
    return replay_lock(planted("sample", "bf16"), flows.options(warm, flows.SAMPLE, SAMPLE_CONTEXT))


@pytest.fixture(scope="module")
def wrapped(model: CompiledModel) -> Any:
    return hf.wrap(model)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    made = transformers.AutoTokenizer.from_pretrained(str(flows.SAMPLE), local_files_only=True)
    made.padding_side = "left"
    return made


def expected(model: CompiledModel, prompt: Any, **settings: Any) -> list[int]:
    made = model.generate(prompt, **settings)
    assert isinstance(made, Completion)
    return list(made.tokens)


def test_a_pipeline_runs_a_compiled_model(model: CompiledModel, wrapped: Any, tokenizer: Any, caplog: Any) -> None:
    pipe = transformers.pipeline("text-generation", model=wrapped, tokenizer=tokenizer)
    made = pipe(PROMPT, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(expected(model, PROMPT, max_new_tokens=12), skip_special_tokens=True)
    assert made[0]["generated_text"] == PROMPT + text
    both = pipe([PROMPT, "import"], max_new_tokens=12, do_sample=False, batch_size=2, return_full_text=False)
    assert both[0][0]["generated_text"] == text
    several = pipe(PROMPT, max_new_tokens=12, num_return_sequences=2, do_sample=True)
    assert len(several) == 2
    assert "not supported" not in caplog.text


def test_it_says_of_itself_what_transformers_asks(wrapped: Any) -> None:
    assert type(wrapped).__name__ == wrapped.config.architectures[0] == "Qwen3ForCausalLM"
    assert (wrapped.device, wrapped.dtype) == (torch.device("cpu"), torch.bfloat16)
    assert wrapped.can_generate()
    assert wrapped.to("cpu") is wrapped.eval() is wrapped
    assert wrapped.generation_config.eos_token_id == 0
    with pytest.raises(AgentCompileError, match="cuda:0"):
        wrapped.to("cuda:0")


def test_a_padded_batch_gives_each_row_what_it_gives_alone(model: CompiledModel, wrapped: Any, tokenizer: Any) -> None:
    prompts = [PROMPT, "import", "class A:"]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    rows = wrapped.generate(**{k: batch[k] for k in ("input_ids", "attention_mask")}, max_new_tokens=10)
    length = batch["input_ids"].shape[1]
    assert rows.dtype == torch.int64
    assert torch.equal(rows[:, :length], batch["input_ids"])
    for row, prompt in zip(rows[:, length:].tolist(), prompts, strict=True):
        alone = expected(model, prompt, max_new_tokens=10)
        assert row[: len(alone)] == alone
        assert set(row[len(alone) :]) <= {0}


def test_a_row_that_ends_early_is_padded_behind(model: CompiledModel, wrapped: Any, tokenizer: Any) -> None:
    ids = [tokenizer(prompt)["input_ids"] for prompt in (PROMPT, "import")]
    short = [one[-1:] for one in ids]
    free = [expected(model, one, max_new_tokens=6, ignore_eos=True) for one in short]
    end = next(token for token in free[0] if token not in free[1])
    rows = wrapped.generate(torch.tensor(short), max_new_tokens=6, eos_token_id=end, pad_token_id=9)
    at = free[0].index(end)
    assert rows[0, 1:].tolist() == [*free[0][: at + 1], *[9] * (5 - at)]
    assert rows[1, 1:].tolist() == free[1]


def test_a_streamer_gets_the_text(wrapped: Any, model: CompiledModel, tokenizer: Any, capsys: Any) -> None:
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    streamer = transformers.TextStreamer(tokenizer, skip_prompt=True)
    rows = wrapped.generate(ids, max_new_tokens=12, streamer=streamer)
    new = rows[0, ids.shape[1] :].tolist()
    assert new == expected(model, PROMPT, max_new_tokens=12)
    assert capsys.readouterr().out == tokenizer.decode(new) + "\n"
    with pytest.raises(AgentCompileError, match="streamer: "):
        wrapped.generate(ids.repeat(2, 1), streamer=streamer)


def test_pytorchs_seed_decides_what_is_drawn(wrapped: Any, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]

    def drawn(seed: int) -> list[int]:
        torch.manual_seed(seed)
        made: list[int] = wrapped.generate(ids, max_new_tokens=12, do_sample=True, temperature=1.5)[0].tolist()
        return made

    assert drawn(1) == drawn(1) != drawn(2)


def test_lengths_and_configurations_count_as_in_transformers(wrapped: Any, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    length = ids.shape[1]
    assert wrapped.generate(ids, max_length=length + 3).shape == (1, length + 3)
    config = transformers.GenerationConfig(max_new_tokens=2, num_beams=1, use_cache=True)
    assert wrapped.generate(ids, generation_config=config).shape == (1, length + 2)
    assert wrapped.generate(ids, generation_config=config, max_new_tokens=4).shape == (1, length + 4)
    assert wrapped.generate(ids, max_new_tokens=2, do_sample=True, num_return_sequences=3).shape == (3, length + 2)


def test_prompts_and_configuration_are_passed_as_to_transformers(wrapped: Any, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    config = transformers.GenerationConfig(max_new_tokens=2)
    same = wrapped.generate(input_ids=ids, generation_config=config)
    assert torch.equal(wrapped.generate(ids, config), same)
    assert torch.equal(wrapped.generate(inputs=ids, max_new_tokens=2), same)
    with pytest.raises(AgentCompileError, match=r"inputs: .*, and input_ids: "):
        wrapped.generate(ids, input_ids=ids)


def test_no_new_tokens_give_the_prompts_back(wrapped: Any, tokenizer: Any) -> None:
    ids = tokenizer(PROMPT, return_tensors="pt")["input_ids"].repeat(2, 1)
    assert torch.equal(wrapped.generate(ids, max_new_tokens=0), ids)
    assert torch.equal(wrapped.generate(ids, max_length=ids.shape[1]), ids)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_beams": 2}, "num_beams: 2"),
        ({"return_dict_in_generate": True}, "return_dict_in_generate: True"),
        ({"repetition_penalty": 1.1}, "repetition_penalty: 1.1"),
        ({"min_new_tokens": 3}, "min_new_tokens: 3"),
        ({"logits_processor": [print]}, "logits_processor: "),
        ({"bad_words_ids": np.array([[1], [2]])}, "bad_words_ids: "),
        ({"attention_mask": torch.tensor([[1, 1, 0]])}, r"attention_mask\[0\]: \[1, 1, 0\]"),
        ({"attention_mask": torch.tensor([[1, 1]])}, "attention_mask: "),
        ({"max_length": 2}, "max_length: 2"),
        ({"input_ids": torch.tensor([1, 2])}, "input_ids: "),
        ({"input_ids": None}, "input_ids: None"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_supported_is_refused_by_name(settings: dict[str, Any], words: str, wrapped: Any) -> None:
    with pytest.raises(AgentCompileError, match=words) as raised:
        wrapped.generate(**{"input_ids": torch.tensor([[1, 2, 3]]), **settings})
    assert raised.value.hint


def test_only_compiled_models_are_wrapped() -> None:
    wrong: Any = object()
    with pytest.raises(AgentCompileError, match="model: "):
        hf.wrap(wrong)
