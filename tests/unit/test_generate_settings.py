"""What `generate` takes beside a prompt: Hugging Face's names, contradictions, conversations, arrays of prompts."""

from __future__ import annotations

import inspect
from array import array
from typing import Any

import numpy as np
import pytest
import torch

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.model import ModelInfo
from agentcompile.runtime.model import CompiledModel
from agentcompile.runtime.request import Request, messages_of, prompts_of, request_of
from agentcompile.runtime.settings import DEFAULTS, CompletionSettings

INFO = ModelInfo(
    name="tiny", architecture="Qwen3ForCausalLM", vocab=512, hidden=8, layers=1, heads=1, kv_heads=1, head_dim=8,
    context=16, dtype="fp32", eos=(0, 7), states=(), config_digest="", weights_digest="",
)  # fmt: skip
TOKENIZER: Any = object()
"""There is one, and nobody asks it for anything."""


def asked(**settings: Any) -> Request:
    return request_of(INFO, TOKENIZER, settings)


def refused(words: str, call: Any, *arguments: Any, **settings: Any) -> AgentCompileError:
    with pytest.raises(AgentCompileError, match=words) as caught:
        call(*arguments, **settings)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    return caught.value


def test_without_settings_a_request_is_greedy_and_ends_at_the_checkpoints_tokens() -> None:
    plain = asked()
    assert plain.sampling.greedy
    assert (plain.eos, plain.max_new_tokens, plain.logprobs, plain.top_logprobs) == ((0, 7), 128, False, 0)


@pytest.mark.parametrize(
    ("settings", "temperature"),
    [
        ({"do_sample": False, "temperature": 0.8}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": True, "temperature": 0.0}, 1.0),
        ({"do_sample": True, "temperature": 0.8}, 0.8),
        ({"do_sample": None, "temperature": 0.8}, 0.8),
    ],
)
def test_do_sample_stands_over_the_temperature(settings: dict[str, Any], temperature: float) -> None:
    assert asked(**settings).sampling.temperature == temperature


@pytest.mark.parametrize("given", [3, [3], (3, 3), np.int64(3), np.array([3]), torch.tensor(3), torch.tensor([3])])
def test_eos_token_id_replaces_the_checkpoints_own(given: Any) -> None:
    assert asked(eos_token_id=given).eos == (3,)


def test_none_is_the_default_of_every_setting() -> None:
    assert asked(**dict.fromkeys(DEFAULTS)) == asked()
    assert asked(do_sample=False, temperature=None, top_p=None, top_k=None) == asked()


def test_several_end_of_sequence_tokens_are_each_one() -> None:
    assert asked(eos_token_id=[9, 2]).eos == (2, 9)
    assert asked(ignore_eos=True).eos == ()


def test_stop_strings_are_stop() -> None:
    assert asked(stop_strings=["a", "b"]).stop == asked(stop=["a", "b"]).stop == ("a", "b")
    assert asked(stop_strings="ab").stop == ("ab",)


def test_a_number_of_likeliest_ids_asks_for_log_probabilities_as_well() -> None:
    assert (asked(logprobs=5).logprobs, asked(logprobs=5).top_logprobs) == (True, 5)
    assert (asked(logprobs=True).logprobs, asked(logprobs=True).top_logprobs) == (True, 0)


@pytest.mark.parametrize(
    ("settings", "words", "hint"),
    [
        ({"stop": "a", "stop_strings": "b"}, r"stop: \('a',\), and stop_strings: \('b',\)", "one of them"),
        ({"ignore_eos": True, "eos_token_id": 3}, "ignore_eos: True, and eos_token_id: 3", "one of them"),
        ({"max_length": 50}, "max_length: 50", "max_new_tokens"),
        ({"attention_mask": [[1, 1]]}, "attention_mask", "list of prompts"),
        ({"temprature": 0.5}, "temprature: 0.5", "did you mean temperature?"),
        ({"num_beams": 4}, "num_beams: 4", "greedy"),
        ({"zzz": 1}, "zzz: 1", "max_new_tokens"),
        ({"logprobs": 0}, "logprobs: 0", "True or False"),
        ({"logprobs": 513}, "logprobs: 513", "512"),
        ({"do_sample": 1}, "do_sample: 1", "True or False"),
        ({"eos_token_id": 512}, "eos_token_id: 512", "511"),
        ({"eos_token_id": "3"}, "eos_token_id: '3'", "list"),
    ],
)
def test_what_cannot_be_is_refused_with_name_value_and_remedy(settings: dict[str, Any], words: str, hint: str) -> None:
    assert hint in refused(words, asked, **settings).hint


@pytest.mark.parametrize("given", [[1, 2], (1, 2), array("i", [1, 2]), np.array([1, 2]), torch.tensor([1, 2])])
def test_a_row_of_ids_is_a_prompt_in_any_form(given: Any) -> None:
    assert prompts_of(INFO, None, given) == array("q", [1, 2])


@pytest.mark.parametrize("form", [np.array, torch.tensor])
def test_an_array_of_one_row_is_a_prompt_and_one_of_several_a_batch(form: Any) -> None:
    assert prompts_of(INFO, None, form([[1, 2]])) == array("q", [1, 2])
    assert prompts_of(INFO, None, [form([[1, 2]]), [3]]) == [array("q", [1, 2]), array("q", [3])]
    assert prompts_of(INFO, None, form([[1, 2], [3, 4]])) == [array("q", [1, 2]), array("q", [3, 4])]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (torch.zeros(0, 3, dtype=torch.int64), "empty"),
        (torch.zeros(2, 0, dtype=torch.int64), r"prompt\[0\] is empty"),
        (torch.zeros(1, 1, 1, dtype=torch.int64), r"prompt\[0\]"),
        (np.array([[1.5, 2.0]]), r"prompt\[0\]"),
        (np.array([[1, 512]]), "512 is outside the vocabulary"),
        ({"input_ids": [1]}, "prompt: "),
        ([{"role": "user", "content": "a"}, 5], r"prompt\[1\]"),
    ],
)
def test_a_prompt_of_another_shape_is_refused(prompt: Any, words: str) -> None:
    refused(words, prompts_of, INFO, TOKENIZER, prompt)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "messages: 'hello'"),
        ([], "messages: "),
        (["hello"], r"messages\[0\]: 'hello'"),
        ([{"role": "user"}], r"messages\[0\]: "),
        ([{"role": "user", "content": "a", "name": "b"}], r"messages\[0\]: "),
        ([{"role": "clown", "content": "a"}], r"messages\[0\].role: 'clown'"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": None}], r"messages\[1\].content: None"),
    ],
)
def test_messages_that_are_none_are_refused(messages: Any, words: str) -> None:
    refused(words, messages_of, "messages", messages)


def test_a_conversation_without_a_tokenizer_is_refused() -> None:
    refused("no tokenizer", prompts_of, INFO, None, [{"role": "user", "content": "a"}])


@pytest.mark.parametrize("verb", ["generate", "stream", "chat", "astream"])
def test_help_and_editors_show_every_setting_with_its_default(verb: str) -> None:
    shown = inspect.signature(getattr(CompiledModel, verb)).parameters
    assert {name: shown[name].default for name in DEFAULTS} == dict(DEFAULTS)
    assert set(DEFAULTS) == set(CompletionSettings.__annotations__)
