"""The compiler as the verbs call it: the real flow imports PyTorch when it is called, tests pass a fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentcompile.advice.configure import Inquiry
from agentcompile.advice.prompt import Prompt
from agentcompile.agents.folder import Subject
from agentcompile.control.steering import Steering
from agentcompile.errors import AgentCompileError
from agentcompile.events import Emit
from agentcompile.ir.attempt import AttemptEvaluator, Contract, WrittenLanguage
from agentcompile.ir.target import Target
from agentcompile.ir.trial import Trial
from agentcompile.options import Options

if TYPE_CHECKING:
    from agentcompile.replay.load import Replayed


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """How to generate from a prompt."""

    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InputPrompt:
    """A prompt: a text, or token ids."""

    text: str = ""
    ids: tuple[int, ...] = ()
    chat: bool = False
    """Whether the text is a user's turn, to be rendered in the checkpoint's chat template."""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation that a chat begins with."""
        return [{"role": "user", "content": self.text}]


Generator = Callable[[InputPrompt, "GenerateRequest"], "Stream"]
"""A function of a prompt and how to go on from it to what comes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPiece:
    """Text that became known with `tokens` new tokens; it may be empty while a character is unfinished."""

    text: str
    tokens: int = 1
    ids: tuple[int, ...] = ()
    """The new tokens; empty where only their number is known."""
    finish: str | None = None
    """Why the generation ended, in its last piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """A generation whose prompt was checked, and that begins with the first piece that is taken."""

    pieces: Iterator[TextPiece]
    prompt_tokens: int
    has_text: bool = True
    """Whether the model has a tokenizer, without which all texts are empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRegion:
    """A region that is refined, or a task that stands as one: what is asked of a kernel, and the gates in front."""

    subject: Subject
    contract: Contract
    evaluator: AttemptEvaluator
    target: Target


class Flow:
    """The compiler as the command line calls it; each method raises AgentCompileError for what the user can fix."""

    def check(self, options: Options) -> None:
        """Check what a compilation can be refused for before anything is captured: batch sizes, the lock's place."""
        from agentcompile.lockfile.files import reserve_lock

        if max(options.batch) > 1:
            from agentcompile.evaluation.machine import device_of
            from agentcompile.tuning.partitions import check_batches

            check_batches(options.batch, device_of(options))
        reserve_lock(Path(options.out))

    def compile(self, options: Options, emit: Emit, past: Sequence[Trial], steering: Steering) -> None:
        """Compile `options.model` to a lock at `options.out`.

        The trials were finished earlier in the same run; through the steering a person may steer it.
        """
        from agentcompile import pipeline

        pipeline.compile_model(options, emit, past=past, steering=steering)

    def inspect(self, options: Options, emit: Emit) -> None:
        """Capture and partition a checkpoint; emits graphs, regions, boundaries and spaces."""
        from agentcompile.planning import previews

        previews.inspect_model(options, emit)

    def advise(self, options: Options, emit: Emit, asked: Inquiry) -> Sequence[Prompt]:
        """Ask the adviser about every region; emits its advice and returns every prompt."""
        from agentcompile.planning import previews

        return previews.advise_model(options, emit, asked)

    def replay(self, lock: Path, options: Options, emit: Emit, locked: bool, check: bool) -> Replayed:
        """Rebuild and validate a lock, or with `check` only compare it; emits drift, and refuses with exit 3."""
        from agentcompile.replay.load import check_lock, rebuilt

        if check:
            return check_lock(lock, options, emit, locked=locked)
        return rebuilt(lock, options, emit, locked=locked)[1]

    def bundle(self, lock: Path, options: Options, out: Path) -> tuple[int, int]:
        """Write the bundle of a lock to the file `out`; returns its number of kernels and its bytes."""
        from agentcompile.replay.bundling import bundle_lock

        return bundle_lock(lock, options, out)

    def generate(self, lock: Path, options: Options, emit: Emit) -> Generator:
        """Load a lock and return what generates from it, text piece by piece; emits drift."""
        from agentcompile.replay.load import replay_lock
        from agentcompile.runtime.request import tokens_of

        model = replay_lock(lock, options, emit)

        def run(prompt: InputPrompt, request: GenerateRequest) -> Stream:
            if model.tokenizer is None and not prompt.ids:
                hint = "give token ids with --prompt-ids, such as --prompt-ids 1,15,7"
                raise AgentCompileError(f"{model.checkpoint}: there is no tokenizer", hint=hint)
            given = prompt.messages if prompt.chat else prompt.ids or prompt.text
            ids = tokens_of(model.info, model.tokenizer, given)
            made = model.stream(ids, **asdict(request))
            pieces = (TextPiece(text=p.text, tokens=len(p.tokens), ids=p.tokens, finish=p.finish) for p in made)
            return Stream(pieces=pieces, prompt_tokens=len(ids), has_text=model.tokenizer is not None)

        return run

    def eager(self, lock: Path, options: Options, prompt: InputPrompt, request: GenerateRequest) -> Iterator[TextPiece]:
        """Run the same request on the same checkpoint in PyTorch eager."""
        from agentcompile.replay.open import checkpoint_of
        from agentcompile.runtime import eager
        from agentcompile.runtime.sampling import Sampling
        from agentcompile.runtime.text import Tokenizer

        how = Sampling(temperature=request.temperature, top_k=request.top_k, top_p=request.top_p, seed=request.seed)
        checkpoint = checkpoint_of(lock, options)
        ids = prompt.ids
        if prompt.chat:
            ids = tuple(Tokenizer(checkpoint).template(prompt.messages))
        made = eager.pieces(checkpoint, ids or prompt.text, request.max_new_tokens, how)
        yield from (TextPiece(text=text, tokens=tokens) for text, tokens in made)

    def verify(self, lock: Path, options: Options, prompts: Sequence[str], emit: Emit) -> Mapping[str, float | str]:
        """Measure a lock's end-to-end accuracy on prompts, as named figures; exit 4 when they break the tolerances."""
        from agentcompile.replay import accuracy

        return accuracy.verify_lock(lock, options, prompts, emit)

    def region(
        self, options: Options, region: str, language: WrittenLanguage | None, emit: Emit, *, fenced: bool
    ) -> AbstractContextManager[OpenRegion]:
        """Open a region of a checkpoint for refining; its workers end with the block. `fenced` confines them."""
        return _opened(options, region, language, emit, fenced)

    def task(
        self, options: Options, path: Path, language: WrittenLanguage | None, *, fenced: bool
    ) -> AbstractContextManager[OpenRegion]:
        """Open a task's file for refining; its processes end with the block. `fenced` confines written kernels."""
        return _task_opened(options, path, language, fenced)

    def target(self, options: Options) -> Target:
        """Return the target that describes this machine."""
        from agentcompile.evaluation.machine import this_machine

        return this_machine(options).target


