"""The hand-written rungs: a decode step in sections, run eagerly or as a CUDA graph.

The weights are those of the static decoder that other arms compile. A section has the name of the kind of region that
covers it, so that the two times can be compared.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..harness.static_decoder import Decoder, Layer, Looped, attended

Made = TypeVar("Made")
LEAST_S = 0.5
"""The shortest time in seconds that a CPU generates to time the parts of its step."""
_STEPS, _ROUNDS = 8, 15
"""Steps in a sample and samples of each section, when the parts of a GPU's step are timed."""


class Sections:
    """The runner of a step's sections: all of them, all but one, or with a clock reading after each."""

    def __init__(self) -> None:
        self.without = ""
        """The section that is left out and replaced by its kept result; empty for none."""
        self.spent_ns: Counter[str] | None = None
        """The sums of times by section; None when sections are not timed."""
        self.keeps = False
        """Whether results are kept, to replace a section that is left out later."""
        self._kept: dict[tuple[str, int], Any] = {}
        self._seen: Counter[str] = Counter()
        self._last_ns = 0

    def begin(self) -> None:
        """Begin a step: reset the counts of sections and the clock."""
        self._seen.clear()
        self._last_ns = time.perf_counter_ns()

    @property
    def sites(self) -> Mapping[str, int]:
        """How often each section ran in the last step."""
        return dict(self._seen)

    def __call__(self, name: str, make: Callable[..., Made], *given: Any) -> Made:
        """Return `make(*given)`, or the kept result when the section is left out; keep and time it as configured."""
        at = (name, self._seen[name])
        self._seen[name] += 1
        if name == self.without:
            stands_in: Made = self._kept[at]
            return stands_in
        made = make(*given)
        if self.keeps:
            self._kept[at] = made
        if self.spent_ns is not None:
            now = time.perf_counter_ns()
            self.spent_ns[name] += now - self._last_ns
            self._last_ns = now
        return made


