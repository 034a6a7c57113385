"""GGUF files that cannot be converted, each refused with its reason; what the cache keeps of those that can."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcompile.checkpoint.convert import FOLDER, RECEIPT, Receipt, kept, name_of, prune, receipt_of
from agentcompile.checkpoint.hashes import remembered, sha256_of
from agentcompile.checkpoint.locate import find_model
from agentcompile.checkpoint.names import gguf_at, is_here
from agentcompile.errors import AgentCompileError, ExitCode

gguf = pytest.importorskip("gguf")

METADATA = {
    "llama.context_length": 64,
    "llama.block_count": 1,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 64,
    "llama.attention.head_count": 2,
}
"""What every model has."""
ADD = {bool: "add_bool", int: "add_uint32", float: "add_float32", str: "add_string", list: "add_array"}


def written(
    path: Path, more: Mapping[str, Any] | None = None, *, architecture: str = "llama", kind: str = "F32"
) -> Path:
    """A small GGUF file with one tensor."""
    writer: Any = gguf.GGUFWriter(str(path), architecture)
    for key, value in {**METADATA, **(more or {})}.items():
        getattr(writer, ADD[type(value)])(key, value)
    _, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = np.zeros((8, size), dtype=np.uint8) if kind != "F32" else np.ones((8, 32), dtype=np.float32)
    dtype = gguf.GGMLQuantizationType[kind] if kind != "F32" else None
    writer.add_tensor("token_embd.weight", raw, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def refused(path: Path, message: str, *, code: ExitCode = ExitCode.USAGE, hint: str = "") -> None:
    with pytest.raises(AgentCompileError, match=message) as caught:
        find_model(str(path), path.parent / "cache")
    assert caught.value.exit_code == code
    assert hint in caught.value.hint
    assert caught.value.hint
    assert not list((path.parent / "cache").glob(f"{FOLDER}/*"))


@pytest.mark.parametrize("part", [0.03, 0.3, 0.6, 0.95])
def test_a_file_that_was_cut_is_refused_wherever_the_cut_is(part: float, tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * part)])
    refused(path, f"{path}: cut short or damaged", hint="download")


def test_a_file_of_another_kind_is_told_by_its_first_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"PK\3\4 a zip")
    refused(path, r"no GGUF: it begins with b'PK")
    path.write_bytes(b"")
    refused(path, r"no GGUF: it begins with b''")


def test_a_file_that_is_not_there_and_one_that_is_no_file_are_named(tmp_path: Path) -> None:
    refused(tmp_path / "gone.gguf", "gone.gguf: no such file")
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(tmp_path / "pipe.gguf", "pipe.gguf: no plain file")


CASES: dict[str, tuple[Mapping[str, Any], str, str]] = {
    "experts": ({"llama.expert_count": 8}, "llama.expert_count: mixture-of-experts", "dense"),
    "both ways": ({"llama.attention.causal": False}, "llama.attention.causal", "decoder-only"),
    "soft cap": ({"llama.final_logit_softcapping": 30.0}, "softcapping: 30.0: not supported", "llama"),
    "layers differ": ({"llama.feed_forward_length": [64, 32]}, r"feed_forward_length: \[64, 32\]", "llama"),
    "no width": ({"llama.embedding_length": 0}, "llama.embedding_length: 0: one positive number", "llama"),
}


@pytest.mark.parametrize("case", CASES)
def test_metadata_of_a_model_that_is_not_supported_are_named(case: str, tmp_path: Path) -> None:
    more, message, hint = CASES[case]
    refused(written(tmp_path / "a.gguf", more), message, hint=hint)


def test_an_architecture_is_named_beside_those_that_are_supported(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gguf", architecture="gemma3")
    refused(path, "general.architecture: gemma3: not supported", hint="llama, phi3, qwen2, qwen3")


def test_a_quantisation_type_that_nobody_reads_is_named(tmp_path: Path) -> None:
    refused(written(tmp_path / "a.gguf", kind="Q8_K"), "token_embd.weight: the quantisation type Q8_K", hint="Q4_K")
    path = written(tmp_path / "b.gguf")
    name = b"token_embd.weight"
    data = bytearray(path.read_bytes())
    at = data.index(name) + len(name) + 4 + 2 * 8  # after the number of extents and the extents
    data[at : at + 4] = (99).to_bytes(4, "little")
    path.write_bytes(data)
    refused(path, "an unknown quantisation type, number 99", hint="Q4_K")


def test_without_the_package_the_remedy_is_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "a.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    refused(path, "not installed", code=ExitCode.ENVIRONMENT, hint="pip install 'agentcompile[gguf]'")


def test_a_directory_means_its_only_gguf_file_unless_it_has_a_config(tmp_path: Path) -> None:
    assert gguf_at(tmp_path) is None
    path = written(tmp_path / "a.gguf")
    assert gguf_at(tmp_path) == path
    assert gguf_at(path) == path
    (tmp_path / "config.json").write_text("{}")
    assert gguf_at(tmp_path) is None
    (tmp_path / "config.json").unlink()
    written(tmp_path / "b.gguf")
    with pytest.raises(AgentCompileError, match=r"2 GGUF files: a\.gguf, b\.gguf") as caught:
        gguf_at(tmp_path)
    assert "name one" in caught.value.hint
    unnamed = path.rename(tmp_path / "blob")
    assert gguf_at(unnamed) == unnamed
    assert is_here(str(unnamed))
    assert not is_here(str(tmp_path / "a.gguf"))


def made(cache: Path, name: str, size: int, used_s: int) -> Path:
    """A converted checkpoint of `size` bytes that was last used at `used_s`."""
    path = cache / FOLDER / name
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"x" * size)
    (path / RECEIPT).write_text(f'{{"file": "{name}.gguf", "sha256": "{name}", "format": 1}}')
    os.utime(path / RECEIPT, (used_s, used_s))
    return path


def test_the_cache_forgets_what_was_not_used_for_longest(tmp_path: Path) -> None:
    old, fresh = made(tmp_path, "old", 5000, 1), made(tmp_path, "fresh", 5000, 2)
    half = tmp_path / FOLDER / ".half"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"x" * 5000)
    assert [path for path, _ in kept(tmp_path)] == [old, fresh, half]
    assert prune(tmp_path, 6000) > 5000
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [".half", "fresh"]
    for path in (half, half / "model.safetensors"):
        os.utime(path, (1, 1))
    assert prune(tmp_path, 0) > 10_000
    assert not list((tmp_path / FOLDER).iterdir())
    assert prune(tmp_path / "nowhere", 0) == 0


def test_a_converted_directory_says_what_it_was_made_from_and_is_called_like_it(tmp_path: Path) -> None:
    path = made(tmp_path, "abc", 10, 1)
    assert receipt_of(path) == Receipt(file="abc.gguf", sha256="abc")
    assert name_of(path) == "abc"
    assert receipt_of(tmp_path) is None
    assert name_of(tmp_path) == tmp_path.name
    (path / RECEIPT).write_text('{"file": "a"}')
    assert receipt_of(path) is None


def test_a_digest_is_remembered_until_the_file_changes(tmp_path: Path) -> None:
    file, hashes = tmp_path / "a", tmp_path / "cache/hashes.json"
    file.write_bytes(b"one")
    with remembered(hashes) as known:
        first = sha256_of(file, known)
        (key,) = known
        known[key] = "told"
    with remembered(hashes) as known:
        assert sha256_of(file, known) == "told"
        file.write_bytes(b"three")
        assert sha256_of(file, known) not in ("told", first)
    hashes.write_text("not JSON")
    with remembered(hashes) as known:
        assert known == {}
