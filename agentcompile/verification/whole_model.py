"""The last gate before a lockfile: compares the whole model, run by its plans, with the float32 model.

In: the plans of every regime. Out: the plans that may ship, and how near they are to float32. Kernels that pass all
their own checks may still be wrong together, at inputs that no check covered, or from some position on. Such a failure
is bisected to the kernel that introduces it; its region falls back, and the remaining plans are checked again. Where
PyTorch's own captured graph is wrong, nothing may ship.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Protocol

import torch

from agentcompile.backends import backend_of
from agentcompile.capture import Captured
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.evaluation.jobs import Failed
from agentcompile.evaluation.machine import Machine
from agentcompile.evaluation.step_clock import binaries
from agentcompile.events import ChoiceMade, Emit, ModelChecked, StageStarted, Warned
from agentcompile.ir.digest import Json, digest
from agentcompile.ir.program import CHUNK, NativeCall, Program
from agentcompile.ir.template import Source, Template
from agentcompile.ir.trial import Crashed, Fallback, Kernel, Layouts, Part, Plan, PromptLengths, TimedOut, reason
from agentcompile.ir.whole import Group, ModelCheck
from agentcompile.materialize import specialise
from agentcompile.planning.arms import lowered, source_of
from agentcompile.planning.chunks import Chunks, capacity, usual
from agentcompile.runs.tables import prompt_lines
from agentcompile.runtime.pieces import LENGTHS, served
from agentcompile.system.exhausted import enough
from agentcompile.tuning.partitions import Cut
from agentcompile.verification.oracle import Answers, answers, as_captured, oracle_of
from agentcompile.verification.scores import compared, contradiction, fault, miscaptured, phases
from agentcompile.verification.walks import lengths, named, walks
from agentcompile.worker.protocol import Fed, FeedModel

Unit = tuple[str, str]
"""A kernel where it is used: region id and candidate id."""
LATER = 10.0
"""Patience with a part of a plan with kernels, as a multiple of the longest part of PyTorch's graph on this machine.

