"""The reference: the model as its authors wrote it, in float32 and in its own dtype, to compare a compiled one with.

In: a captured model and walks. Out: the logits of every scored position. For a checkpoint the reference is the model of
`transformers`, which computes every sequence from scratch without our cache, and the longest one with its own cache
too. For a user's module it is the module, or the captured graph when only a saved capture of it exists.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from agentcompile.backends import backend_of
from agentcompile.capture import Captured
from agentcompile.capture.cached import GRAPHS
from agentcompile.checkpoint import Checkpoint
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.graph import ITEM_BYTES, Phase
from agentcompile.ir.whole import Oracle, Walk
from agentcompile.ops.reference import DTYPES, Interpreter, Precision
from agentcompile.runtime import eager
from agentcompile.runtime.openmp import fair_threads
from agentcompile.system.exhausted import enough, exhausted, first_line
from agentcompile.tuning.partitions import open_ended

Answer = Callable[[Sequence[int], Sequence[int]], torch.Tensor]
"""Maps token ids and some of their positions to logits [positions, vocab]."""
SHORT = 512
"""Most tokens of a sequence that eager PyTorch runs.

Short sequences show the cost of rounding, and a long prompt in 16 bits is the slowest part on a CPU.
"""
MOST_BYTES = 2 << 30
"""Most bytes of weights for which the captured graph is run in float64, at four times the memory of 16 bits."""
STEPS = 4
"""Last tokens of a sequence that the reference is fed one by one, with its own cache."""
_COLLECTED = 1 << 26
"""Bytes of a model from which its memory is freed at once.

To find the cycles that hold it, the collector looks at every object of the process, which takes half a second; a
smaller model waits for the next collection.
"""
_ROOM = 1.3
"""Memory that a model may take, as a multiple of its weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Logits of a walk's steps, [steps, vocab] each: `exact` without a cache, `own` with the model's own cache."""

    walk: Walk
    exact: torch.Tensor
    own: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Logits of walks, float32 [scored, vocab] each, on the host."""

    oracle: Oracle
    exact: tuple[torch.Tensor, ...]
    eager: tuple[torch.Tensor | None, ...]
    """Logits in the model's own dtype; None where that is float32, and for sequences of more than `SHORT` tokens."""
    cached: tuple[Cached, ...] = ()
    """Logits of the reference with its own cache; empty unless it is a `transformers` model that has one."""


def answers(captured: Captured, walks: Sequence[Walk], device: str, module: torch.nn.Module | None = None) -> Answers:
    """Run the reference and eager PyTorch on all `walks`; each model is loaded once and freed when it has answered.

    Raises:
        AgentCompileError: the reference itself fails or gives no finite logits (correctness), or memory runs out
            (environment).
    """
    with enough(f"{captured.info.name}: the model itself, which is the reference"):
        return _answers(captured, walks, device, module)


def _answers(captured: Captured, walks: Sequence[Walk], device: str, module: torch.nn.Module | None) -> Answers:
    oracle = oracle_of(captured, module)
    with _opened(captured, oracle, device, module, exact=True) as answer:
        stepped = _stepped(walks) if isinstance(answer, _Transformers) else ()
        asked = _asked(captured, [*walks, *stepped], answer, "float32")
        exact = asked[: len(walks)]
        cached = _cached(stepped, asked[len(walks) :], answer) if isinstance(answer, _Transformers) else ()
    for walk, logits in zip(walks, exact, strict=True):
        if (bad := logits.isnan().any(-1) | ~logits.isfinite().any(-1)).any():
            at = walk.scored[int(bad.nonzero()[0])]
            text = f"{captured.info.name}: the model itself, in float32, gives no finite logits at position {at}"
            raise AgentCompileError(text, exit_code=ExitCode.CORRECTNESS, hint="check the checkpoint's weights")
    if captured.info.dtype == "fp32":
        return Answers(oracle=oracle, exact=exact, eager=(None,) * len(exact), cached=cached)
    short = [walk for walk in walks if len(walk.ids) <= SHORT]
    with _opened(captured, oracle, device, module, exact=False) as answer:
        own = iter(_asked(captured, short, answer, captured.info.dtype))
    eager = tuple(next(own) if len(walk.ids) <= SHORT else None for walk in walks)
    return Answers(oracle=oracle, exact=exact, eager=eager, cached=cached)


