"""Checkpoints: what is read, and what every kind of broken one says. Headers are evaluated without torch."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentcompile.checkpoint import Checkpoint
from agentcompile.errors import AgentCompileError, ExitCode

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 8,
    "hidden_size": 4,
    "intermediate_size": 6,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
}


def safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A file's bytes, written by hand: name -> (element type, shape, data)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (kind, shape, raw) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


FLOATS = struct.pack("<6f", *range(6))
ONE = {"a": ("F32", [2, 3], FLOATS), "b": ("BF16", [3], b"\x80\x3f" * 3)}


def checkpoint(path: Path, *, config: dict[str, Any] | None = None, weights: bytes | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    (path / "model.safetensors").write_bytes(safetensors(ONE) if weights is None else weights)
    return path


def sharded(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "one.safetensors").write_bytes(safetensors({"a": ONE["a"]}))
    (path / "two.safetensors").write_bytes(safetensors({"b": ONE["b"]}))
    index = {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def test_one_file_and_shards_hold_the_same_tensors(tmp_path: Path) -> None:
    for path in (checkpoint(tmp_path / "one"), sharded(tmp_path / "shards")):
        opened = Checkpoint.open(path)
        assert {name: (t.shape, t.dtype, t.nbytes) for name, t in opened.tensors().items()} == {
            "a": ((2, 3), "fp32", 24),
            "b": ((3,), "bf16", 6),
        }
        assert opened.config["vocab_size"] == 8
        info = opened.info("a")
        assert info.file.read_bytes()[info.offset : info.offset + 24] == FLOATS


def test_opening_and_hashing_need_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from agentcompile.checkpoint import Checkpoint\n"
        f"Checkpoint.open({str(checkpoint(tmp_path))!r}).digest(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_the_digest_follows_the_bytes_and_not_the_directory(tmp_path: Path) -> None:
    first, second = checkpoint(tmp_path / "a"), checkpoint(tmp_path / "b")
    assert Checkpoint.open(first).digest() == Checkpoint.open(second).digest()
    changed = {**ONE, "a": ("F32", [2, 3], FLOATS[::-1])}
    (second / "model.safetensors").write_bytes(safetensors(changed))
    assert Checkpoint.open(first).digest() != Checkpoint.open(second).digest()


def test_a_known_file_is_not_hashed_again_until_it_changes(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    cache: dict[str, str] = {}
    first = Checkpoint.open(path).digest(cache)
    (key,) = cache
    cache[key] = "remembered"
    assert Checkpoint.open(path).digest(cache) != first
    (path / "model.safetensors").write_bytes(safetensors({**ONE, "c": ("F32", [1], b"\0" * 4)}))
    Checkpoint.open(path).digest(cache)
    assert len(cache) == 2


def test_the_config_digest_ignores_spelling(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    first = Checkpoint.open(path).config_digest()
    (path / "config.json").write_text(json.dumps(CONFIG, indent=4, sort_keys=True))
    assert Checkpoint.open(path).config_digest() == first


def refused(path: Path) -> AgentCompileError:
    with pytest.raises(AgentCompileError) as caught:
        Checkpoint.open(path)
    assert caught.value.exit_code == ExitCode.USAGE
    assert caught.value.hint
    return caught.value


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (lambda p: p.rename(p.with_name("elsewhere")), "no such directory"),
    "no config": (lambda p: (p / "config.json").unlink(), "config.json: no such file"),
    "config is not JSON": (lambda p: (p / "config.json").write_text("{'a': 1}"), "config.json: not JSON"),
    "config is a list": (lambda p: (p / "config.json").write_text("[1]"), "a list, not an object"),
    "no weights": (lambda p: (p / "model.safetensors").unlink(), "neither model.safetensors nor"),
    "empty weights": (lambda p: (p / "model.safetensors").write_bytes(b""), "cut short or no safetensors: 0 bytes"),
    "header cut": (
        lambda p: (p / "model.safetensors").write_bytes(safetensors(ONE)[:40]),
        "cut short or no safetensors: 40 bytes",
    ),
    "data cut": (lambda p: (p / "model.safetensors").write_bytes(safetensors(ONE)[:-1]), "b: cut short: ends at byte"),
    "header is not JSON": (
        lambda p: (p / "model.safetensors").write_bytes(struct.pack("<Q", 4) + b"{{{{"),
        "the header is not JSON",
    ),
    "eight-bit floats": (
        lambda p: (p / "model.safetensors").write_bytes(safetensors({"a": ("F8_E4M3", [2], b"\0\0")})),
        "a: element type F8_E4M3 is not supported",
    ),
    "shape and bytes differ": (
        lambda p: (p / "model.safetensors").write_bytes(safetensors({"a": ("F32", [2, 2], FLOATS)})),
        r"a: 24 bytes for shape \[2, 2\] of F32, which needs 16",
    ),
    "negative shape": (
        lambda p: (p / "model.safetensors").write_bytes(safetensors({"a": ("F32", [-2, -3], FLOATS)})),
        "a: a broken header entry",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_names_file_and_fault(case: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "model")
    damage, message = BROKEN[case]
    damage(path)
    error = refused(path)
    assert str(path) in error.message
    with pytest.raises(AgentCompileError, match=message):
        raise error


def test_a_file_in_place_of_the_directory_is_named(tmp_path: Path) -> None:
    path = checkpoint(tmp_path) / "model.safetensors"
    assert "is a file, not a directory" in refused(path).message


def test_other_formats_are_named_in_the_hint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path)
    (path / "model.safetensors").rename(path / "pytorch_model.bin")
    assert "convert pytorch_model.bin" in refused(path).hint


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    (path / "two.safetensors").unlink()
    assert "weight_map: two.safetensors: no such file" in refused(path).message


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    (path / "two.safetensors").write_bytes(safetensors({"c": ONE["b"]}))
    error = refused(path)
    assert "two.safetensors: b: no such tensor" in error.message


def test_a_shard_outside_the_directory_is_refused(tmp_path: Path) -> None:
    path = sharded(tmp_path / "model")
    index = {"weight_map": {"a": "../one.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "no plain file name" in refused(path).message


def test_a_broken_index_is_named(tmp_path: Path) -> None:
    path = sharded(tmp_path)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": []}))
    assert "weight_map: not a table" in refused(path).message


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "no architecture": ({"model_type": None}, "model_type: None"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, r"quantised weights \(gptq\) are not supported"),
    "experts": ({"num_experts": 8}, "num_experts: 8: mixture-of-experts"),
    "local experts": ({"num_local_experts": 4}, "num_local_experts: 4: mixture-of-experts"),
    "negative": ({"hidden_size": -4}, "hidden_size: -4"),
    "zero": ({"num_hidden_layers": 0}, "num_hidden_layers: 0"),
    "absurd": ({"vocab_size": 10**12}, "vocab_size: 1000000000000"),
    "text": ({"hidden_size": "4"}, "hidden_size: '4'"),
    "truth": ({"num_attention_heads": True}, "num_attention_heads: True"),
    "missing": ({"num_attention_heads": None}, "num_attention_heads: None"),
    "groups": ({"num_key_value_heads": 3, "num_attention_heads": 4}, "num_key_value_heads: 3 does not divide"),
    "heads": (
        {"num_attention_heads": 3, "num_key_value_heads": 3},
        "num_attention_heads: 3 does not divide hidden_size 4",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_an_impossible_config_names_key_and_value(case: str, tmp_path: Path) -> None:
    changes, message = CONFIGS[case]
    error = refused(checkpoint(tmp_path, config={**CONFIG, **changes}))
    assert "config.json" in error.message
    with pytest.raises(AgentCompileError, match=message):
        raise error


def test_what_the_model_needs_is_held_against_what_is_stored(tmp_path: Path) -> None:
    opened = Checkpoint.open(checkpoint(tmp_path))
    assert opened.expect("a", (2, 3), "fp32").name == "a"
    for name, shape, dtype, message in (
        ("z", (1,), "fp32", "z: no such tensor among 2"),
        ("a", (3, 2), "fp32", r"a: shape \[2, 3\], but config.json asks for \[3, 2\]"),
        ("a", (2, 3), "bf16", "a: fp32, but the model is bf16"),
    ):
        with pytest.raises(AgentCompileError, match=message):
            opened.expect(name, shape, dtype)  # type: ignore[arg-type]
