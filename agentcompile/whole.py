"""The last gate before a lock: the whole model, as its plans run it, held against the float32 model.

In: the plans of every regime. Out: the plans that may ship, and how near they are to float32. Kernels that pass every
check of their own may still be wrong together, where no check looked, or from some position on: such a failure is
bisected to the kernel that it comes with, whose region falls back, and what is left is checked again. Where PyTorch's
own captured graph is wrong nothing may ship.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path

import torch

from agentcompile.capture import Captured
from agentcompile.chunks import Chunks, capacity
from agentcompile.cuts import CHUNK, Cut
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.events import ChoiceMade, Emit, ModelChecked, PlanAdmitted, Warned
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.program import NativeCall, Program
from agentcompile.ir.template import Source, Template
from agentcompile.ir.trial import Choice, Crashed, Fallback, Kernel, Layouts, Part, Plan, TimedOut, reason
from agentcompile.ir.whole import Group, ModelCheck
from agentcompile.jobs import Failed
from agentcompile.judge import WorkerJudge
from agentcompile.machine import Machine
from agentcompile.materialize import specialise
from agentcompile.oracle import Answers, answers, oracle_of
from agentcompile.plans import Planned
from agentcompile.proving import binaries
from agentcompile.ready import Ready
from agentcompile.regions.schedule import schedule
from agentcompile.ruled import Bench, layouts_of, weighed
from agentcompile.runtime.lengths import LENGTHS, served
from agentcompile.runtime.lower import lower
from agentcompile.scores import compared, fault, phases
from agentcompile.stages import stage
from agentcompile.steering import Earlier
from agentcompile.walks import lengths, named, walks
from agentcompile.worker.protocol import FeedModel

Unit = tuple[str, str]
"""A kernel where it is used: region id and candidate id."""
_LATER = 8.0
"""How many times what the captured graph takes a plan with kernels may take before it counts as hung."""
_LATER_S = 20.0


@dataclass(kw_only=True)
class Gate:
    """One model's. The reference is asked once, and only when something is to be compared."""

    here: Machine
    captured: Captured
    constants: Path
    cuts: Sequence[Cut]
    """By regime, the prefill's last."""
    templates: Mapping[str, Template]
    """By id."""
    judge: WorkerJudge
    emit: Emit
    seed: int
    known: Mapping[str, ModelCheck] = field(default_factory=dict[str, ModelCheck])
    """What an earlier process of the run found, by what was checked."""
    module: torch.nn.Module | None = None
    """The user's own, where it is at hand."""
    _answers: Answers | None = field(default=None, init=False)
    _groups: tuple[Group, ...] = field(default=(), init=False)
    _limit_s: float = field(default=0.0, init=False)

    def check(self, plans: Sequence[Plan], layouts: Layouts) -> ModelCheck:
        """Hold `plans`, one for each of the cuts, against the float32 model, unless that was done before."""
        key = self._key(plans, layouts)
        if (known := self.known.get(key)) is not None:
            return known
        found = self._checked(plans, layouts)
        self.known = {**self.known, key: found}
        self.emit(ModelChecked(plans=key, check=found))
        return found

    def right(self, plans: Sequence[Plan], layouts: Layouts) -> tuple[tuple[Plan, ...], ModelCheck]:
        """The plans without those kernels that make the model wrong, and the check that what is left passes.

        Raises AgentCompileError (correctness) where the model is wrong with no kernel at all.
        """
        guilty: dict[Unit, str] = {}
        while True:
            found = self.check(without(plans, guilty), layouts)
            if found.ok:
                return without(plans, guilty), found
            if not guilty:
                self._bare_is_right(plans, found)
            left = [unit for unit in units(plans) if unit not in guilty]
            unit, fault = self._first_wrong(plans, layouts, left, found.fault)
            guilty[unit] = fault
            self._tell(unit, plans, fault)

    def _first_wrong(
        self, plans: Sequence[Plan], layouts: Layouts, left: Sequence[Unit], fault: str
    ) -> tuple[Unit, str]:
        """By bisection: the kernel of `left` that makes the model wrong together with those before it, which do not."""
        right, wrong = 0, len(left)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            dropped = dict.fromkeys([unit for unit in units(plans) if unit not in left[:middle]], "left out")
            found = self.check(without(plans, dropped), layouts)
            if found.ok:
                right = middle
            else:
                wrong, fault = middle, found.fault
        return left[wrong - 1], fault

    def _bare_is_right(self, plans: Sequence[Plan], wrong: ModelCheck) -> None:
        bare = without(plans, dict.fromkeys(units(plans), "left out"))
        begin = time.monotonic()
        found = self.check(bare, ()) if units(plans) else wrong
        # What hangs from now on need not be waited for as long as what nobody has seen run.
        self._limit_s = _LATER_S + _LATER * (time.monotonic() - begin)
        if found.ok:
            return
        about = self.captured.info
        text = f"{about.name}: with no kernel the captured model differs from {found.oracle} in float32: {found.fault}"
        hint = (
            f"{about.architecture} keeps or computes something that capture does not see; no lock is written. "
            "`agentcompile inspect` shows what was captured"
        )
        raise AgentCompileError(text, exit_code=ExitCode.CORRECTNESS, hint=hint)

    def _tell(self, unit: Unit, plans: Sequence[Plan], fault: str) -> None:
        region, kernel = next(
            (part.region, part.choice)
            for plan in plans
            for part in plan.parts
            if isinstance(part.choice, Kernel) and (part.region, part.choice.candidate.id) == unit
        )
        name = next(cut.regions[region].name for cut in self.cuts if region in cut.regions)
        self.emit(Warned(text=f"{name}: {kernel.candidate.label} makes the whole model wrong: {fault}: it falls back"))
        self.emit(ChoiceMade(region=region, choice=Fallback(reason=because(fault))))

    def _key(self, plans: Sequence[Plan], layouts: Layouts) -> str:
        info = self.captured.info
        versions: Json = [metadata.version(name) for name in ("torch", "transformers")]
        parts: list[Json] = [
            [plan.regime.name, [[part.region, list(part.sites), _source(part.choice)] for part in plan.parts]]
            for plan in plans
        ]
        kept: Json = [list(pair) for pair in layouts]
        about: Json = [info.weights_digest, info.config_digest, info.context, oracle_of(self.captured, self.module)]
        return digest("whole/1", parts, kept, about, self.here.target.digest, self.seed, versions)

    def _checked(self, plans: Sequence[Plan], layouts: Layouts) -> ModelCheck:
        request = self.request(plans, layouts)
        groups = self._groups = request.groups
        about = ModelCheck(
            oracle=oracle_of(self.captured, self.module), seed=self.seed, lengths=lengths(groups), phases=()
        )
        walked = [walk for group in groups for walk in group]
        with tempfile.TemporaryDirectory(prefix="agentcompile-") as folder:
            out = Path(folder) / "logits"
            ran = self.judge.feed(replace(request, out=str(out)), limit_s=self._limit_s)
            if isinstance(ran, Failed) and isinstance(ran.verdict, Crashed) and ran.verdict.signal == 9:
                # Not its own doing, maybe: whoever runs out of memory kills the nearest.
                ran = self.judge.feed(replace(request, out=str(out)), limit_s=self._limit_s)
            if isinstance(ran, Failed):
                return replace(about, fault=_ended(ran, groups))
            count = sum(len(walk.scored) for walk in walked)
            vocab = self.captured.info.vocab
            assert ran == count, f"{ran} rows, not {count}"
            if out.stat().st_size != 4 * count * vocab:
                return replace(about, fault="its logits are not all there")
            if self._answers is None:
                device = self.here.device if self.here.target.kind == "cuda" else "cpu"
                self._answers = answers(self.captured, walked, device, self.module)
            found = torch.from_file(str(out), size=count * vocab, dtype=torch.float32).view(count, vocab)
            rows = compared(walked, self._answers.exact, self._answers.eager, found)
        return replace(about, phases=phases(walked, rows), fault=fault(walked, rows))

    def request(self, plans: Sequence[Plan], layouts: Layouts) -> FeedModel:
        """What a worker is asked that runs the plans."""
        sources, info = self._sources(plans), self.captured.info
        alone = [plan.regime.context[1] for plan in plans if plan.phase == "decode" and plan.regime.batch == 1]
        batches = [plan.regime.batch for plan in plans if plan.regime.batch > 1]
        decode = [
            (plan.regime.context[1], _lowered(cut, plan.parts, sources, layouts))
            for cut, plan in zip(self.cuts[:-1], plans[:-1], strict=True)
        ]
        prefill, longest, own = self._prefill(plans[-1].parts, layouts, sources)
        programs = [program for _, program in (*decode, *prefill)]
        wanted = {call.source for program in programs for call in program.calls if isinstance(call, NativeCall)}
        if self.here.target.kind == "cuda":
            from agentcompile.runtime.device_step import advance_source

            advance = advance_source(self.here.target.arch)
            sources[advance.digest] = advance
            wanted.add(advance.digest)
        built = binaries(self.here, sources, sorted(wanted))
        found = walks(info.context, info.vocab, longest, ends=alone, batches=batches, programs=own, seed=self.seed)
        return FeedModel(
            info=info,
            decode=tuple(decode),
            prefill=tuple(prefill),
            capacity=longest,
            checkpoint=str(self.captured.checkpoint),
            constants=str(self.constants),
            binaries=tuple((source, binary.path) for source, binary in built.items()),
            groups=self._groups or found,
            out="",
        )

    def _sources(self, plans: Sequence[Plan]) -> dict[str, Source]:
        """Of all kernels of the plans, by digest."""
        found: dict[str, Source] = {}
        for cut, plan in zip(self.cuts, plans, strict=True):
            for part in plan.parts:
                if isinstance(part.choice, Kernel) and part.choice.source not in found:
                    candidate = part.choice.candidate
                    template, region = self.templates[candidate.template], cut.regions[part.region]
                    source = specialise(template, region, candidate.params, self.here.target)
                    assert source.digest == part.choice.source, f"{region.name}: {candidate.label} is another now"
                    found[source.digest] = source
        return found

    def _prefill(
        self, parts: Sequence[Part], layouts: Layouts, sources: dict[str, Source]
    ) -> tuple[list[tuple[int, Program]], int, tuple[int, ...]]:
        """The prompt's programs, the longest chunk, and the lengths of programs that a prompt is fed at; the sources of
        what they call are added to `sources`."""
        cut, most = self.cuts[-1], capacity(self.captured)
        if self.here.target.kind == "cpu":
            return [(most, _lowered(cut, parts, sources, layouts))], min(CHUNK, most), ()
        chunks = Chunks(
            graph=self.captured.prefill,
            cut=cut.partition,
            parts=tuple(parts),
            templates=self.templates,
            target=self.here.target,
            layouts=layouts,
        )
        longest = chunks.longest(most)
        made = {tokens: chunks.at(tokens) for tokens in sorted({1, *served(longest)})}
        sources |= {job.source.digest: job.source for chunk in made.values() for job in chunk.jobs}
        own = tuple(length for length in LENGTHS if length <= longest)
        return [(tokens, chunk.program) for tokens, chunk in made.items()], longest, own