def as_captured(
    captured: Captured, walks: Sequence[Walk], module: torch.nn.Module | None = None
) -> tuple[torch.Tensor | None, ...]:
    """Return the float64 logits of the captured graph for short walks that begin with a prompt.

    They are None for other walks, for models in float32, for models that are too large, and where the captured graph is
    itself the reference. Rounding in 16 bits hides a capture that is only nearly right; in float64 nothing is rounded
    except tables and constants.
    """
    held = sum(info.nbytes for info in Checkpoint.open(captured.checkpoint).tensors().values())
    room = held <= MOST_BYTES and 4 * _ROOM * held < backend_of("cpu").free_bytes("cpu")
    if captured.info.dtype == "fp32" or oracle_of(captured, module) == "captured graph" or not room:
        return (None,) * len(walks)
    with enough(f"{captured.info.name}: what was captured, in float64"), _graph(captured, "float64") as answer:
        asked = [walk for walk in walks if walk.prompt and len(walk.ids) <= SHORT]
        own = iter(_asked(captured, asked, answer, "float64"))
    return tuple(next(own) if walk.prompt and len(walk.ids) <= SHORT else None for walk in walks)


def oracle_of(captured: Captured, module: torch.nn.Module | None = None) -> Oracle:
    """Return which reference the model has: the user's module, the captured graph, or `transformers`."""
    if module is not None:
        return "module"
    return "captured graph" if (captured.checkpoint / GRAPHS).exists() else "transformers"


def _stepped(walks: Sequence[Walk]) -> tuple[Walk, ...]:
    """Return the longest walk with its last `STEPS` tokens as decode steps, or nothing when it is too short.

    The longest walk leaves the most tokens outside a sliding window, so a difference shows there first.
    """
    longest = max(walks, key=lambda walk: len(walk.ids))
    count = len(longest.ids)
    if count <= STEPS:
        return ()
    return (replace(longest, prompt=count - STEPS, scored=tuple(range(count - STEPS, count))),)


def _cached(stepped: Sequence[Walk], exact: Sequence[torch.Tensor], answer: _Transformers) -> tuple[Cached, ...]:
    """Return the logits of the `transformers` model with its own cache, as `generate` runs it, where it has one."""
    with torch.inference_mode(), fair_threads():
        own = [answer.stepped(walk) for walk in stepped]
    told = zip(stepped, exact, own, strict=True)
    return tuple(Cached(walk=walk, exact=logits, own=found) for walk, logits, found in told if found is not None)


def _asked(captured: Captured, walks: Sequence[Walk], answer: Answer, kind: str) -> tuple[torch.Tensor, ...]:
    wanted: dict[tuple[int, ...], set[int]] = {}
    for walk in walks:
        wanted.setdefault(walk.ids, set()).update(walk.scored)
    made: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}
    with torch.inference_mode():
        for ids, positions in wanted.items():
            some = sorted(positions)
            try:
                with fair_threads():
                    found = answer(ids, some)
            except AgentCompileError:
                raise
            except Exception as error:  # any error of the model's own code
                if exhausted(error):
                    raise
                text = f"{captured.info.name}: the model itself, in {kind}, fails at {len(ids)} tokens"
                text = f"{text}: {first_line(error)}"
                hint = "it cannot be checked, and is not compiled: choose a shorter --context, or another checkpoint"
                raise AgentCompileError(text, exit_code=ExitCode.CORRECTNESS, hint=hint) from error
            made |= {(ids, at): row for at, row in zip(some, found.float().cpu(), strict=True)}
    return tuple(torch.stack([made[walk.ids, at] for at in walk.scored]) for walk in walks)


