"""A lock that chose a written kernel carries its source: it outlives the folder of written templates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentcompile.catalog import load
from agentcompile.ir.attempt import Written
from agentcompile.ir.template import Candidate
from agentcompile.ir.trial import Kernel
from agentcompile.lockfile.bundle import read_bundle
from agentcompile.lockfile.files import write_lock
from agentcompile.materialize import specialise
from agentcompile.ops.layouts import LAYOUTS
from agentcompile.refine.promote import promote
from agentcompile.regions.kinds import facts as kinds
from tests.cpu import flows
from tests.cpu.conftest import CONTEXT
from tests.unit.test_refine_promote import ABOUT

KIND = "position-tables"
WRITTEN = Written(
    manifest=f"""\
region = "{KIND}"
language = "cpp"
about = "a row of each table, its elements shared among threads"
dtypes = ["fp32"]

[[launch]]
entry = "gather"
arguments = ["positions", "table", "y"]
""",
    kernel="""\
extern "C" void gather(const gather_args& a, int rank, int size) {
    for (int t = 0; t < y_count; ++t)
        for (long i = rank; i < y_numel[t]; i += size) a.y[t][i] = a.table[t][a.positions[0] * y_numel[t] + i];
}
""",
)


def test_a_lock_with_a_written_kernel_outlives_its_folder(
    warm: Path, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    model, lock, root = checkpoint("tiny-qwen3", "fp32"), tmp_path / "a.lock.toml", tmp_path / "mine"
    promote(WRITTEN, ABOUT, root, kind=KIND, language="cpp", name="gathered")
    made = flows.plant(warm, model, CONTEXT, lock)
    (template,) = load([root], kinds=kinds(), layouts=LAYOUTS).templates
    target, decode = made.facts.target, list(made.planned.decode)
    regions = {id: region for cut in made.cuts[:-1] for id, region in cut.regions.items() if region.kind == KIND}
    for at, parts in enumerate(decode):
        for part in parts:
            if part.region not in regions:
                continue
            candidate = Candidate(
                region=part.region,
                regime=regions[part.region].regime,
                template=template.id,
                template_digest=template.digest,
                params=(),
                target=target.digest,
            )
            source = specialise(template, regions[part.region], (), target)
            kernel = Kernel(candidate=candidate, source=source.digest, speedup=2.0, half_width=0.01)
            decode[at] = tuple(replace(one, choice=kernel) if one is part else one for one in decode[at])
    write_lock(lock, replace(made, planned=replace(made.planned, decode=tuple(decode))).seal())
    assert "position-tables/gathered" in lock.read_text()

    model_flags = ("--model", model, "--threads", flows.THREADS)
    done = flows.verb(warm, "bundle", lock, *model_flags, "--templates", root, "--json")
    assert done.code == 0, done.err
    file = Path(json.loads(done.out)["file"])
    bundle = read_bundle(file)
    assert bundle is not None
    assert bundle.templates[template.digest].source == WRITTEN.kernel
    shutil.rmtree(root)
    replayed = flows.verb(warm, "replay", file, "--check", *model_flags)
    assert replayed.code == 0, replayed.err
