"""Models that change, share or limit what they are given: their tasks are evaluated, or refused at once."""

from __future__ import annotations

from pathlib import Path

import torch

from agentcompile.ir.region import Region
from agentcompile.tasks.arena import ArenaOwner
from agentcompile.tasks.contract import region_of
from agentcompile.tasks.demands import magnitudes
from agentcompile.tasks.host import TaskHost
from agentcompile.tasks.inputs import SCALES, cases
from agentcompile.tasks.load import LoadedTask
from agentcompile.tasks.loading import LoadedModel
from agentcompile.tasks.signing import sign
from agentcompile.tasks.wire import Attach, Done, Draw, Load, Loaded
from tests.cpu.tasked import LIMITS
from tests.cpu.test_tasks_loading import refusal, task

MADE = "def __init__(self):\n        super().__init__()\n        {made}\n\n    def forward"


def held(text: str, made: str) -> str:
    return text.replace("def forward", MADE.format(made=made))


def model(folder: Path, text: str) -> LoadedModel:
    (folder / "one.py").write_text(text)
    return LoadedModel(folder / "one.py", 3)


def host(folder: Path, text: str) -> tuple[TaskHost, Loaded, list[ArenaOwner]]:
    """A process's half of a task, with two arenas."""
    (folder / "one.py").write_text(text)
    made = TaskHost()
    told = made.handle(Load(path=str(folder / "one.py"), seed=3, threads=1, memory_bytes=1 << 40))
    assert isinstance(told, Loaded), told
    widths = {"fp32": 4, "int64": 8}
    tensors = told.signatures[0].tensors
    sizes = {one.name: widths[one.dtype] * int(torch.Size(one.shape).numel()) for one in tensors}
    owners = [ArenaOwner(sizes, "after") for _ in range(2)]
    files = tuple(owner.file for owner in owners)
    assert made.handle(Attach(arenas=files, scratch=(), shape=0, deterministic=True)) == Done()
    return made, told, owners


def drawn(made: TaskHost, told: Loaded) -> None:
    """Draw every case of a check."""
    for case in cases(5, 0, told.scales, nudges=told.nudges):
        draw = Draw(
            arena=case.arena, label=case.label, seed=case.seed, scale=case.scale, randomised=case.randomised,
            nudged=case.nudged,
        )  # fmt: skip
        assert made.handle(draw) == Done()


def test_a_model_that_changes_its_input_has_the_same_results_every_time(tmp_path: Path) -> None:
    loaded = model(tmp_path, task("x.add_(1)"))
    inputs = loaded.inputs(1)
    first = loaded.run(inputs)[0].clone()
    assert torch.equal(loaded.run(inputs)[0], first)
    assert sign(loaded, 3).told.wide
    double = model(tmp_path, task("x.add_(1)", "[torch.randn(4, dtype=torch.float64)]"))
    signed, inputs = sign(double, 3), double.inputs(1)
    first = signed.wide(inputs)[0].clone()
    assert torch.equal(signed.wide(inputs)[0], first)


def test_an_output_that_is_a_buffer_stays_what_it_was(tmp_path: Path) -> None:
    loaded = model(tmp_path, held(task("(x + self.pe, self.pe[:2])"), 'self.register_buffer("pe", torch.randn(4, 8))'))
    out = loaded.run(loaded.inputs(1))[1]
    kept = out.clone()
    loaded.set_parameters([tensor + 1 for tensor in loaded.base])
    assert torch.equal(out, kept)


def test_buffers_that_overlap_get_memory_of_their_own(tmp_path: Path) -> None:
    made = (
        'self.register_buffer("pos", torch.arange(8.).expand(4, -1)); '
        'self.register_buffer("b", torch.randn(8, 8)); self.register_buffer("d", self.b.diagonal()); '
        "self.same = self.b; self.halves = torch.randn(2, 8); self.one, self.two = self.halves[0], self.halves[1]"
    )
    loaded = model(
        tmp_path, held(task("(x + self.pos) @ self.b * self.d + self.one - self.two * self.halves[0]"), made)
    )
    names = [name for name, _ in loaded.tensors]
    assert names == ["pos", "b", "d", "halves", "one", "two"]
    values = [torch.randn(tensor.shape) for tensor in loaded.base]
    loaded.set_parameters(values)
    assert all(torch.equal(tensor, value) for (_, tensor), value in zip(loaded.tensors, values, strict=True))
    assert all(torch.equal(one, value.double()) for one, value in zip(loaded.wide_tensors, values, strict=True))
    assert loaded.model.same is loaded.model.b
    assert sign(loaded, 3).told.wide


def test_whole_numbers_are_always_as_the_task_draws_them(tmp_path: Path) -> None:
    text = task("x[torch.argsort(order)]", "[torch.randn(8), torch.randperm(8)]").replace(
        "(self, x)", "(self, x, order)"
    )
    made, told, owners = host(tmp_path, text)
    drawn(made, told)
    for one in made._held:
        assert sorted(one.sources["in1"].tolist()) == list(range(8))
    for owner in owners:
        owner.close()


PROBABLE = task("torch.nn.functional.binary_cross_entropy(x, y)", "[torch.rand(64), torch.rand(64)]").replace(
    "(self, x)", "(self, x, y)"
)
DEFINITE = task("torch.linalg.cholesky(x)", "[(lambda a: a @ a.T + torch.eye(8))(torch.randn(8, 8))]")


def test_only_inputs_that_the_model_takes_are_tried_and_the_contract_says_so(tmp_path: Path) -> None:
    for text, scales in ((PROBABLE, (1.0, 0.01)), (DEFINITE, (1.0, 3.0, 0.01))):
        made, told, owners = host(tmp_path, text)
        assert told.scales == scales
        assert not told.nudges
        drawn(made, told)
        said = magnitudes(told)
        assert "fails with the factor" in said
        assert "a change of single elements" in said
        assert "-2 * x" not in said
        for owner in owners:
            owner.close()


def test_every_factor_is_tried_where_the_model_takes_it(tmp_path: Path) -> None:
    told = sign(model(tmp_path, task()), 3).told
    assert (told.scales, told.nudges) == (SCALES, True)
    assert "fails" not in magnitudes(told)
    few = list(cases(5, 0, (1.0, 0.01), nudges=False))
    assert len(few) == len(list(cases(5, 0)))
    assert {case.scale for case in few} == {1.0, 0.01}
    assert not any(case.nudged for case in few)


def test_inputs_that_are_numbers_may_be_infinite_and_must_be_constant(tmp_path: Path) -> None:
    plain = task("torch.relu(x).clamp(min=low)", "[torch.randn(4, 8), {}]").replace("(self, x)", "(self, x, low)")
    (tmp_path / "one.py").write_text(plain.replace("{}", "float('-inf')"))
    with LoadedTask(tmp_path / "one.py", threads=1, seed=3, limits=LIMITS) as found:
        region: Region = region_of(found)
        assert region.id
        assert dict(region.constants) == {"in1": float("-inf")}
    random = "__import__('random').random()"
    assert "at one call of get_inputs()" in refusal(tmp_path, plain.replace("{}", random))
