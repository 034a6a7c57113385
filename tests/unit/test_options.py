from __future__ import annotations

from pathlib import Path

import pytest

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import decode, encode
from agentcompile.options import SETTINGS, Options, Resolved, resolve, terminal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def settle(project: Path, home: Path, flags: dict[str, object] | None = None, **environ: str) -> Resolved:
    return resolve(flags, environ={"AGENTCOMPILE_HOME": str(home), **environ}, cwd=project)


def source(resolved: Resolved, name: str) -> str:
    return dict(resolved.sources)[name]


def test_every_setting_is_a_field_of_the_options_and_has_its_default_there() -> None:
    assert {setting.name for setting in SETTINGS} == set(Options.__dataclass_fields__)
    for setting in SETTINGS:
        assert setting.default == getattr(Options(), setting.name)


def test_defaults_hold_when_nobody_says_anything(project: Path, home: Path) -> None:
    resolved = settle(project, home)
    assert resolved.options.context == Options().context
    assert source(resolved, "context") == "default"


def test_each_layer_beats_the_one_below_it(project: Path, home: Path) -> None:
    layers = []
    layers.append(settle(project, home))
    (home / "config.toml").write_text("budget = 1\n")
    layers.append(settle(project, home))
    (project / "pyproject.toml").write_text("[tool.agentcompile]\nbudget = 2\n")
    layers.append(settle(project, home))
    (project / "agentcompile.toml").write_text("budget = 3\n")
    layers.append(settle(project, home))
    layers.append(settle(project, home, AGENTCOMPILE_BUDGET="4"))
    layers.append(settle(project, home, {"budget": "5"}, AGENTCOMPILE_BUDGET="4"))
    assert [layer.options.budget for layer in layers] == [Options().budget, 1, 2, 3, 4, 5]
    sources = [source(layer, "budget") for layer in layers]
    files = [str(home / "config.toml"), str(project / "pyproject.toml"), str(project / "agentcompile.toml")]
    assert sources == ["default", *files, "environment", "flag"]


def test_project_settings_are_found_upwards(project: Path, home: Path) -> None:
    (project / "agentcompile.toml").write_text('threads = 3\ntemplates = ["mine"]\n')
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    options = settle(inner, home).options
    assert options.threads == 3
    assert options.templates == (str(project / "mine"),), "paths in a file are relative to it"


def test_a_flag_that_was_not_given_changes_nothing(project: Path, home: Path) -> None:
    assert settle(project, home, {"budget": None}).options == settle(project, home).options


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("contxt = 3", "contxt: no such setting", "context"),
        ("run_dir = 'x'", "run_dir: no such setting", "run-dir"),
        ("context = 'many'", "context: 'many' is not allowed", "a whole number"),
        ("context = 0", "context: '0' is not allowed", "from 1 to"),
        ("context = true", "context: 'True' is not allowed", "a whole number"),
        ("target = 'cpi'", "target: 'cpi' is not allowed", "cpu"),
        ("choose = 'second'", "choose: 'second' is not allowed", "pytorch or first or isolated or admitted"),
        ("advisor = 'random'", "advisor: 'random' is not allowed", "random:SEED"),
        ("templates = 3", "templates: '3' is not allowed", "folders"),
        ("model = 3", "model: '3' is not allowed", "text"),
        ("model =", "unreadable", "correct"),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_value_and_remedy(
    project: Path, home: Path, text: str, words: str, hint: str
) -> None:
    (project / "agentcompile.toml").write_text(text)
    with pytest.raises(AgentCompileError) as caught:
        settle(project, home)
    assert str(project / "agentcompile.toml") in caught.value.message
    assert words in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code is ExitCode.USAGE


def test_an_unknown_variable_names_the_nearest(project: Path, home: Path) -> None:
    with pytest.raises(AgentCompileError, match="AGENTCOMPILE_BUDGIT") as caught:
        settle(project, home, AGENTCOMPILE_BUDGIT="3")
    assert "AGENTCOMPILE_BUDGET" in caught.value.hint


def test_a_wrong_flag_is_named_as_it_was_typed(project: Path, home: Path) -> None:
    with pytest.raises(AgentCompileError, match="--context"):
        settle(project, home, {"context": "-3"})


def test_a_model_is_a_folder_or_a_preset(project: Path, home: Path) -> None:
    assert settle(project, home, {"model": "sample"}).options.model == str(project / "sample")
    assert settle(project, home, {"model": "preset:qwen3-0.6b"}).options.model == "preset:qwen3-0.6b"


def test_data_lies_below_the_home_that_was_named(project: Path, home: Path) -> None:
    options = settle(project, home).options
    assert all(path.is_relative_to(home) for path in (options.store, options.history, options.runs))


def test_data_lies_in_the_systems_places_otherwise() -> None:
    assert Options().store.name == "store"
    assert Options().runs.parent.name == "agentcompile"


def test_where_things_are_written_is_no_part_of_what_was_asked() -> None:
    assert Options(out="/a", run_dir="/b", home="/c").digest == Options().digest
    assert Options(budget=1).digest != Options().digest


def test_options_survive_the_run_directory() -> None:
    options = Options(model="m", templates=("/a", "/b"), threads=2)
    assert decode(Options, encode(options)) == options


def test_a_dumb_terminal_is_not_redrawn_and_no_color_is_heard() -> None:
    assert terminal({"TERM": "xterm"}) == (True, True)
    assert terminal({"TERM": "dumb"})[0] is False
    assert terminal({"NO_COLOR": "1"})[1] is False


def test_another_rule_of_choice_is_another_result(project: Path, home: Path) -> None:
    usual = settle(project, home).options
    assert usual.choose == "admitted"
    rules = {settle(project, home, {"choose": rule}).options.digest for rule in ("pytorch", "first", "isolated")}
    assert len(rules | {usual.digest}) == 4
    assert settle(project, home, {"choose": "admitted"}).options.digest == usual.digest


@pytest.mark.parametrize(("value", "found"), [("true", True), ("false", False), (True, True)])
def test_a_switch_is_on_or_off(tmp_path: Path, value: object, found: bool) -> None:
    assert resolve({"review": value}, environ={}, cwd=tmp_path).options.review is found


@pytest.mark.parametrize("value", ["yes", "1", 1, ""])
def test_a_switch_is_nothing_else(tmp_path: Path, value: object) -> None:
    with pytest.raises(AgentCompileError, match="--review") as caught:
        resolve({"review": value}, environ={}, cwd=tmp_path)
    assert "true or false" in caught.value.hint