def _opened(
    captured: Captured, oracle: Oracle, device: str, module: torch.nn.Module | None, *, exact: bool
) -> contextlib.AbstractContextManager[Answer]:
    """Open the reference: `exact` in float32, otherwise in the model's own dtype."""
    match oracle:
        case "transformers":
            return _transformers(captured.checkpoint, torch.float32 if exact else None, device)
        case "module":
            assert module is not None
            if exact:
                return _module(captured, copy.deepcopy(module).float().eval(), torch.float32)
            return _module(captured, module, DTYPES[captured.info.dtype])
        case "captured graph":
            return _graph(captured, "float64" if exact else "model")


@contextlib.contextmanager
def _transformers(path: Path, dtype: torch.dtype | None, device: str) -> Iterator[Answer]:
    """Yield the `transformers` model, on `device` where it fits, else on the host.

    Where not even the host has room for it in float32, every submodule is widened only while it runs.
    """
    tensors = Checkpoint.open(path).tensors().values()
    held = sum(info.nbytes * (4 / ITEM_BYTES[info.dtype] if dtype else 1) for info in tensors) * _ROOM
    place = next((one for one in (device, "cpu") if held < backend_of(one).free_bytes(one)), "cpu")
    whole = dtype is None or held < backend_of(place).free_bytes(place)
    model = eager.load(path, dtype if whole else None).to(place)
    if not whole:
        _widen(model)
    opened = _Transformers(model, place)
    del model
    try:
        yield opened
    finally:
        opened.release()  # whoever opened it may still hold this object
        if held > _COLLECTED:
            gc.collect()
        backend_of(place).release_memory()


