"""`explain` says who wrote the kernel that a region runs."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from agentcompile.catalog import load
from agentcompile.cli import looking
from agentcompile.cli.render import Screen
from agentcompile.events import ChoiceMade
from agentcompile.ir.codec import encode
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Kernel
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.options import Options
from agentcompile.refine.promote import promote
from agentcompile.regions.kinds import facts as kinds
from agentcompile.runs.session import Journal, RunDirectory
from tests.cpu.written import KERNEL, written
from tests.unit.runs import FOUND, REGIME, REGION, STARTED, TARGET
from tests.unit.test_refine_promote import ABOUT


def chosen(root: Path, id: str) -> ChoiceMade:
    """The choice of the template of that id below `root`."""
    template = load([root], kinds=kinds(), layouts=LAYOUTS).get(id)
    candidate = Candidate(
        region=REGION, regime=REGIME, template=id, template_digest=template.digest, params=(), target=TARGET.digest
    )
    return ChoiceMade(region=REGION, choice=Kernel(candidate=candidate, source="s" * 64, speedup=1.5, half_width=0.01))


def explained(folder: Path, choice: ChoiceMade, options: Options, *, in_json: bool = False) -> str:
    run = RunDirectory.create(folder / "run", encode(options))
    with Journal(run) as journal:
        for event in (STARTED, FOUND, choice):
            journal.append(event)
    out = io.StringIO()
    screen = Screen(format="json" if in_json else "text", out=out, err=io.StringIO())
    assert looking.explain({"run_dir": str(run.path)}, REGION[:8], screen=screen) == 0
    return out.getvalue()


@pytest.mark.parametrize("named", [True, False], ids=["--templates", "home"])
def test_explain_shows_who_wrote_the_kernel_that_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setenv("AGENTCOMPILE_HOME", str(tmp_path / "home"))
    root = tmp_path / "own" if named else tmp_path / "home/templates"
    promote(written(), ABOUT, root, kind="linear", language="cpp", name="mine")
    options = Options(templates=(str(root),) if named else ())
    text = explained(tmp_path, chosen(root, "linear/mine"), options)
    assert "written by plan one, code other for linear@abcdef, node 7" in " ".join(text.split())


def test_explain_gives_programs_the_whole_provenance(tmp_path: Path) -> None:
    root = tmp_path / "own"
    promote(written(), ABOUT, root, kind="linear", language="cpp", name="mine")
    told = json.loads(explained(tmp_path, chosen(root, "linear/mine"), Options(templates=(str(root),)), in_json=True))
    assert told["provenance"]["linear/mine"]["exchanges"] == ["e" * 64]


def test_a_kernel_that_was_changed_since_has_no_author(tmp_path: Path) -> None:
    root = tmp_path / "own"
    folder = promote(written(), ABOUT, root, kind="linear", language="cpp", name="mine")
    (folder / "kernel.cpp").write_text(KERNEL + "// by hand\n")
    text = explained(tmp_path, chosen(root, "linear/mine"), Options(templates=(str(root),)))
    assert "written by" not in text
