"""Split GGUF models: which files are one model, what parts must say of themselves, and what a lock keeps of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentcompile.checkpoint.convert import RECEIPT, Receipt, name_of
from agentcompile.checkpoint.gguf_file import open_gguf
from agentcompile.checkpoint.hashes import sha256_of_all
from agentcompile.checkpoint.names import gguf_at, location, model_of_lock, parts_of
from agentcompile.errors import AgentCompileError
from tests.unit.test_gguf_files import METADATA

gguf = pytest.importorskip("gguf")

HELD = ("token_embd.weight", "output_norm.weight", "output.weight")


def converters(folder: Path, *, small_first: bool = False) -> list[Path]:
    """A model of three tensors as llama.cpp's converter splits it, a tensor in each part."""
    writer: Any = gguf.GGUFWriter(str(folder / "a.gguf"), "llama", split_max_tensors=1, small_first_shard=small_first)
    for key, value in METADATA.items():
        writer.add_uint32(key, value)
    for at, name in enumerate(HELD):
        writer.add_tensor(name, np.full((8, 32), at, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("a-*.gguf"))


def part(path: Path, keys: Mapping[str, int | str], tensors: tuple[str, ...]) -> Path:
    """One file of whatever metadata, and tensors of one number each."""
    writer: Any = gguf.GGUFWriter(str(path), "llama")
    writer.kv_data[0].clear()  # the architecture, which the first part alone has
    for key, value in keys.items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name in tensors:
        writer.add_tensor(name, np.ones(1, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def keys(no: int, count: int = 3, tensors: int = 3) -> dict[str, int | str]:
    first: dict[str, int | str] = {"general.architecture": "llama", "general.name": "a", **METADATA}
    return {**(first if no == 0 else {}), "split.no": no, "split.count": count, "split.tensors.count": tensors}


def by_hand(folder: Path, **changes: tuple[Mapping[str, int | str], tuple[str, ...]]) -> Path:
    """Three parts of a tensor each, but for the `changes` to the parts `one`, `two` and `three`; the first's path."""
    plain = {word: (keys(no), (HELD[no],)) for no, word in enumerate(("one", "two", "three"))}
    for no, (metadata, tensors) in enumerate({**plain, **changes}.values()):
        part(folder / f"a-{no + 1:05}-of-00003.gguf", metadata, tensors)
    return folder / "a-00001-of-00003.gguf"


def refused(path: Path, message: str, hint: str) -> None:
    with pytest.raises(AgentCompileError, match=message) as caught:
        open_gguf(path)
    assert hint in caught.value.hint


@pytest.mark.parametrize("small_first", [False, True])
def test_any_part_and_their_folder_stand_for_all_that_a_converter_wrote(small_first: bool, tmp_path: Path) -> None:
    written = converters(tmp_path, small_first=small_first)
    assert len(written) == (4 if small_first else 3)
    for named in (tmp_path, *written):
        first = gguf_at(named)
        assert first == written[0]
        assert parts_of(first) == tuple(written)
    opened = open_gguf(written[-1])
    assert (opened.path, opened.parts) == (written[0], len(written))
    assert [tensor.name for tensor in opened.tensors] == list(HELD)
    assert [float(opened.tensor(name).data[0, 0]) for name in HELD] == [0, 1, 2]
    assert [opened.files[name] for name in HELD] == written[-3:]
    assert opened.get("ARCH.context_length") == METADATA["llama.context_length"]


def test_parts_whose_ending_is_in_capitals_are_parts_too(tmp_path: Path) -> None:
    written = [path.rename(path.with_suffix(".GGUF")) for path in converters(tmp_path)]
    for named in (tmp_path, *written):
        assert gguf_at(named) == written[0]
    assert parts_of(written[1]) == tuple(written)
    assert open_gguf(written[-1]).parts == len(written)


def test_a_model_of_one_part_is_a_file_like_any_other(tmp_path: Path) -> None:
    path = part(tmp_path / "a-00001-of-00001.gguf", keys(0, count=1), HELD)
    assert open_gguf(path).parts == 1


def test_a_missing_part_is_named_whichever_was_given(tmp_path: Path) -> None:
    written = converters(tmp_path)
    for gone in (written[1], written[0]):
        gone.unlink()
        refused(written[2], f"{gone}: no such file, one of the 3 parts", f"into {tmp_path}, beside the others")


def test_two_models_in_a_folder_are_listed_by_their_first_parts(tmp_path: Path) -> None:
    converters(tmp_path)
    part(tmp_path / "b-00002-of-00002.gguf", keys(1, count=2), ("x",))
    with pytest.raises(AgentCompileError, match=r"2 GGUF files: a-00001-of-00003\.gguf, b-00001-of-00002\.gguf"):
        gguf_at(tmp_path)


OTHER = "put all parts of one model into one folder"
CASES: dict[str, tuple[str, tuple[Mapping[str, int | str], tuple[str, ...]], str, str]] = {
    "count": ("two", (keys(1, count=4), ("x",)), "00002-of-00003.gguf: split.count: 4, not 3 as its name says", OTHER),
    "no count": ("two", ({}, ("x",)), "00002-of-00003.gguf: split.count: 1, not 3", OTHER),
    "a word": ("two", ({"split.count": "3"}, ("x",)), "split.count: '3', not 3 as its name says", OTHER),
    "swapped": ("three", (keys(1), ("x",)), "00003-of-00003.gguf: split.no: 1, not 2 as its name says", OTHER),
    "other total": (
        "two",
        (keys(1, tensors=9), ("x",)),
        r"split.tensors.count: 9, but 3 in a-00001-of-00003.gguf",
        OTHER,
    ),
    "other model": (
        "two",
        ({**keys(1), "general.name": "b"}, ("x",)),
        "00002-of-00003.gguf: general.name: 'b', but 'a' in a-00001-of-00003.gguf: parts of different models",
        OTHER,
    ),
    "twice": ("three", (keys(2), HELD[:1]), f"{HELD[0]}: this tensor is in a-00001-of-00003.gguf too", OTHER),
    "too few": ("three", (keys(2), ()), "split.tensors.count: 3, but its 3 parts hold 2", "download all parts again"),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_that_are_not_of_one_model_are_named_with_what_they_say(case: str, tmp_path: Path) -> None:
    word, change, message, hint = CASES[case]
    refused(by_hand(tmp_path, **{word: change}), message, hint)


def test_a_part_that_does_not_say_how_many_tensors_there_are_is_refused(tmp_path: Path) -> None:
    bare = [{key: value for key, value in keys(no).items() if key != "split.tensors.count"} for no in range(3)]
    first = by_hand(tmp_path, one=(bare[0], HELD[:1]), two=(bare[1], HELD[1:2]), three=(bare[2], HELD[2:]))
    refused(first, "split.tensors.count: missing, but its 3 parts hold 3", "download all parts again")


def test_a_part_under_a_name_without_its_number_says_how_parts_are_named(tmp_path: Path) -> None:
    moved = converters(tmp_path)[0].rename(tmp_path / "b.gguf")
    refused(moved, "b.gguf: split.count: 3: one part of several", "NAME-00001-of-00003.gguf")
    beyond = part(tmp_path / "b-00004-of-00003.gguf", keys(0), HELD)
    refused(beyond, "its name does not say which", "NAME-00001-of-00003.gguf")


def test_a_part_that_is_cut_is_the_one_that_is_named(tmp_path: Path) -> None:
    second = converters(tmp_path)[1]
    second.write_bytes(second.read_bytes()[:-9])
    refused(tmp_path / "a-00001-of-00003.gguf", f"{second}: cut short or damaged", "download the file again")


def test_the_digest_covers_every_part_in_order(tmp_path: Path) -> None:
    written = converters(tmp_path)
    lines = "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in written)
    assert sha256_of_all(written) == hashlib.sha256(lines.encode()).hexdigest()
    assert sha256_of_all(written[:1]) == hashlib.sha256(written[0].read_bytes()).hexdigest()
    before = sha256_of_all(written)
    written[2].write_bytes(written[2].read_bytes()[:-4] + b"more")
    assert sha256_of_all(written) != before


def test_a_model_is_called_by_its_name_without_the_part(tmp_path: Path) -> None:
    (tmp_path / RECEIPT).write_text('{"file": "Qwen3-0.6B-00001-of-00003.gguf", "sha256": "a", "format": 1}')
    assert name_of(tmp_path) == "Qwen3-0.6B"
    assert Receipt(file="a", sha256="b").format == 1


def test_a_lock_records_the_first_part_under_its_own_name_where_it_is_a_link(tmp_path: Path) -> None:
    # The download cache of Hugging Face's hub has links whose targets are called by their digests.
    (tmp_path / "blobs").mkdir()
    (tmp_path / "model").mkdir()
    for at, file in enumerate(converters(tmp_path)):
        (tmp_path / "model" / file.name).symlink_to(file.rename(tmp_path / f"blobs/{at}"))
    lock = tmp_path / "a.lock.toml"
    recorded = location(str(tmp_path / "model/a-00002-of-00003.gguf"), lock)
    assert recorded == location(str(tmp_path / "model"), lock) == "model/a-00001-of-00003.gguf"
    opened = open_gguf(Path(model_of_lock("", recorded, lock, "digest")))
    assert opened.parts == 3