class _Transformers:
    def __init__(self, model: Any, device: str) -> None:
        self._model: Any = model
        self._device = device

    def release(self) -> None:
        """Let the model go; nothing can be asked any more."""
        self._model = None

    def __call__(self, ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        """Return the logits at `positions` alone: those of a long prompt with a large vocabulary would be gigabytes."""
        count, at = len(ids), torch.tensor(list(positions), device=self._device)

        def cut(_: Any, args: tuple[Any, ...]) -> Any:
            hidden = args[0]
            return (hidden[:, at], *args[1:]) if hidden.dim() == 3 and hidden.shape[1] == count else None

        with self._before_the_head(cut):
            logits = self._model(self._of(ids), use_cache=False).logits[0]
        return logits if logits.shape[0] == len(positions) != count else logits[at]  # type: ignore[no-any-return]

    def stepped(self, walk: Walk) -> torch.Tensor | None:
        """Return the logits of the steps after a walk's prompt, with the model's own cache; None where it has none."""

        def last(_: Any, args: tuple[Any, ...]) -> Any:
            hidden = args[0]
            return (hidden[:, -1:], *args[1:]) if hidden.dim() == 3 else None

        try:
            with self._before_the_head(last):
                cache, found = _cache_of(self._model(self._of(walk.ids[: walk.prompt]), use_cache=True)), []
                for token in walk.ids[walk.prompt :]:
                    if cache is None:
                        return None
                    told = self._model(self._of([token]), past_key_values=cache, use_cache=True)
                    cache = _cache_of(told)
                    found.append(told.logits[0, -1].float().cpu())
        except Exception as error:  # any error of a model that keeps its cache in another way
            if exhausted(error):
                raise
            return None
        return torch.stack(found)

    def _of(self, ids: Sequence[int]) -> torch.Tensor:
        return torch.tensor([list(ids)], device=self._device)

    @contextlib.contextmanager
    def _before_the_head(self, hook: Callable[[Any, tuple[Any, ...]], Any]) -> Iterator[None]:
        head = self._model.get_output_embeddings()
        handle = head.register_forward_pre_hook(hook) if head is not None else None
        try:
            yield
        finally:
            if handle is not None:
                handle.remove()


def _cache_of(told: Any) -> Any:
    return getattr(told, "past_key_values", None)


def _widen(model: torch.nn.Module) -> None:
    """Let every submodule hold its own parameters in float32 while it runs, and in their own dtype otherwise."""
    kept: dict[torch.nn.Module, list[torch.Tensor]] = {}

    def before(part: torch.nn.Module, _: Any) -> None:
        own = list(part.parameters(recurse=False))
        kept[part] = [parameter.data for parameter in own]
        for parameter in own:
            parameter.data = parameter.data.float()

    def after(part: torch.nn.Module, *_: Any) -> None:
        for parameter, data in zip(part.parameters(recurse=False), kept.pop(part), strict=True):
            parameter.data = data

    for part in model.modules():
        if any(True for _ in part.parameters(recurse=False)):
            part.register_forward_pre_hook(before)
            part.register_forward_hook(after)


@contextlib.contextmanager
def _module(captured: Captured, module: torch.nn.Module, dtype: torch.dtype) -> Iterator[Answer]:
    """Yield a user's module as an `Answer`, with fresh caches.

    The module may return logits for every token or for the last one alone; in the second case, earlier positions are
    computed one by one, each over the tokens before it.
    """

    def answer(ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        states = [torch.zeros(state.shape, dtype=dtype) for state in captured.info.states]
        caches = list(zip(states[::2], states[1::2], strict=True))
        logits: torch.Tensor = module(torch.tensor([list(ids)]), torch.arange(len(ids)), caches)[0]
        if logits.shape[0] == len(ids):
            return logits[torch.tensor(list(positions))]
        rows = [logits[-1]] if positions[-1] == len(ids) - 1 else []
        # It returns the last token's logits alone: compute earlier positions one by one, each from its own prefix.
        earlier = [at for at in positions if at < len(ids) - 1]
        found = [module(torch.tensor([list(ids[: at + 1])]), torch.arange(at + 1), caches)[0, -1] for at in earlier]
        return torch.stack([*found, *rows])

    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield answer
    finally:
        for part in training:
            part.training = True


@contextlib.contextmanager
def _graph(captured: Captured, precision: Precision) -> Iterator[Answer]:
    """Yield the captured graphs as an `Answer`: a prompt at once, where capture allows it, and then token by token.

    They are the reference for a saved module, of which nothing else is left.
    """
    wide, checkpoint = precision == "float64", Checkpoint.open(captured.checkpoint)
    bound: dict[str, torch.Tensor] = {}
    for graph in (captured.decode, captured.prefill):
        for name, value in graph.table().items():
            if name not in graph.inputs or name in bound or value.role not in ("weight", "constant"):
                continue
            tensor = checkpoint.tensor(value.name) if value.role == "weight" else captured.constants[value.name]
            bound[name] = tensor.double() if wide and tensor.is_floating_point() else tensor
    runs = {graph.phase: (Interpreter(graph, precision), graph) for graph in (captured.decode, captured.prefill)}
    at_once = open_ended(captured)

    def answer(ids: Sequence[int], positions: Sequence[int]) -> torch.Tensor:
        states: dict[str, torch.Tensor] = {}
        for state in captured.info.states:
            states[state.name] = torch.zeros(state.shape, dtype=torch.float64 if wide else DTYPES[state.dtype])
        rows, wanted, first = [], set(positions), positions[0] if at_once else -1

        def fed(phase: Phase, begin: int, end: int) -> torch.Tensor:
            run, graph = runs[phase]
            table, inputs = graph.table(), dict(bound)
            for name in graph.inputs:
                role = table[name].role
                if role == "state":
                    inputs[name] = states[table[name].name]
                elif role == "token":
                    inputs[name] = torch.tensor([list(ids[begin:end])])
                elif role == "position":
                    inputs[name] = torch.arange(begin, end)
            return run(inputs)["logits"].reshape(-1)

        if at_once:
            rows.append(fed("prefill", 0, first + 1).clone())
        for at in range(first + 1, positions[-1] + 1):
            logits = fed("decode", at, at + 1)
            if at in wanted:
                rows.append(logits.clone())
        return torch.stack(rows)

    yield answer