def hold(
    ready: Ready,
    planned: Planned,
    plans: Sequence[Plan],
    bench: Bench,
    judge: WorkerJudge,
    earlier: Earlier,
    module: torch.nn.Module | None = None,
) -> tuple[Planned, tuple[Plan, ...], ModelCheck]:
    """The cover and the plans that may ship, and how near to float32 they are; plans of which something fell back are
    timed again. Raises AgentCompileError (correctness) where none may."""
    cuts = [*ready.decode, ready.prefill]
    gate = Gate(
        here=ready.here,
        captured=ready.model.captured,
        constants=ready.model.constants,
        cuts=cuts,
        templates={
            template.id: template
            for subject in (*ready.subjects, *ready.prompts)
            for template in subject.space.templates
        },
        judge=judge,
        emit=bench.emit,
        seed=bench.seed,
        known=earlier.checks,
        module=module,
    )
    with stage(bench.emit, "verify") as say:
        plans = tuple(plans)
        while True:
            left, found = gate.right(plans, planned.layouts)
            if left == plans:
                say(told(found))
                return planned, plans, found
            planned, plans = _timed_again(cuts, planned, plans, left, bench, earlier.ruled)


def told(found: ModelCheck) -> str:
    """A check in one line."""
    figures = ", ".join(f"{one.phase} KL {one.kl:.2g} (eager {one.kl_eager:.2g})" for one in found.phases)
    positions = sum(one.positions for one in found.phases)
    return f"{positions} positions beside {found.oracle} in float32: {figures}"


