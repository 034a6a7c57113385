"""The start page without a terminal: what it finds, the command that it shows, how it looks."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from agentcompile.tui.cli import headless, parser, run
from agentcompile.tui.finding import meaning, start_of
from agentcompile.tui.ink import Ink
from agentcompile.tui.scene import View
from agentcompile.tui.start import Found, Start, command, entries, frame, press
from recorded import run_directory
from refine_folders import FINISHED, TREE, folder
from test_screens import held

from agentcompile.errors import AgentCompileError
from agentcompile.options import Options
from agentcompile.runs.session import EVENTS
from agentcompile.runs.session import named as session_named

PAGE = Start(
    found=(
        Found(kind="model", name="models/sample", argument="models/sample", about="Qwen3ForCausalLM, 6 layers"),
        Found(kind="preset", name="preset:sample", argument="preset:sample", about="the trained checkpoint that ships"),
        Found(kind="run", name="20260101-120000-sample", argument="runs/1", about="running, sample"),
        Found(kind="lock", name="sample.lock.toml", argument="sample.lock.toml"),
    ),
    settings=(
        ("target", "auto"),
        ("advisor", "heuristic"),
        ("strategy", "halving"),
        ("budget", "160"),
        ("seconds", "900"),
        ("out", "a.toml"),
    ),
    defaults=(
        ("target", "auto"),
        ("advisor", "heuristic"),
        ("strategy", "halving"),
        ("budget", "160"),
        ("seconds", "900"),
        ("out", "a.toml"),
    ),
)


def typed(page: Start, *keys: str) -> tuple[Start, str]:
    does = ""
    for key in keys:
        page, does = press(page, {" ": "space"}.get(key, key), key if len(key) == 1 else "", 24)
    return page, does


@pytest.mark.parametrize("ascii", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", [(80, 24), (120, 36)], ids=["80x24", "120x36"])
def test_the_page_looks_as_it_did(size: tuple[int, int], ascii: bool) -> None:
    view = View(width=size[0], height=size[1])
    pages = [PAGE, typed(PAGE, "tab", "down")[0], typed(PAGE, "/", *"lock")[0], typed(PAGE, "?")[0]]
    shown = ["\n".join(line.plain.rstrip() for line in frame(page, view, Ink(ascii=ascii))) + "\n" for page in pages]
    held(f"start-{size[0]}x{size[1]}-{'ascii' if ascii else 'unicode'}", "==\n".join(shown))


def test_the_command_is_what_a_person_would_type() -> None:
    assert command(PAGE) == "agentcompile compile models/sample --review"
    assert command(typed(PAGE, "j", "j")[0]) == "agentcompile runs status runs/1"
    assert command(typed(PAGE, "G")[0]) == "agentcompile replay sample.lock.toml"
    assert command(typed(PAGE, "tab", "right", "j", "right")[0]) == (
        "agentcompile compile models/sample --review --target=cpu --advisor=none"
    )
    strategy = command(typed(PAGE, "tab", "j", "j", "right")[0])
    assert strategy == "agentcompile compile models/sample --review --strategy=exhaustive"
    spaced = replace(PAGE, found=(replace(PAGE.found[0], argument="a b; rm -rf"),))
    assert command(spaced) == "agentcompile compile 'a b; rm -rf' --review"


def test_a_setting_is_typed_and_an_empty_one_is_the_default_again() -> None:
    page, _ = typed(PAGE, "tab", "j", "j", "j", "enter", "ctrl+u", *"32", "enter")
    assert "--budget=32" in command(page)
    page, _ = typed(page, "enter", "ctrl+u", "enter")
    assert command(page) == command(PAGE)


def test_the_list_is_filtered_and_opened() -> None:
    page, _ = typed(PAGE, "/", *"lock", "enter")
    assert [entry.key for entry in entries(page)] == ["sample.lock.toml"]
    assert typed(page, "enter")[1] == "open"
    assert typed(typed(page, "/", *"zzz", "enter")[0], "enter")[1] == ""
    assert typed(PAGE, "q")[1] == "leave"
    assert typed(PAGE, "m", *"x/y", "enter")[0].chosen == "x/y"


def test_what_lies_around_is_found(tmp_path: Path) -> None:
    model = tmp_path / "work" / "deep" / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}')
    (model / "model.safetensors").write_bytes(b"")
    (tmp_path / "work" / "x.lock.toml").write_text("")
    (tmp_path / "work" / "node_modules" / "model").mkdir(parents=True)
    (tmp_path / "work" / "small.gguf").write_bytes(b"GGUF and more")
    (tmp_path / "work" / "broken.gguf").write_bytes(b"PK")
    home = tmp_path / "home"
    run_directory(home / "runs" / "a-run", "finished")
    page = start_of(Options(home=str(home)), tmp_path / "work")
    kinds = {(one.kind, one.name) for one in page.found if one.kind != "preset"}
    models = {("model", "deep/model"), ("model", "small.gguf")}
    assert kinds == {*models, ("run", "a-run"), ("lock", "x.lock.toml")}
    assert "preset:sample" in {one.name for one in page.found}
    about = {one.name: one.about for one in page.found}
    assert about["deep/model"] == "LlamaForCausalLM, 2 layers"
    assert about["small.gguf"] == "GGUF, converted on first use"


def test_an_argument_means_a_model_a_run_or_a_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = run_directory(tmp_path / "runs" / "a-run", "finished")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "x.lock.toml").write_text("")
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    runs = tmp_path / "runs"
    assert meaning("a.gguf", runs) == ("model", tmp_path / "a.gguf")
    assert meaning("a-run", runs) == ("run", run)
    assert meaning(str(run), runs) == ("run", run)
    assert meaning("model", runs) == ("model", tmp_path / "model")
    assert meaning("x.lock.toml", runs) == ("lock", tmp_path / "x.lock.toml")
    assert meaning("preset:sample", runs) == ("model", Path("preset:sample"))
    with pytest.raises(AgentCompileError, match="no model, run or lock"):
        meaning("nothing", runs)


def test_the_headless_command_follows_the_argument(tmp_path: Path) -> None:
    run = run_directory(tmp_path / "run", "finished")
    lock = tmp_path / "x.lock.toml"
    lock.write_text("")
    model = tmp_path / "a.gguf"
    model.write_bytes(b"GGUF")
    assert headless(str(model), {}, tmp_path) == f"agentcompile compile {model}"
    assert headless("", {}, tmp_path) == "agentcompile compile MODEL"
    assert headless("m", {"seconds": "5"}, tmp_path) == "agentcompile compile m --seconds=5"
    assert headless(str(run), {}, tmp_path) == f"agentcompile runs status {run}"
    assert headless("run", {}, tmp_path) == "agentcompile runs status run"
    assert headless("latest", {}, tmp_path) == "agentcompile runs status latest"
    assert headless("latest", {}, tmp_path / "none") == "agentcompile runs status latest"
    assert headless(str(lock), {}, tmp_path) == f"agentcompile replay {lock}"


def test_latest_is_the_run_that_was_started_last_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "home" / "runs"
    with pytest.raises(AgentCompileError, match="no runs") as caught:
        meaning("latest", runs)
    assert "makes one" in caught.value.hint
    session = begun(folder(runs / "z-session", TREE, FINISHED).path, 1_000)
    assert meaning("latest", runs) == ("refine", session)
    early = begun(run_directory(runs / "z-run", "finished"), 2_000)
    late = begun(run_directory(runs / "a-run", "finished"), 3_000)
    assert meaning("latest", runs) == ("run", late)
    assert session_named(runs, "latest") == late
    page = start_of(Options(home=str(tmp_path / "home")), tmp_path)
    shown = [Path(one.argument) for one in page.found if one.kind in ("run", "refine")]
    assert shown == [late, early, session]


def begun(path: Path, at_ms: int) -> Path:
    """A run or session whose first event was at a time."""
    file = path / EVENTS
    file.write_bytes(re.sub(rb'"at_ms":\d+', b'"at_ms":%d' % at_ms, file.read_bytes()))
    return path


def test_a_file_of_curves_that_is_none_is_refused_before_the_app_starts(tmp_path: Path) -> None:
    path = tmp_path / "study.json"
    path.write_text('{"kind": "recorded-spaces", "format": 1, "curves": []}')
    with pytest.raises(AgentCompileError, match=r"study.json: no result of a study: curves: \[\] holds no search"):
        run(["a-run", f"--curves={path}"])


@pytest.mark.parametrize("speed", ["-1", "nan", "inf"])
def test_a_speed_at_which_nothing_can_be_shown_is_refused(speed: str) -> None:
    with pytest.raises(AgentCompileError, match=r"--speed: .* is not allowed"):
        run(["a-run", f"--speed={speed}"])


def test_a_flag_that_does_not_exist_is_refused_as_elsewhere() -> None:
    with pytest.raises(AgentCompileError, match="unrecognized arguments: --nope"):
        parser().parse_args(["--nope"])
