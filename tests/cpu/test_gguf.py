"""GGUF files against the models that they were written from: weights, logits, configuration and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from agentcompile.checkpoint import Checkpoint
from agentcompile.checkpoint.convert import receipt_of
from agentcompile.checkpoint.locate import find_model
from agentcompile.errors import AgentCompileError
from agentcompile.runtime.text import Tokenizer
from tests.models import gguf_written as written
from tests.models.gguf_written import SHAPES

PROMPT = torch.tensor([[1, 17, 300, 5, 5, 64, 251, 9, 33, 2, 128, 77]])
CASES = [(name, kind) for name in ("llama", "qwen3") for kind in written.KINDS] + [("qwen2", "Q8_0"), ("phi3", "Q8_0")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A model, the weights that its file stands for, and the directory that became of it."""

    model: Any
    kept: dict[str, torch.Tensor]
    directory: Path

    def logits(self) -> torch.Tensor:
        """Of the converted model, in bfloat16."""
        return _logits(AutoModelForCausalLM.from_pretrained(str(self.directory), dtype=torch.bfloat16))


def _logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(PROMPT).logits.float()


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Converted]:
    """A tiny model of an architecture through a GGUF file of a type, each made once."""
    folder, made = tmp_path_factory.mktemp("gguf"), dict[tuple[str, str], Converted]()

    def make(name: str, kind: str) -> Converted:
        if (name, kind) not in made:
            file, model = folder / f"{name}-{kind}.gguf", SHAPES[name].model()
            kept = written.write(file, SHAPES[name], model, kind)
            made[name, kind] = Converted(model=model, kept=kept, directory=find_model(str(file), folder / "cache"))
        return made[name, kind]

    return make


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_weights_are_those_of_the_file_rounded_to_bfloat16(
    name: str, kind: str, converted: Callable[[str, str], Converted]
) -> None:
    found = converted(name, kind)
    stored = load_file(str(found.directory / "model.safetensors"))
    assert set(stored) == set(found.kept)
    for one, expected in found.kept.items():
        assert torch.equal(stored[one], expected.bfloat16()), one
    opened = Checkpoint.open(found.directory)
    assert {info.dtype for info in opened.tensors().values()} == {"bf16"}


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_logits_are_those_of_the_model_with_the_same_weights(
    name: str, kind: str, converted: Callable[[str, str], Converted]
) -> None:
    found = converted(name, kind)
    same = AutoModelForCausalLM.from_config(found.model.config, dtype=torch.bfloat16)
    same.load_state_dict(found.kept, strict=False)
    assert torch.equal(found.logits(), _logits(same))


ERRORS = {"F32": 0.02, "F16": 0.02, "BF16": 0.02, "Q8_0": 0.05, "Q6_K": 0.15, "Q4_K": 0.45, "Q4_0": 0.45}
"""Relative error of the logits beside the float32 model, by type; rows in a wrong order give more than 0.5."""


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_logits_are_as_far_from_the_original_as_the_type_explains(
    name: str, converted: Callable[[str, str], Converted]
) -> None:
    exact = _logits(SHAPES[name].model())

    def error(of: torch.Tensor) -> float:
        return float((of - exact).norm() / exact.norm())

    for kind, most in ERRORS.items():
        assert error(converted(name, kind).logits()) < most, kind
    wrong = SHAPES[name].model()
    with torch.no_grad():
        for layer in wrong.model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                mixed = written.interleaved(part.weight.numpy(), part.weight.shape[0] // 64)
                part.weight.copy_(torch.from_numpy(np.ascontiguousarray(mixed)))
    assert error(_logits(wrong)) > 0.5


def test_the_configuration_is_that_of_the_model(converted: Callable[[str, str], Converted]) -> None:
    for name, shape in SHAPES.items():
        found = converted(name, "Q8_0")
        config = json.loads((found.directory / "config.json").read_text())
        original = found.model.config.to_dict()
        keys = {"architectures", "dtype", "transformers_version", "_name_or_path", "unk_token_id", "layer_types"}
        keys |= {
            "original_max_position_embeddings",
            "bos_token_id",
            "eos_token_id",
            "pad_token_id",
            "max_window_layers",
            "sliding_window",
        }
        for key in set(original) & set(config) - keys:
            told, expected = config[key], original[key]
            assert told == (pytest.approx(expected) if isinstance(expected, float) else expected), (name, key)
        assert config["architectures"] == [type(found.model).__name__]
        assert config["dtype"] == "bfloat16"
        assert config.get("sliding_window") == (8 if name == "phi3" else None)
        assert found.directory.name == receipt_of(found.directory).sha256  # type: ignore[union-attr]
        assert shape.name == config["model_type"]


def test_a_split_model_becomes_what_the_whole_file_does(tmp_path: Path) -> None:
    # llama.cpp's writer splits: a first part without tensors, then eight tensors in each.
    shape = SHAPES["llama"]
    written.write(tmp_path / "whole.gguf", shape, shape.model(), "Q8_0")
    written.write(tmp_path / "split.gguf", shape, shape.model(), "Q8_0", each=8)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) == 4
    whole, split = (find_model(str(file), tmp_path / "cache") for file in (tmp_path / "whole.gguf", parts[2]))
    assert whole != split
    for name in ("model.safetensors", "config.json", "generation_config.json"):
        assert (whole / name).read_bytes() == (split / name).read_bytes(), name