def _timed_again(
    cuts: Sequence[Cut],
    planned: Planned,
    before: Sequence[Plan],
    plans: Sequence[Plan],
    bench: Bench,
    known: Sequence[Plan],
) -> tuple[Planned, tuple[Plan, ...]]:
    """What is left of plans, in the layouts that it wants, with its own times where there were any. A plan that is
    measured slower than PyTorch now is given back as a whole."""
    layouts = layouts_of(cuts, [plan.parts for plan in plans], bench.survey)
    *decode, prefill = (plan.parts for plan in plans)
    left = replace(planned, decode=tuple(decode), prefill=prefill, layouts=layouts, exact=False)
    found = []
    for cut, old, plan in zip(cuts, before, plans, strict=True):
        if plan.parts == old.parts and layouts == planned.layouts:
            found.append(plan)
            continue
        made = Plan(regime=plan.regime, parts=plan.parts, exact=False)
        if old.step_ns:
            made = _weighed(cut, made, left, bench, known)
        bench.emit(PlanAdmitted(plan=made, layouts=layouts, ruled=True))
        found.append(made)
    *decode, prefill = (plan.parts for plan in found)
    return replace(left, decode=tuple(decode), prefill=prefill), tuple(found)


def _weighed(cut: Cut, plan: Plan, planned: Planned, bench: Bench, known: Sequence[Plan]) -> Plan:
    try:
        made = weighed(cut, plan, planned, bench, known)
    except AgentCompileError as error:
        if error.exit_code is not ExitCode.UNDECIDED:
            raise
        bench.emit(Warned(text=f"{plan.regime.name}: what is left of the plan is not timed: {error.message}"))
        return plan
    if made.log_ratio + made.half_width >= 0:
        return made
    slow = "the step is slower than PyTorch's without the kernels that made the model wrong"
    parts = (
        replace(part, choice=Fallback(reason=slow)) if isinstance(part.choice, Kernel) else part for part in made.parts
    )
    return Plan(regime=plan.regime, parts=tuple(parts), exact=False)


