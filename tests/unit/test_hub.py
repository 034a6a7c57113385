"""Checkpoints by their id on the hub: found in the local cache, or one error that tells how to download."""

from __future__ import annotations

from pathlib import Path

import pytest

import agentcompile
from agentcompile.checkpoint.locate import find_model
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.options import resolve
from agentcompile.runs.session import new_name
from agentcompile.system import hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def stored(cache: Path, id: str, commit: str = COMMIT) -> Path:
    """A snapshot as `huggingface_hub` stores one: a link to a blob."""
    folder = cache / f"models--{id.replace('/', '--')}"
    snapshot = folder / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    (folder / "blobs").mkdir()
    (folder / "blobs" / "b").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/b")
    return snapshot


@pytest.mark.parametrize(
    ("environ", "cache"),
    [
        ({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({}, "~/.cache/huggingface/hub"),
    ],
    ids=["hub-cache", "old-name", "home", "xdg", "default"],
)
def test_the_cache_lies_where_huggingface_hub_has_it(environ: dict[str, str], cache: str) -> None:
    assert hub.cache(environ) == Path(cache).expanduser()


def test_an_id_means_the_snapshot_of_its_main_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    snapshot = stored(tmp_path / "cache", "org/Small-1.5B")
    model = resolve({"model": "org/Small-1.5B"}, cwd=tmp_path).options.model
    assert model == str(snapshot)
    assert find_model(model, tmp_path) == snapshot
    assert new_name(tmp_path, model, clock=lambda: 0).name == "19700101-000000-Small-1.5B"
    (tmp_path / "org" / "Small-1.5B").mkdir(parents=True)
    near = resolve({"model": "org/Small-1.5B"}, cwd=tmp_path).options.model
    assert near == str(tmp_path / "org/Small-1.5B"), "a folder of that name comes first"


@pytest.mark.parametrize("text", ["org", "org/name/more", "../up", "/org/name", "org/", "preset:x/y", "org/na me"])
def test_what_is_no_id_is_looked_for_nowhere(tmp_path: Path, text: str) -> None:
    assert not hub.is_id(text)
    assert hub.snapshot(text, {"HF_HUB_CACHE": str(tmp_path)}) is None


def test_a_revision_that_names_another_folder_is_no_snapshot(tmp_path: Path) -> None:
    stored(tmp_path, "org/name")
    (tmp_path / "models--org--name" / "refs" / "main").write_text("../../..")
    assert hub.snapshot("org/name", {"HF_HUB_CACHE": str(tmp_path)}) is None


def test_an_id_that_is_not_there_says_how_to_download_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentCompileError, match="not in the local cache") as caught:
        find_model(resolve({"model": "org/name"}).options.model, tmp_path)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint.endswith("hf download org/name")
    with pytest.raises(AgentCompileError, match="no such file") as caught:
        agentcompile.load("org/name")
    assert caught.value.hint.endswith("hf download org/name")
    with pytest.raises(AgentCompileError, match="no such directory") as caught:
        find_model(str(tmp_path / "one"), tmp_path)
    assert "download" not in caught.value.hint