def test_rotary_factors_that_llama_3_does_not_have_are_refused(tmp_path: Path) -> None:
    shape = SHAPES["llama"]
    model = shape.model()
    file = tmp_path / "odd.gguf"
    odd = {**model.config.rope_parameters, "low_freq_factor": 2.0}
    model.config.rope_parameters = {**odd, "rope_type": "llama3"}
    written.write(file, shape, model)
    with pytest.raises(AgentCompileError, match=r"rope_freqs\.weight\["):
        find_model(str(file), tmp_path / "cache")


def test_a_tensor_without_a_place_and_a_place_without_a_tensor_are_named(tmp_path: Path) -> None:
    shape, file = SHAPES["qwen2"], tmp_path / "more.gguf"
    extra = np.ones(4, dtype=np.float32)
    written.write(file, shape, shape.model(), change=lambda w: w.add_tensor("blk.0.attn_sinks.weight", extra))
    with pytest.raises(AgentCompileError, match=r"blk\.0\.attn_sinks\.weight: qwen2 has no such tensor"):
        find_model(str(file), tmp_path / "cache")
    less = tmp_path / "less.gguf"  # qwen3 has norms that a file of qwen2 lacks, and no biases
    plain = SHAPES["llama"]
    model = plain.model()
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    written.write(less, plain, model, architecture="qwen3")
    with pytest.raises(AgentCompileError, match=r"no tensor for model\.layers\.0\.self_attn\.k_norm\.weight"):
        find_model(str(less), tmp_path / "cache")


CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again.",
    "In 2024 there were 12345 of them; 67 x 89 = 5963.",
    "  two  spaces\n\tand tabs, naïve café, 日本語, emoji 🙂🚀 and more of them 🙂",
    "def main():\n    return {'a': 1}\n",
] * 4
TEXTS = ["Hello  world 2024!", " lead", "a🙂b\n\n  c", "1234567 of 日本", "it's naïve", "<|im_start|>the fox<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]


def trained(pre: str) -> Any:
    """A small byte-level tokenizer that splits as llama.cpp's `pre` does."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    llama3 = PRETOKENIZE_REGEX.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splits = {
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]),
        "gpt-2": plain,
        "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"), raw]),
        "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(llama3), "isolated"), raw]),
    }
    made: Any = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = splits[pre], decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=written.VOCAB, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return made


def into(made: Any, pre: str) -> Callable[[Any], None]:
    """What writes a tokenizer to a GGUF file."""
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens += [f"[PAD{at}]" for at in range(len(tokens), written.VOCAB)]

    def add(writer: Any) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types([gguf.TokenType.CONTROL if one in SPECIAL else gguf.TokenType.NORMAL for one in tokens])
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_eot_token_id(0)
        writer.add_chat_template(TEMPLATE)

    return add


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "qwen2", "llama-bpe"])
def test_texts_have_the_tokens_of_the_original_tokenizer(pre: str, tmp_path: Path) -> None:
    shape, file, made = SHAPES["qwen3"], tmp_path / "model.gguf", trained(pre)
    written.write(file, shape, shape.model(), text=into(made, pre))
    path = find_model(str(file), tmp_path / "cache")
    tokenizer = Tokenizer(path)
    first = [1] if pre == "llama-bpe" else []
    for text in TEXTS:
        assert tokenizer.encode(text) == first + made.encode(text).ids, text
        assert tokenizer.decode(tokenizer.encode(text)) == made.decode(made.encode(text).ids)
    assert tokenizer.decode(tokenizer.encode(TEXTS[0])) == TEXTS[0]
    assert tokenizer.template([{"role": "user", "content": "fox"}]) == made.encode("<|im_start|>fox<|im_end|>").ids
    assert json.loads((path / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def test_a_sentencepiece_vocabulary_begins_a_text_with_its_first_token(tmp_path: Path) -> None:
    words = ["\u2581", "\u2581fox", "fo", "f", "o", "x", "ox", "\u2581f", "1", "2"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2, *[gguf.TokenType.BYTE] * 256]

    def text(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([float(-at) for at in range(len(tokens))])
        writer.add_token_types([*kinds, *[gguf.TokenType.NORMAL] * len(words)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    shape, file = SHAPES["llama"], tmp_path / "model.gguf"
    written.write(file, shape, shape.model(), text=text)
    tokenizer = Tokenizer(find_model(str(file), tmp_path / "cache"))
    assert tokenizer.encode("fox 12")[0] == 1
    for said in ("fox 12", "ox  fox 🙂", "2fox\n1"):
        assert tokenizer.decode(tokenizer.encode(said)) == said


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (lambda writer: None, "the file has no tokenizer"),
        (lambda writer: writer.add_tokenizer_model("none"), "the file has no tokenizer"),
        (into(trained("gpt-2"), "martian"), "tokenizer.ggml.pre 'martian' is not supported"),
    ],
    ids=["nothing", "none", "unknown split"],
)
def test_without_a_tokenizer_that_is_known_there_are_token_ids_only(
    text: Callable[[Any], None], why: str, tmp_path: Path
) -> None:
    shape, file, said = SHAPES["qwen3"], tmp_path / "model.gguf", list[str]()
    written.write(file, shape, shape.model(), text=text)
    path = find_model(str(file), tmp_path / "cache", said.append)
    assert f"token ids only: {why}" in said[-1]
    with pytest.raises(AgentCompileError, match="there is no tokenizer"):
        Tokenizer(path)
