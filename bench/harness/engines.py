"""The arms that run in our own interpreter: PyTorch eager, PyTorch compiled, and agentcompile.

It runs as `python -m agentcompile.bench.harness.engines`; the first request names the arm, the checkpoint and the
threads. PyTorch's arms get a KV cache that is just long enough, which favours them, as they attend to all of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .channel import Engine, Generation, serve


class Eager:
    """`generate` of transformers as a user calls it: a dynamic KV cache, sdpa attention, greedy."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(request["threads"])
        dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[request.get("dtype", "bf16")]
        self._device = request.get("device", "cpu")
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            request["model"], dtype=dtype, attn_implementation="sdpa"
        ).to(self._device)
        # Exactly `new` tokens are wanted: without an EOS id no generation ends early, and none needs suppressing.
        self._model.generation_config.eos_token_id = None
        self.facts = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "dtype": str(dtype),
            "threads": torch.get_num_threads(),
        }

    def generate(self, ids: Sequence[int], new: int) -> Generation:
        """Call `generate` once; a streamer, called with the prompt and then with every token, takes the times."""
        return self._timed(ids, new, do_sample=False)

    def sample(self, ids: Sequence[int], new: int, *, temperature: float, top_p: float, seed: int) -> Generation:
        """Make the same call with sampling."""
        return self._timed(ids, new, **self._drawn({"temperature": temperature, "top_p": top_p, "seed": seed}))

    def _drawn(self, how: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        if not how:
            return {"do_sample": False}
        torch.manual_seed(how["seed"])
        return {"do_sample": True, "temperature": how["temperature"], "top_p": how["top_p"], "top_k": 0}

    def whole(self, ids: Sequence[int], new: int, **how: Any) -> list[int]:
        """Make the same call without a streamer, and return the new tokens."""
        return self._call(ids, new, **self._drawn(how))[0, len(ids) :].tolist()  # type: ignore[no-any-return]

    def _timed(self, ids: Sequence[int], new: int, **how: Any) -> Generation:
        stamps = _Stamps()
        begin = time.perf_counter()
        out = self._call(ids, new, streamer=stamps, **how)
        first = stamps.seen[1]
        return Generation(out[0, len(ids) :].tolist(), first - begin, stamps.seen[-1] - first)

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return the new tokens of one greedy call and, from each step's raw logits, the `count` likeliest tokens."""
        out = self._call(ids, new, do_sample=False, output_logits=True, return_dict_in_generate=True)
        tops = [logits[0].float().topk(count).indices.tolist() for logits in out.logits]
        return out.sequences[0, len(ids) :].tolist(), tops

    def _call(self, ids: Sequence[int], new: int, **more: Any) -> Any:
        import torch

        prompt = torch.tensor([ids], device=self._device)
        # The ids of a random prompt may hold the padding id, so the mask says that every token counts.
        mask = torch.ones_like(prompt)
        with torch.inference_mode():
            return self._model.generate(prompt, attention_mask=mask, max_new_tokens=new, **more)


class _Stamps:
    """A streamer that only reads the clock."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def put(self, value: object) -> None:
        """Record the time; called once with the prompt, then with every token."""
        self.seen.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing at the end of the generation."""


class Compiled:
    """The decode step over a static KV cache under `torch.compile` with frozen weights; the prefill runs eagerly."""

    def __init__(self, request: Mapping[str, Any], mode: str | None) -> None:
        import torch
        import torch._inductor.config as inductor
        import transformers

        torch.set_num_threads(request["threads"])
        self._device = request.get("device", "cpu")
        inductor.freezing = self._device == "cpu"
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            request["model"], dtype=torch.bfloat16, attn_implementation="sdpa"
        ).to(self._device)
        self._cache: Any = transformers.StaticCache(config=self._model.config, max_cache_len=request["context"])
        self._mode = mode
        self._compiled: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {}
        self.facts = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "mode": mode or "default",
            "freezing": inductor.freezing,
            "cache_tokens": request["context"],
            "threads": torch.get_num_threads(),
        }
        for length in request.get("prompts", (3,)):
            self.generate([1] * length, 8)
            if drawn := request.get("sampling"):
                self.sample([1] * length, 8, **drawn)

    def _forward(self, token: Any) -> Any:
        """Map tokens [1, T] to the last one's logits [1, vocab]."""
        return self._model(input_ids=token, past_key_values=self._cache, use_cache=True, logits_to_keep=1).logits[:, -1]

    def generate(self, ids: Sequence[int], new: int) -> Generation:
        """Generate greedily in a plain loop around the compiled step, without the overhead of HF `generate`."""
        return self._timed(ids, new, self._choosing(None))

    def sample(self, ids: Sequence[int], new: int, *, temperature: float, top_p: float, seed: int) -> Generation:
        """Generate in the same loop around a compiled step that samples."""
        import torch

        torch.manual_seed(seed)
        return self._timed(ids, new, self._choosing({"temperature": temperature, "top_p": top_p}))

    def _choosing(self, sampling: Mapping[str, Any] | None) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        """Return two functions, compiled once per `sampling`: logits to token, and a token to the next and logits."""
        import torch

        from .drawing import chooser

        key = json.dumps(sampling, sort_keys=True)
        if key not in self._compiled:
            choose = chooser(sampling)

            def step(token: Any) -> tuple[Any, Any]:
                logits = self._forward(token)
                return choose(logits), logits

            how: dict[str, Any] = {"mode": self._mode, "fullgraph": True, "dynamic": False}
            first = torch.compile(choose, **how) if sampling else choose
            self._compiled[key] = (first, torch.compile(step, **how))
        return self._compiled[key]

    def _timed(
        self, ids: Sequence[int], new: int, choosing: tuple[Callable[[Any], Any], Callable[[Any], Any]]
    ) -> Generation:
        import torch

        choose, step = choosing
        with torch.inference_mode():
            begin = time.perf_counter()
            token, _ = self._prompt(ids, choose)
            tokens = [int(token)]
            first = time.perf_counter()
            for _ in range(new - 1):
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                token, _ = step(token.clone())
                tokens.append(int(token))
            return Generation(tokens, first - begin, time.perf_counter() - first)

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return the new tokens and the `count` likeliest tokens of each step, by the compiled step's logits."""
        import torch

        choose, step = self._choosing(None)
        with torch.inference_mode():
            token, logits = self._prompt(ids, choose)
            tokens, tops = [int(token)], [logits[0].float().topk(count).indices.tolist()]
            for _ in range(new - 1):
                torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
                token, logits = step(token.clone())
                tokens.append(int(token))
                tops.append(logits[0].float().topk(count).indices.tolist())
        return tokens, tops

    def _prompt(self, ids: Sequence[int], choose: Callable[[Any], Any]) -> tuple[Any, Any]:
        import torch

        self._cache.reset()
        logits = self._forward(torch.tensor([ids], device=self._device))
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        # A clone, since the layout of the step's first input must not change from one call to the next.
        return choose(logits).clone(), logits