@contextmanager
def _opened(
    options: Options, region: str, language: WrittenLanguage | None, emit: Emit, fenced: bool
) -> Iterator[OpenRegion]:
    from agentcompile.refine.promote import machine_of
    from agentcompile.refine.regions import opened

    asked = replace(options, advisor="heuristic")  # who is asked about kernels is not asked about candidates
    with opened(asked, region, language=language, emit=emit, fenced=fenced) as found:
        contract = found.contract
        subject = Subject(
            region=found.task.region.name,
            kind=contract.kind,
            language=contract.language,
            contract=contract.digest,
            floor_ns=contract.floor_ns,
            reference_ns=contract.reference_ns,
            incumbent_ns=contract.incumbent_ns,
            incumbent=found.bar.label,
            machine=machine_of(found.here.target),
        )
        yield OpenRegion(subject=subject, contract=contract, evaluator=found.evaluator, target=found.here.target)


@contextmanager
def _task_opened(options: Options, path: Path, language: WrittenLanguage | None, fenced: bool) -> Iterator[OpenRegion]:
    from agentcompile.refine.promote import machine_of
    from agentcompile.tasks.open import opened_task

    with opened_task(options, path, language=language, fenced=fenced) as found:
        contract, target = found.contract, found.here.target
        subject = Subject(
            region=path.name,
            kind=contract.kind,
            language=contract.language,
            contract=contract.digest,
            floor_ns=contract.floor_ns,
            reference_ns=contract.reference_ns,
            incumbent_ns=contract.incumbent_ns,
            incumbent=found.baselines.name,
            machine=machine_of(target),
            task=found.task.digest,
        )
        yield OpenRegion(subject=subject, contract=contract, evaluator=found.evaluator, target=target)


REAL = Flow()
