"""One wrong template of a user's folder is left out with its reason; the others, and the compile, go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.catalog import load
from agentcompile.errors import AgentCompileError
from agentcompile.events import Event, Warned
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.options import Options, resolve
from agentcompile.regions.kinds import facts as kinds
from agentcompile.tuning.jobs import JobMaker
from agentcompile.tuning.prepared import templates_for
from tests.cpu.written import KERNEL, MANIFEST, task
from tests.unit.fakes import linear_region, target


def put(root: Path, name: str, manifest: str = MANIFEST, kernel: str = KERNEL) -> Path:
    folder = root / "linear" / name
    folder.mkdir(parents=True)
    (folder / "template.toml").write_text(manifest)
    if kernel:
        (folder / "kernel.cpp").write_text(kernel)
    return folder


BAD = {
    "unknown-key": (MANIFEST.replace("about", "abuot"), KERNEL, "abuot: unknown key", "did you mean `about`?"),
    "not-toml": ("= =", KERNEL, "not TOML", "correct the syntax"),
    "no-kernel": (MANIFEST, "", "no kernel file", "it takes kernel.cpp"),
    "wrong-entry": (MANIFEST, "int other;", 'entry: "matvec" does not occur', "name a function"),
    "enormous": (MANIFEST + "tokens = [1, 99999999999999999999999]", KERNEL, "more than 64 bits", "smaller"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_template_of_a_users_folder_is_quarantined_by_file_key_and_remedy(tmp_path: Path, name: str) -> None:
    manifest, kernel, reason, remedy = BAD[name]
    put(tmp_path, "good")
    folder = put(tmp_path, name, manifest, kernel)
    events: list[Event] = []
    found = templates_for(Options(home=str(tmp_path / "home"), templates=(str(tmp_path),)), events.append)
    assert "linear/good" in found.ids
    assert "linear/rows" in found.ids
    assert f"linear/{name}" not in found.ids
    (warned,) = events
    assert isinstance(warned, Warned)
    assert all(word in warned.text for word in (str(folder), "template.toml", reason, remedy))
    assert [one.folder for one in found.quarantined] == [str(folder)]


def test_a_wrong_template_of_the_package_stays_an_error(tmp_path: Path) -> None:
    put(tmp_path, "bad", "= =")
    with pytest.raises(AgentCompileError, match="not TOML"):
        load([tmp_path], kinds=kinds(), layouts=LAYOUTS)


def test_a_users_template_never_takes_the_place_of_a_shipped_one(tmp_path: Path) -> None:
    put(tmp_path, "rows")
    found = templates_for(Options(home=str(tmp_path / "home"), templates=(str(tmp_path),)))
    assert found.get("linear/rows", "fp32").source != KERNEL
    assert "rename one folder" in found.quarantined[0].text


def test_the_folder_of_written_templates_is_searched_unless_it_is_switched_off(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert "linear/mine" not in templates_for(Options(home=str(home))).ids, "it need not exist"
    put(home / "templates", "mine")
    assert "linear/mine" in templates_for(Options(home=str(home))).ids
    assert "linear/mine" not in templates_for(Options(home=str(home), user_templates=False)).ids
    twice = templates_for(Options(home=str(home), templates=(str(home / "templates"),)))
    assert not twice.quarantined, "naming it as well is no conflict"
    assert "linear/mine" in twice.ids


def test_what_a_person_names_comes_before_what_was_written(tmp_path: Path) -> None:
    home = tmp_path / "home"
    put(home / "templates", "mine")
    put(tmp_path / "own", "mine", kernel=KERNEL + "// own\n")
    found = templates_for(Options(home=str(home), templates=(str(tmp_path / "own"),)))
    assert found.get("linear/mine").source.endswith("// own\n")
    assert str(home) in found.quarantined[0].text


def test_a_named_folder_that_is_not_there_stays_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentCompileError, match="no such folder of templates"):
        templates_for(Options(home=str(tmp_path), templates=(str(tmp_path / "none"),)))


def test_the_switch_is_a_setting_and_part_of_what_was_asked(tmp_path: Path) -> None:
    off = resolve({"user_templates": False}, environ={"AGENTCOMPILE_HOME": str(tmp_path)}, cwd=tmp_path).options
    assert off.user_templates is False
    assert off.digest != Options().digest
    assert Options(user_templates=True).digest == Options().digest


@pytest.mark.parametrize(
    ("language", "more", "rule"),
    [
        ("cpp", '[[workspaces]]\nname = "part"\ndtype = "fp32"\ncount = "{}"\n', "workspaces"),
        ("cuda", 'grid = ["{}"]\nblock = ["32"]\n', "geometry"),
        ("cuda", 'grid = ["1"]\nblock = ["32"]\ncluster = ["{}"]\n', "geometry"),
    ],
    ids=["workspace", "grid", "cluster"],
)
@pytest.mark.parametrize("extent", ["hidden // (rows - rows)", "rows - 1000000"])
def test_an_extent_without_a_value_rejects_its_candidate_and_stops_nothing(
    tmp_path: Path, language: str, more: str, rule: str, extent: str
) -> None:
    manifest = MANIFEST.replace('"cpp"', f'"{language}"')
    if language == "cpp":
        manifest = manifest.replace('"w", "y"', '"w", "y", "part"')
    folder = put(tmp_path, "bad", manifest + more.format(extent), "" if language == "cuda" else KERNEL)
    if language == "cuda":
        (folder / "kernel.cu").write_text("void matvec() {}")
    (bad,) = load([tmp_path], kinds=kinds(), layouts=LAYOUTS).templates
    here = target() if language == "cpp" else target(kind="cuda", device="H100", arch="sm_90a", isa=())
    asked = task(linear_region(dtype="fp32", hidden=64, rows=32), [bad], here)
    (candidate,) = asked.space
    maker = JobMaker(here)
    job = maker.job(asked, candidate)
    assert [one.rule for one in maker.errors(job)] == [rule]
    assert maker.traits(asked, candidate).workspace_bytes == 0