class Ours:
    """A lock, loaded as a user loads it; the times are taken here, not by the model."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        import torch

        import agentcompile

        torch.set_num_threads(request["threads"])
        self._model: Any = agentcompile.load(Path(request["lock"]), model=request["model"])
        self.facts = {
            "torch": torch.__version__,
            "agentcompile": agentcompile.__version__,
            "threads": request["threads"],
        }
        if request.get("device", "cpu") != "cpu":
            for length in request["prompts"]:
                self.generate([1] * length, 16)
            self.facts["memory_bytes"] = torch.cuda.max_memory_allocated()

    def generate(self, ids: Sequence[int], new: int) -> Generation:
        """Generate greedily through `stream`, whose first piece holds the first token and whose last ends it."""
        return self._timed(ids, new)

    def whole(self, ids: Sequence[int], new: int, **how: Any) -> list[int]:
        """Generate through the same stream without times, and return the new tokens."""
        pieces = self._model.stream(ids, max_new_tokens=new, ignore_eos=True, **how)
        return [token for piece in pieces for token in piece.tokens]

    def sample(self, ids: Sequence[int], new: int, *, temperature: float, top_p: float, seed: int) -> Generation:
        """Generate through the same stream with sampling."""
        return self._timed(ids, new, temperature=temperature, top_p=top_p, seed=seed)

    def _timed(self, ids: Sequence[int], new: int, **how: Any) -> Generation:
        tokens: list[int] = []
        begin = time.perf_counter()
        first = last = begin
        for piece in self._model.stream(ids, max_new_tokens=new, ignore_eos=True, **how):
            last = time.perf_counter()
            first = last if not tokens else first
            tokens += piece.tokens
        return Generation(tokens, first - begin, last - first)

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return greedy tokens and the `count` likeliest of each step, by teacher-forced logits of the decode step."""
        tokens = self.generate(ids, new).tokens
        forced = [*ids, *tokens[:-1]]
        # Only the new tokens' logits: those of a long prompt would set this process's peak memory.
        logits = self._model.logits(forced, range(len(ids) - 1, len(forced)))
        return tokens, logits.topk(count).indices.tolist()


def _static(mode: str, *, gpt_fast: bool = False) -> Callable[[Mapping[str, Any]], Engine]:
    def load(request: Mapping[str, Any]) -> Engine:
        from .static_decoder import Static

        return Static(request, mode, gpt_fast=gpt_fast)

    return load


ENGINES: Mapping[str, Callable[[Mapping[str, Any]], Engine]] = {
    "fp32": lambda request: Eager({**request, "dtype": "fp32"}),
    "hf-eager": Eager,
    "hf-compile": lambda request: Compiled(request, None),
    "hf-reduce-overhead": lambda request: Compiled(request, "reduce-overhead"),
    "max-autotune": lambda request: Compiled(request, "max-autotune"),
    "static-reduce-overhead": _static("reduce-overhead"),
    "static-max-autotune": _static("max-autotune"),
    "gpt-fast": _static("reduce-overhead", gpt_fast=True),
    "agentcompile": Ours,
}
"""The engine of each arm; `fp32` is the reference against which the other arms' tokens are checked."""


if __name__ == "__main__":
    serve(lambda request: ENGINES[request["arm"]](request))
