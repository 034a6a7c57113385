"""`compile` and `load`: every setting of the command line under its own name, and paths that say what they may be."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import agentcompile
from agentcompile.api import LOADABLE, WITH_A_LOCK, Compiling
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.options import SETTINGS

NAMES = {setting.name for setting in SETTINGS}


def refused(words: str, call: Any, *arguments: Any, **settings: Any) -> AgentCompileError:
    with pytest.raises(AgentCompileError, match=words) as caught:
        call(*arguments, **settings)
    assert caught.value.exit_code is ExitCode.USAGE
    assert caught.value.hint
    return caught.value


def test_compile_takes_every_setting_of_the_command_line_by_its_name() -> None:
    taken = inspect.signature(agentcompile.compile).parameters
    assert set(taken) == NAMES | {"save_to", "bundle", "resume", "emit"}
    assert all(taken[name].default is None for name in NAMES - {"model"})
    assert set(Compiling.__annotations__) == NAMES - {"model", "out"}
    assert set(WITH_A_LOCK) <= NAMES


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"context": 0}, "context: 0"),
        ({"threads": 1025}, "threads: 1025"),
        ({"batch": [1, 9]}, "batch: 9"),
        ({"batch": "1,2"}, "batch: '1,2'"),
        ({"advisor": "nobody"}, "advisor: 'nobody'"),
        ({"choose": "fastest"}, "choose: 'fastest'"),
        ({"memory": 1}, "memory: 1"),
        ({"seconds": -1}, "seconds: -1"),
        ({"templates": ["a", 5]}, r"templates\[1\]: 5"),
        ({"target": "tpu"}, "target: 'tpu'"),
        ({"advisor_price": "free"}, "advisor_price: 'free'"),
        ({"out": 5}, "out: 5"),
        ({"review": True}, "review"),
        ({"bundle": 1}, "bundle: 1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_setting_is_named_as_the_argument_that_it_is(
    settings: dict[str, Any], words: str, tmp_path: Path
) -> None:
    error = refused(words, agentcompile.compile, tmp_path, **settings)
    assert not error.message.startswith("--")


def test_a_setting_that_is_none_of_them_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert "seconds" in refused("secnds", agentcompile.load, tmp_path, secnds=5).hint


def test_a_path_that_leads_nowhere_says_what_it_may_be(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.toml", tmp_path):
        assert LOADABLE in refused(str(path), agentcompile.load, path).hint


def test_a_lock_takes_no_settings_that_shape_a_compilation(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock.toml"
    lock.touch()
    refused("budget: 5: ", agentcompile.load, lock, budget=5)


def test_contradictions_of_load_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    refused("model: ", agentcompile.load, tmp_path, model="elsewhere")
    refused("out: 'a': ", agentcompile.load, tmp_path, out="a")
    from agentcompile.options import Options

    refused("seed: ", agentcompile.load, tmp_path, options=Options(), seed=1)


def test_a_preset_that_is_none_names_those_there_are() -> None:
    assert "presets: " in refused("preset:nothing", agentcompile.load, "preset:nothing").hint


def test_the_package_lists_all_its_names() -> None:
    names = {"compile", "load", "CompiledModel", "Completion", "Piece", "AgentCompileError", "hf", "__version__"}
    assert names <= set(dir(agentcompile))
    assert names == set(agentcompile.__all__)
    assert agentcompile.AgentCompileError is AgentCompileError
    for name in names:
        assert getattr(agentcompile, name) is not None