class Stepwise:
    """One decoder with its KV cache; with `merged`, q, k and v are one product, and gate and up another one."""

    def __init__(self, path: Path, context: int, device: str, *, merged: bool) -> None:
        self.device, self._merged = device, merged
        self._model = Decoder(path, context, device)
        self._layers = [_Weights(layer) for layer in self._model.layers if isinstance(layer, Layer)]
        self._own = dict(self._model.named_buffers(recurse=False, remove_duplicate=False))
        self.sections = Sections()

    def __call__(self, token: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Map tokens [1, T] at `positions` [T] to the next token [1, 1] and its logits [1, vocab]."""
        section, own = self.sections, self._own
        section.begin()
        x = section("embedding", F.embedding, token, own["table"])
        mask, cos, sin = section("position-tables", self._tables, positions)
        for w in self._layers:
            q, k, v = section("rmsnorm-linear", self._projected, w, x)
            kind = "qknorm-rope-attention-decode" if w.layer.normed else "rope-attention-decode"
            y = section(kind, attended, w.layer, w.of, (q, k, v), cos, sin, mask, positions)
            x = section("linear-residual", lambda x, y, o: x + F.linear(y, o), x, y, w.of["o"])
            h = section("rmsnorm-gateup-silu-mul", self._gated, w, x)
            x = section("linear-residual", lambda x, h, down: x + F.linear(h, down), x, h, w.of["down"])
        return section("rmsnorm-linear-argmax", self._head, x)

    def _tables(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = self._own
        return own["causal"][None, None, positions], own["cos"][positions], own["sin"][positions]

    def _projected(self, w: _Weights, x: Tensor) -> tuple[Tensor, ...]:
        """Map `x` [1, T, hidden] to q, k and v, [1, T, number of their heads × head_dim] each."""
        x = F.rms_norm(x, x.shape[-1:], w.of["before"], w.layer.eps)
        if self._merged:
            return torch.split(F.linear(x, w.of["qkv"]), w.sizes, dim=-1)
        return tuple(F.linear(x, one) for one in w.apart)

    def _gated(self, w: _Weights, x: Tensor) -> Tensor:
        x = F.rms_norm(x, x.shape[-1:], w.of["between"], w.layer.eps)
        gate, up = F.linear(x, w.of["gateup"]).chunk(2, -1) if self._merged else (F.linear(x, one) for one in w.pair)
        return F.silu(gate) * up

    def _head(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.rms_norm(x[:, -1], x.shape[-1:], self._own["last"], self._model.eps)
        logits = F.linear(x, self._own["head"])
        return logits.argmax(-1, keepdim=True), logits


class _Weights:
    """A layer's tensors by name, without a module around them."""

    def __init__(self, layer: Layer) -> None:
        self.layer, self.of = layer, dict(layer.named_buffers(remove_duplicate=False))
        self.sizes = [heads * layer.head_dim for heads in (layer.heads, layer.kv_heads, layer.kv_heads)]
        self.apart = torch.split(self.of["qkv"], self.sizes)
        self.pair = self.of["gateup"].chunk(2)


class Replayed(Protocol):
    """A captured step that can be replayed."""

    def replay(self) -> None:
        """Enqueue the step."""


def cuda_graph(body: Callable[[], None]) -> Replayed:
    """Capture what `body` enqueues as a CUDA graph."""
    from agentcompile.runtime.device_step import captured

    graph: Replayed = captured(body)
    return graph


class ByHand(Looped):
    """The arm: a plain loop around the step, or with `capture` around replays of the captured step."""

    def __init__(
        self,
        request: Mapping[str, Any],
        *,
        merged: bool,
        capture: Callable[[Callable[[], None]], Replayed] | None = None,
    ) -> None:
        self._device, self._capture = request["device"], capture
        if self._device == "cpu":
            torch.set_num_threads(request["threads"])
        else:
            torch.set_float32_matmul_precision("high")
            torch.cuda.set_device(self._device)
        with torch.inference_mode():
            self._step = Stepwise(Path(request["model"]), request["context"], self._device, merged=merged)
            self._token = torch.zeros(1, 1, dtype=torch.int64, device=self._device)
            self._position = torch.zeros(1, dtype=torch.int64, device=self._device)
            self._logits: Tensor
            self._held: Tensor
            self._graph: Replayed | None = None
        self.facts = {
            "torch": torch.__version__,
            "cache_tokens": request["context"],
            "projections": "merged" if merged else "apart",
            "step": "captured" if capture else "eager",
            "threads": torch.get_num_threads(),
        }
        for length in request["prompts"]:
            self.generate([1] * length, 4)

    def _steps(self, ids: Sequence[int], new: int, **drawn: Any) -> Iterator[tuple[Tensor, Tensor]]:
        self._prompt(ids)
        for at in range(new):
            if at:
                self._advance()
            yield self._token.clone(), self._logits

    def look(self, ids: Sequence[int], new: int) -> dict[str, Any]:
        """Return a `looks.Looked` as plain values.

        On a CPU the clock is read after each section of generations; on a GPU a section's time is how much faster the
        step is without it.
        """
        with torch.inference_mode():
            return self._clocked(ids, new) if self._device == "cpu" else self._left_out(ids, new)

    def _prompt(self, ids: Sequence[int]) -> None:
        positions = torch.arange(len(ids), device=self._device)
        token, logits = self._step(torch.tensor([list(ids)], device=self._device), positions)
        self._stand(token, len(ids))
        self._logits = logits

    def _stand(self, token: Tensor, position: int) -> None:
        self._token.copy_(token)
        self._position.fill_(position)

    def _advance(self) -> None:
        if self._capture is None:
            self._one()
            return
        if self._graph is None:
            token, position = self._token.clone(), int(self._position)
            self._graph = self._capture(self._one)
            self._held = self._logits  # the tensor that every replay writes
            self._stand(token, position)  # capturing ran the step, which changed both
        self._graph.replay()
        self._logits = self._held

    def _one(self) -> None:
        token, self._logits = self._step(self._token, self._position)
        self._token.copy_(token)
        self._position.add_(1)

    def _clocked(self, ids: Sequence[int], new: int) -> dict[str, Any]:
        sections, spent = self._step.sections, Counter[str]()
        self.generate(ids, new)
        steps = took_ns = 0
        while took_ns < 1e9 * LEAST_S:
            self._prompt(ids)
            sections.spent_ns, begin = spent, time.perf_counter_ns()
            for _ in range(new - 1):
                self._one()
            took_ns += time.perf_counter_ns() - begin
            sections.spent_ns, steps = None, steps + new - 1
        return {
            "token_ns": took_ns / steps,
            "parts": [_part(kind, ns / steps, sections.sites[kind]) for kind, ns in spent.items()],
            "how": "a look at the clock after each section",
        }

    def _left_out(self, ids: Sequence[int], new: int) -> dict[str, Any]:
        self._prompt(ids)
        middle, token, sections = len(ids) + new // 2, self._token.clone(), self._step.sections
        sections.keeps = True
        self._still()
        sections.keeps = False
        kinds = dict(sections.sites)
        runs = {name: self._runs(name) for name in ("", *kinds)}
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(_ROUNDS):
            for name, run in runs.items():
                self._stand(token, middle)
                times[name].append(_took_ns(run, self._device))
        whole = median(times[""])
        generation = self.generate(ids, new)
        return {
            "token_ns": 1e9 * generation.rest_s / (new - 1),
            "parts": [_part(kind, max(whole - median(times[kind]), 0.0), sites) for kind, sites in kinds.items()],
            "how": "what the step takes less when a section is left out of it",
        }

    def _still(self) -> None:
        self._step(self._token, self._position)

    def _runs(self, without: str) -> Callable[[], None]:
        sections = self._step.sections

        def body() -> None:
            sections.without = without
            self._still()
            sections.without = ""

        return body if self._capture is None else self._capture(body).replay


def _part(kind: str, ns: float, sites: int) -> dict[str, Any]:
    return {"kind": kind, "ns": ns, "sites": sites}


def _took_ns(run: Callable[[], None], device: str) -> float:
    wait: Callable[[], None] = torch.cuda.synchronize if device != "cpu" else lambda: None
    run()
    wait()
    begin = time.perf_counter_ns()
    for _ in range(_STEPS):
        run()
    wait()
    return (time.perf_counter_ns() - begin) / _STEPS
