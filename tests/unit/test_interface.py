"""What others may rely on only grows: flags, events, the lock's keys and exit codes of interface.json are all there.

The file began with what there was at revision 215840902, and nothing of that is gone: `ablate --judged` became
`--times` and is still taken. Whoever removes something on purpose edits the file, and
says so here and in the changelog.
"""

from __future__ import annotations

import pytest

from agentcompile.errors import AgentCompileError
from bench.ablation.run import run
from tests.unit.interface import committed, gone, interface


def test_every_flag_event_field_lock_key_and_exit_code_is_still_there() -> None:
    assert gone(interface(), committed()) == {}


def test_what_is_new_is_committed() -> None:
    assert gone(committed(), interface()) == {}, "run `python -m tests.unit.interface`"


def test_what_goes_is_found() -> None:
    before = {"flags": {"compile": ["--a", "--b"], "inspect": []}}
    assert gone({"flags": {"compile": ["--a", "--c"]}}, before) == {"flags": {"compile": ["--b"], "inspect": []}}
    assert gone(before, before) == {}


@pytest.mark.parametrize("flag", ["--times", "--judged"])
def test_the_flag_that_was_renamed_is_taken_by_both_names(flag: str) -> None:
    with pytest.raises(AgentCompileError, match="--times does not go with --space"):
        run(["--space", "space.json", flag, "times.json"])