def units(plans: Sequence[Plan]) -> list[Unit]:
    """Every kernel of the plans, once."""
    return list(
        dict.fromkeys(
            (part.region, part.choice.candidate.id)
            for plan in plans
            for part in plan.parts
            if isinstance(part.choice, Kernel)
        )
    )


def without(plans: Sequence[Plan], dropped: Mapping[Unit, str]) -> tuple[Plan, ...]:
    """The plans with the fallback in place of kernels that are `dropped`, each for its reason."""

    def left(part: Part) -> Part:
        if not isinstance(part.choice, Kernel) or (part.region, part.choice.candidate.id) not in dropped:
            return part
        return replace(part, choice=Fallback(reason=because(dropped[part.region, part.choice.candidate.id])))

    return tuple(replace(plan, parts=tuple(left(part) for part in plan.parts)) for plan in plans)


def because(fault: str) -> str:
    """Why a region falls back."""
    return f"the whole model is wrong with its kernel: {fault}"


def _source(choice: Choice) -> str:
    return choice.source if isinstance(choice, Kernel) else ""


def _lowered(cut: Cut, parts: Sequence[Part], sources: Mapping[str, Source], layouts: Layouts) -> Program:
    return lower(cut.graph, schedule(cut.graph, cut.partition, parts), sources, dict(layouts))


def _ended(ran: Failed, groups: Sequence[Group]) -> str:
    """How a model ended that wrote no logits, and what it was fed."""
    cause = reason(ran.verdict)
    if isinstance(ran.verdict, Crashed) and not ran.verdict.signal:
        cause = ran.verdict.detail.strip().rpartition("\n")[2]
    how = "hung" if isinstance(ran.verdict, TimedOut) else "crashed"
    if not 0 <= ran.at < len(groups):
        return f"it {how} before its first token: {cause}"
    walk = groups[ran.at][0]
    return f"it {how} on {named(walk, walk.scored[-1])}: {cause}"