`LATER_S` seconds are added; a part that takes longer counts as hung.
"""
LATER_S = 20.0


class Feeder(Protocol):
    """Whoever runs a whole model on sequences: the evaluator."""

    def feed(self, request: FeedModel, *, patience_s: float = ...) -> Fed | Failed:
        """Run a whole model; it fails when no part ends within `patience_s` seconds (0: by the model's size)."""


@dataclass(kw_only=True)
class WholeModelGate:
    """The gate of one model; the reference is run once, and only when something is to be compared."""

    here: Machine
    captured: Captured
    constants: Path
    cuts: Sequence[Cut]
    """The partition of each regime, the prefill's last."""
    templates: Mapping[str, Template]
    evaluator: Feeder
    emit: Emit
    seed: int
    known: Mapping[str, ModelCheck] = field(default_factory=dict[str, ModelCheck])
    """Checks of an earlier process of the run, by the digest of what was checked."""
    module: torch.nn.Module | None = None
    """The user's own module, where there is one."""
    _answers: Answers | None = field(default=None, init=False)
    _miscaptured: str = field(default="", init=False)
    _groups: tuple[Group, ...] = field(default=(), init=False)
    _lengths: tuple[int, int] = field(default=(0, 0), init=False)
    later_s: float = LATER_S
    _patience_s: float = field(default=0.0, init=False)

    def check(self, plans: Sequence[Plan], layouts: Layouts) -> ModelCheck:
        """Compare `plans`, one for each of the cuts, with the float32 model, or return an earlier equal check."""
        key = self._key(plans, layouts)
        if (known := self.known.get(key)) is not None:
            return known
        found = self._checked(plans, layouts)
        self.known = {**self.known, key: found}
        self.emit(ModelChecked(plans=key, check=found))
        return found

    def right(self, plans: Sequence[Plan], layouts: Layouts) -> tuple[tuple[Plan, ...], ModelCheck]:
        """Return the plans without the kernels that make the model wrong, and the check that they pass.

        Raises:
            AgentCompileError: the model is wrong without any kernel (correctness), or too slow to be checked
                (environment).
        """
        guilty: dict[Unit, str] = {}
        plans = self._with_right_lengths(plans, layouts)
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

    def _with_right_lengths(self, plans: Sequence[Plan], layouts: Layouts) -> Sequence[Plan]:
        """Return the plans; where the model is wrong, as prompts run through them usually.

        So no kernel is blamed for what is wrong in chunks or steps of other lengths alone, which are other kernels.
        """
        chunk, stepped = _fed_as(plans)
        if not (chunk or stepped) or (wrong := self.check(plans, layouts)).ok:
            return plans
        usual = tuple(replace(plan, prompts=PromptLengths()) for plan in plans)
        self._say("prompts as usual")
        if self.check(usual, layouts).ok:
            ways = "; ".join(prompt_lines(chunk, stepped))
            self.emit(Warned(text=f"prompts run as usual: the model is wrong where {ways}: {wrong.fault}"))
        return usual

    def _first_wrong(
        self, plans: Sequence[Plan], layouts: Layouts, left: Sequence[Unit], fault: str
    ) -> tuple[Unit, str]:
        """Return, by bisection, the first kernel of `left` that makes the model wrong together with those before it."""
        right, wrong = 0, len(left)
        while wrong - right > 1:
            middle = (right + wrong) // 2
            self._say(f"one of {wrong - right} kernels makes the model wrong")
            dropped = dict.fromkeys([unit for unit in units(plans) if unit not in left[:middle]], "left out")
            found = self.check(without(plans, dropped), layouts)
            if found.ok:
                right = middle
            else:
                wrong, fault = middle, found.fault
        return left[wrong - 1], fault

    def _bare_is_right(self, plans: Sequence[Plan], wrong: ModelCheck) -> None:
        bare = without(plans, dict.fromkeys(units(plans), "left out"))
        found = self.check(bare, ()) if units(plans) else wrong
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

    def _say(self, text: str) -> None:
        """Report how far the check is."""
        self.emit(StageStarted(stage="verify", detail=text))

    def _key(self, plans: Sequence[Plan], layouts: Layouts) -> str:
        info = self.captured.info
        versions: Json = [metadata.version(name) for name in ("torch", "transformers")]
        parts: list[Json] = [
            [plan.regime.name, [[part.region, list(part.sites), source_of(part.choice)] for part in plan.parts]]
            for plan in plans
        ]
        if any(fed_as := _fed_as(plans)):
            parts.append(list(fed_as))
        kept: Json = [list(pair) for pair in layouts]
        about: Json = [info.weights_digest, info.config_digest, info.context, oracle_of(self.captured, self.module)]
        return digest("whole/3", parts, kept, about, self.here.target.digest, self.seed, versions)

    def _checked(self, plans: Sequence[Plan], layouts: Layouts) -> ModelCheck:
        request = self.request(plans, layouts)
        if (fed_as := _fed_as(plans)) != self._lengths:  # other lengths matter, and other answers
            self._groups, self._answers, self._lengths = (), None, fed_as
        groups = self._groups = self._groups or request.groups
        request = replace(request, groups=groups)
        about = ModelCheck(
            oracle=oracle_of(self.captured, self.module), seed=self.seed, lengths=lengths(groups), phases=()
        )
        walked = [walk for group in groups for walk in group]
        scored = sum(len(walk.scored) for walk in walked)
        self._say(f"the plan runs {len(walked)} sequences, {scored} positions of which are compared")
        what = f"checking {self.captured.info.name} as a whole"
        with enough(what), tempfile.TemporaryDirectory(prefix="agentcompile-") as folder:
            out = Path(folder) / "logits"
            ran = self._fed(plans, replace(request, out=str(out)))
            if isinstance(ran, Failed):
                return replace(about, fault=_ended(ran, groups))
            vocab = self.captured.info.vocab
            assert ran.rows == scored, f"{ran.rows} rows, not {scored}"
            if out.stat().st_size != 4 * scored * vocab:
                return replace(about, fault="its logits are not all there")
            if self._answers is None:
                self._say(f"{about.oracle} runs the same sequences in float32")
                self._answers = own = answers(self.captured, walked, self.here.device, self.module)
                self._reference_is_one(own)
                graph = as_captured(self.captured, walked, self.module)
                self._miscaptured = miscaptured(walked, own.exact, own.eager, graph)
            found = torch.from_file(str(out), size=scored * vocab, dtype=torch.float32).view(scored, vocab)
            rows = compared(walked, self._answers.exact, self._answers.eager, found)
        return replace(about, phases=phases(walked, rows), fault=self._miscaptured or fault(walked, rows))

    def _reference_is_one(self, found: Answers) -> None:
        """Check that the `transformers` model with its own cache, as `generate` runs it, agrees with itself without.

        They differ, for example, where only one of them has a sliding window.
        """  # noqa: DOC501
        for one in found.cached:
            if far := contradiction(one.exact, one.own):
                text = (
                    f"{self.captured.info.name}: transformers' model contradicts itself: behind {one.walk.prompt} "
                    f"tokens its answer with its own cache is {far:.3g} nats from its answer without"
                )
                hint = (
                    "nothing says which of the two its authors mean, so that no lock is written; a sliding window that "
                    "one of them ignores is the usual cause: choose a --context that is no longer than the window"
                )
                raise AgentCompileError(text, exit_code=ExitCode.CORRECTNESS, hint=hint)

    def _fed(self, plans: Sequence[Plan], request: FeedModel) -> Fed | Failed:
        """Run the plans; when no step ends in time, run PyTorch's own graph, and the plans again if that is in time."""  # noqa: DOC501
        bare = not units(plans)
        ran = self.evaluator.feed(request, patience_s=0.0 if bare else self._patience_s)
        if not _late(ran):
            return self._paced(ran) if bare else ran
        if not bare:
            self.emit(Warned(text="The whole model makes no step in time: PyTorch's own graph is run beside it"))
            without_any = without(plans, dict.fromkeys(units(plans), "left out"))
            beside = self.evaluator.feed(replace(self.request(without_any, ()), groups=request.groups, out=request.out))
            if not _late(beside):
                self._paced(beside)
                return self.evaluator.feed(request, patience_s=self._patience_s)
        name = self.captured.info.name
        raise AgentCompileError(
            f"{name}: not even PyTorch's own graph makes a step in time: the machine is too busy or too slow to check "
            "the whole model",
            exit_code=ExitCode.ENVIRONMENT,
            hint="compile --resume when less else runs (`agentcompile doctor`): acknowledged trials are kept",
        )

    def _paced(self, ran: Fed | Failed) -> Fed | Failed:
        """Set the time limit of later runs from the time of PyTorch's own graph, since a guessed limit is longer."""
        if isinstance(ran, Fed):
            self._patience_s = self.later_s + LATER * ran.longest_s
        return ran

    def request(self, plans: Sequence[Plan], layouts: Layouts) -> FeedModel:
        """Return the request to a worker that runs the plans."""
        sources, info = self._sources(plans), self.captured.info
        alone = [plan.regime.context[1] for plan in plans if plan.phase == "decode" and plan.regime.batch == 1]
        batches = [plan.regime.batch for plan in plans if plan.regime.batch > 1]
        decode = [
            (plan.regime.context[1], lowered(cut, plan.parts, sources, dict(layouts)))
            for cut, plan in zip(self.cuts[:-1], plans[:-1], strict=True)
        ]
        prefill, longest, own = self._prefill(plans[-1], layouts, sources)
        stepped = plans[-1].prompts.steps_up_to
        programs = [program for _, program in (*decode, *prefill)]
        wanted = {call.source for program in programs for call in program.calls if isinstance(call, NativeCall)}
        if backend_of(self.here.device).queued:
            from agentcompile.runtime.device_step import advance_source

            advance = advance_source(self.here.target.arch)
            sources[advance.digest] = advance
            wanted.add(advance.digest)
        built = binaries(self.here, sources, sorted(wanted))
        found = walks(
            info.context,
            info.vocab,
            longest,
            ends=alone,
            batches=batches,
            programs=own,
            steps_up_to=stepped,
            seed=self.seed,
        )
        return FeedModel(
            info=info,
            decode=tuple(decode),
            prefill=tuple(prefill),
            capacity=longest,
            steps_up_to=stepped,
            checkpoint=str(self.captured.checkpoint),
            constants=str(self.constants),
            binaries=tuple((source, binary.path) for source, binary in built.items()),
            groups=found,
            out="",
        )

    def _sources(self, plans: Sequence[Plan]) -> dict[str, Source]:
        found: dict[str, Source] = {}
        for cut, plan in zip(self.cuts, plans, strict=True):
            for part in plan.parts:
                if isinstance(part.choice, Kernel) and part.choice.source not in found:
                    candidate = part.choice.candidate
                    template, region = self.templates[candidate.template_digest], cut.regions[part.region]
                    source = specialise(template, region, candidate.params, self.here.target)
                    assert source.digest == part.choice.source, f"{region.name}: {candidate.label} is another now"
                    found[source.digest] = source
        return found

    def _prefill(
        self, plan: Plan, layouts: Layouts, sources: dict[str, Source]
    ) -> tuple[list[tuple[int, Program]], int, tuple[int, ...]]:
        """Return the prefill programs by tokens, the longest chunk, and the prompt lengths with programs of their own.

        The sources of the kernels that they call are added to `sources`.
        """
        cut, most = self.cuts[-1], capacity(self.captured)
        chunks = Chunks(
            graph=self.captured.prefill,
            cut=cut.partition,
            parts=plan.parts,
            templates=self.templates,
            target=self.here.target,
            layouts=layouts,
        )
        if backend_of(self.here.device).any_chunk:
            longest = plan.prompts.chunk or usual(self.captured)
            if longest <= CHUNK:
                return [(longest, lowered(cut, plan.parts, sources, dict(layouts)))], longest, ()
            longer = chunks.any_up_to(longest)
            sources |= {job.source.digest: job.source for job in longer.jobs}
            return [(longest, longer.program)], longest, ()
        longest = chunks.longest(most)
        made = {tokens: chunks.at(tokens) for tokens in sorted({1, *served(longest)})}
        sources |= {job.source.digest: job.source for chunk in made.values() for job in chunk.jobs}
        own = tuple(length for length in LENGTHS if length <= longest)
        return [(tokens, chunk.program) for tokens, chunk in made.items()], longest, own


def units(plans: Sequence[Plan]) -> list[Unit]:
    """Return every kernel of the plans, once."""
    return list(
        dict.fromkeys(
            (part.region, part.choice.candidate.id)
            for plan in plans
            for part in plan.parts
            if isinstance(part.choice, Kernel)
        )
    )


def without(plans: Sequence[Plan], dropped: Mapping[Unit, str]) -> tuple[Plan, ...]:
    """Return the plans with the `dropped` kernels replaced by fallbacks, each with its reason."""

    def left(part: Part) -> Part:
        if not isinstance(part.choice, Kernel) or (part.region, part.choice.candidate.id) not in dropped:
            return part
        return replace(part, choice=Fallback(reason=because(dropped[part.region, part.choice.candidate.id])))

    return tuple(replace(plan, parts=tuple(left(part) for part in plan.parts)) for plan in plans)


def because(fault: str) -> str:
    """Return the reason of a fallback."""
    return f"the whole model is wrong with its kernel: {fault}"


def _fed_as(plans: Sequence[Plan]) -> tuple[int, int]:
    """Return the chunk of prompts, and up to how many tokens decode steps run, as the prefill plan has them."""
    return plans[-1].prompts.chunk, plans[-1].prompts.steps_up_to


def _late(ran: Fed | Failed) -> bool:
    return isinstance(ran, Failed) and isinstance(ran.verdict, TimedOut)


def _ended(ran: Failed, groups: Sequence[Group]) -> str:
    cause = reason(ran.verdict)
    if isinstance(ran.verdict, Crashed) and not ran.verdict.signal:
        cause = ran.verdict.detail.strip().rpartition("\n")[2]
    if isinstance(ran.verdict, TimedOut):
        cause = f"no step in {ran.verdict.limit_s:.3g} s, where PyTorch's own graph makes its steps"
    how = "hung" if isinstance(ran.verdict, TimedOut) else "crashed"
    if not 0 <= ran.at < len(groups):
        return f"it {how} before its first token: {cause}"
    walk = groups[ran.at][0]
    return f"it {how} on {named(walk, walk.scored[-1])}: {cause}"
