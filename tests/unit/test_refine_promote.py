"""An admitted kernel becomes a user's template, whole, beside others, with where it comes from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentcompile.catalog import default_root, load
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.attempt import Evaluated, Written
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.options import Options
from agentcompile.refine.promote import default_user_templates, machine_of, promote
from agentcompile.refine.provenance import (
    FILE,
    Provenance,
    authors,
    provenance_bytes,
    provenance_for,
    provenance_in,
    provenance_of,
)
from agentcompile.regions.kinds import facts as kinds
from tests.cpu.written import KERNEL, MANIFEST, written
from tests.unit.fakes import target
from tests.unit.refined import RAN

ABOUT = Provenance(
    task="linear@abcdef",
    contract="c" * 64,
    node="7",
    models=(("plan", "one"), ("code", "other")),
    exchanges=("e" * 64,),
    times_ns={"kernel": 1200, "incumbent": 1500},
    params={"ROWS": 4},
    machine=machine_of(target()),
)
OTHER = written(KERNEL + "// another\n")


def put(root: Path, made: Written | None = None, name: str = "mine", about: Provenance = ABOUT) -> Path:
    return promote(made or written(), about, root, kind="linear", language="cpp", name=name)


def test_a_promoted_kernel_is_a_template_like_a_persons(tmp_path: Path) -> None:
    folder = put(tmp_path)
    assert folder == tmp_path / "linear/mine"
    assert sorted(path.name for path in folder.iterdir()) == ["kernel.cpp", FILE, "template.toml"]
    assert (folder / "template.toml").read_text() == MANIFEST
    (template,) = load([tmp_path], kinds=kinds(), layouts=LAYOUTS).templates
    found = provenance_in(folder)
    assert found is not None
    assert found == replace(ABOUT, written=written().digest, templates=(template.digest,))
    assert provenance_of(template.id, template.digest, [tmp_path / "none", tmp_path]) == found
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_who_wrote_a_template_is_found_by_its_digest(tmp_path: Path) -> None:
    put(tmp_path, about=replace(ABOUT, models=(("code", "\x1b[1mone"),)))
    (template,) = load([tmp_path], kinds=kinds(), layouts=LAYOUTS).templates
    (tmp_path / "linear/other").mkdir()
    (tmp_path / "linear/other" / FILE).write_text("{}")
    found = authors([tmp_path / "none", tmp_path])
    assert list(found) == [template.digest]
    assert found[template.digest].startswith("written by code one for linear@abcdef, node 7, 1 exchanges from eeee")


def test_another_template_is_never_overwritten(tmp_path: Path) -> None:
    first = put(tmp_path)
    second, again = put(tmp_path, OTHER), put(tmp_path, OTHER)
    assert (second.name, again.name) == ("mine-2", "mine-2")
    assert (first / "kernel.cpp").read_text() == KERNEL
    assert put(tmp_path) == first, "the same texts are there already"
    assert len(load([tmp_path], kinds=kinds(), layouts=LAYOUTS).templates) == 2


def test_the_name_of_a_shipped_template_stays_free_for_it(tmp_path: Path) -> None:
    assert (default_root() / "linear/rows").is_dir()
    assert put(tmp_path, name="rows").name == "rows-2"


def test_without_a_name_it_follows_from_the_texts(tmp_path: Path) -> None:
    assert put(tmp_path, name="").name == f"written-{written().digest[:12]}"


def test_an_edited_template_has_no_author(tmp_path: Path) -> None:
    folder = put(tmp_path)
    (folder / "kernel.cpp").write_text(KERNEL + "// by hand\n")
    (template,) = load([tmp_path], kinds=kinds(), layouts=LAYOUTS).templates
    assert provenance_of(template.id, template.digest, [tmp_path]) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"version": 2, "provenance": {}}', b"[" * 100_000])
def test_a_damaged_provenance_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    assert provenance_in(tmp_path) is None


def test_a_provenance_says_who_for_what_and_how_fast_on_one_line() -> None:
    assert json.loads(provenance_bytes(ABOUT))["version"] == 1
    for word in ("plan one", "code other", "linear@abcdef", "node 7", "kernel 1.2 us", "Test CPU"):
        assert word in ABOUT.text
    assert "\n" not in ABOUT.text


def test_a_provenance_has_the_incumbent_s_time_of_the_kernel_s_own_rounds() -> None:
    evaluated = Evaluated(verdict=RAN, ns=1.0, feedback={"incumbent_us": 0.7})
    times = [
        provenance_for(
            "linear", "c", written(), one, node="7", models=(), incumbent_ns=7_451.0, floor_ns=0.0, machine={}
        ).times_ns["incumbent"]
        for one in (evaluated, replace(evaluated, feedback={}))
    ]
    assert times == [700, 7451]


@pytest.mark.parametrize("name", ["../escape", "Upper", "a/b", "x" * 65])
def test_a_name_that_is_none_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AgentCompileError, match="cannot name a template") as caught:
        put(tmp_path, name=name)
    assert caught.value.exit_code is ExitCode.USAGE
    assert not list(tmp_path.iterdir())


def test_texts_that_make_no_template_are_not_promoted(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="unknown key"):
        put(tmp_path, written(manifest=MANIFEST.replace("about", "abuot")))
    assert not list(tmp_path.rglob("template.toml"))


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentCompileError) as caught:
        put(tmp_path / "file")
    assert caught.value.exit_code is ExitCode.ENVIRONMENT


def test_the_default_folder_is_in_the_home() -> None:
    assert default_user_templates(Options(home="/h")) == Path("/h/templates")
    assert default_user_templates(Options()).parts[-2:] == ("agentcompile", "templates")
