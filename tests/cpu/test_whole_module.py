"""A user's own module through the whole compile: a right one is locked, one whose decode steps are wrong never is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import agentcompile
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import Event, ModelChecked
from agentcompile.lockfile.files import read_lock
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.models.handwritten import Caches, Handwritten, Leaky


class Forgetful(Handwritten):
    """Empties its cache at every call: right for a prompt that is fed at once."""

    def hidden(self, tokens: torch.Tensor, positions: torch.Tensor, caches: Caches) -> torch.Tensor:
        for keys, values in caches:
            keys.mul_(0.0)
            values.mul_(0.0)
        return super().hidden(tokens, positions, caches)


@pytest.fixture
def home(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a user who has nothing timed: the module is what is looked at."""
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(warm))
    monkeypatch.setenv("AGENTCOMPILE_CHOOSE", "pytorch")


def compiled(module: torch.nn.Module, folder: Path, events: list[Event]) -> Path:
    lock = folder / "a.lock.toml"
    agentcompile.compile(
        module, out=lock, context=CONTEXT, threads=flows.THREADS, save_to=folder / "saved", emit=events.append
    )
    return lock


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.usefixtures("home")
def test_a_module_that_is_right_is_held_against_itself_and_locked(dtype: torch.dtype, tmp_path: Path) -> None:
    events = list[Event]()
    rows = read_lock(compiled(Handwritten().to(dtype), tmp_path, events)).evidence.model
    assert {(row.phase, row.oracle, row.verdict) for row in rows} == {
        ("decode", "module", "pass"),
        ("prefill", "module", "pass"),
    }
    assert [event.check.ok for event in events if isinstance(event, ModelChecked)] == [True]


@pytest.mark.parametrize(("wrong", "dtype"), [(Forgetful, torch.float32), (Leaky, torch.bfloat16)])
@pytest.mark.usefixtures("home")
def test_a_module_whose_decode_steps_are_wrong_is_exit_4_and_no_lock(
    wrong: type[Handwritten], dtype: torch.dtype, tmp_path: Path
) -> None:
    events = list[Event]()
    with pytest.raises(AgentCompileError, match="with no kernel the captured model differs from module") as caught:
        compiled(wrong().to(dtype), tmp_path, events)
    assert caught.value.exit_code is ExitCode.CORRECTNESS
    assert caught.value.hint
    assert not (tmp_path / "a.lock.toml").exists()
    assert [event.check.ok for event in events if isinstance(event, ModelChecked)] == [False]
