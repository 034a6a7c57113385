"""Text from growing token ids: the pieces join to the whole, characters stay whole, stop strings never slip out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from agentcompile.errors import AgentCompileError
from agentcompile.runtime.text import TextStream, Tokenizer

TEXT = "naïve façade — 漢字 🙂🙃 and def f(x):\n    return x  # end\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A real byte-level tokenizer: one id for every byte, so that characters fall apart over ids."""
    folder = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


def pieces(tokenizer: Tokenizer, ids: list[int], sizes: random.Random, stop: tuple[str, ...] = ()) -> list[str]:
    """Feed `ids` in random chunks, as a decode loop does."""
    stream, out, at = TextStream(tokenizer, stop), [], 0
    while at < len(ids) and not stream.stopped:
        step = sizes.randint(1, 5)
        out.append(stream.push(ids[at : at + step]))
        at += step
    return [*out, stream.finish()]


@pytest.mark.parametrize("seed", range(20))
def test_the_pieces_join_to_the_text_however_the_ids_arrive(tokenizer: Tokenizer, seed: int) -> None:
    parts = pieces(tokenizer, tokenizer.encode(TEXT), random.Random(seed))
    assert "".join(parts) == TEXT
    assert not any("\ufffd" in part for part in parts)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("stop", ["return", "漢字", "🙃", "n"])
def test_nothing_from_a_stop_string_on_is_given_out(tokenizer: Tokenizer, seed: int, stop: str) -> None:
    parts = pieces(tokenizer, tokenizer.encode(TEXT), random.Random(seed), (stop,))
    assert "".join(parts) == TEXT[: TEXT.index(stop)]


def test_a_stop_string_that_never_comes_withholds_nothing(tokenizer: Tokenizer) -> None:
    parts = pieces(tokenizer, tokenizer.encode(TEXT), random.Random(1), ("# end\n!",))
    assert "".join(parts) == TEXT


def test_text_comes_as_soon_as_it_is_certain(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ("xyz",))
    assert stream.push(tokenizer.encode("abc")) == "abc"
    assert stream.push(tokenizer.encode("dx")) == "d"
    assert stream.push(tokenizer.encode("q")) == "xq"


def test_a_folder_without_a_tokenizer_says_what_still_works(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match=r"tokenizer\.json") as caught:
        Tokenizer(tmp_path)
    assert "token ids" in caught.value.hint


def test_a_broken_tokenizer_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(AgentCompileError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer(tmp_path)
