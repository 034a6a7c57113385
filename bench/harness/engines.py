"""The arms that run in our own interpreter: PyTorch eager, PyTorch compiled, and agentcompile.

It runs as `python -m agentcompile.bench.harness.engines`; the first request names the arm, the checkpoint and the
threads. PyTorch's arms get a KV cache that is just long enough, which favours them, as they attend to all of it.
"""

from __future__ import annotations

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

    def generate(self, ids: Sequence[int], new: int, **drawn: Any) -> Generation:
        """Call `generate` once; a streamer, called with the prompt and then with every token, takes the times."""
        how, stamps = self._choosing(drawn), _Stamps()
        begin = time.perf_counter()
        out = self._call(ids, new, streamer=stamps, **how)
        first = stamps.seen[1]
        return Generation(out[0, len(ids) :].tolist(), first - begin, stamps.seen[-1] - first)

    def whole(self, ids: Sequence[int], new: int, **drawn: Any) -> list[int]:
        """Make the same call without a streamer, and return the new tokens."""
        return self._call(ids, new, **self._choosing(drawn))[0, len(ids) :].tolist()  # type: ignore[no-any-return]

    def _choosing(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        import torch

        if not drawn:
            return {"do_sample": False}
        torch.manual_seed(drawn["seed"])
        return {"do_sample": True, "temperature": drawn["temperature"], "top_p": drawn["top_p"], "top_k": 0}

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

    def generate(self, ids: Sequence[int], new: int, **drawn: Any) -> Generation:
        """Generate through `stream`, whose first piece holds the first token and whose last ends it."""
        tokens: list[int] = []
        begin = first = last = time.perf_counter()
        for piece in self._model.stream(ids, max_new_tokens=new, ignore_eos=True, **drawn):
            last = time.perf_counter()
            first = last if not tokens else first
            tokens += piece.tokens
        return Generation(tokens, first - begin, last - first)

    def whole(self, ids: Sequence[int], new: int, **drawn: Any) -> list[int]:
        """Generate through the same stream without times, and return the new tokens."""
        pieces = self._model.stream(ids, max_new_tokens=new, ignore_eos=True, **drawn)
        return [token for piece in pieces for token in piece.tokens]

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return greedy tokens and the `count` likeliest of each step, by teacher-forced logits of the decode step."""
        tokens = self.generate(ids, new).tokens
        forced = [*ids, *tokens[:-1]]
        # Only the new tokens' logits: those of a long prompt would set this process's peak memory.
        logits = self._model.logits(forced, range(len(ids) - 1, len(forced)))
        return tokens, logits.topk(count).indices.tolist()


def _compiled(arm: str, mode: str | None, **how: bool) -> Callable[[Mapping[str, Any]], Engine]:
    def load(request: Mapping[str, Any]) -> Engine:
        from . import static_decoder

        engine: Engine = getattr(static_decoder, arm)(request, mode, **how)
        return engine

    return load


ENGINES: Mapping[str, Callable[[Mapping[str, Any]], Engine]] = {
    "fp32": lambda request: Eager({**request, "dtype": "fp32"}),
    "hf-eager": Eager,
    "hf-compile": _compiled("Compiled", None),
    "hf-reduce-overhead": _compiled("Compiled", "reduce-overhead"),
    "max-autotune": _compiled("Compiled", "max-autotune"),
    "static-reduce-overhead": _compiled("Static", "reduce-overhead"),
    "static-max-autotune": _compiled("Static", "max-autotune"),
    "gpt-fast": _compiled("Static", "reduce-overhead", gpt_fast=True),
    "agentcompile": Ours,
}
"""The engine of each arm; `fp32` is the reference against which the other arms' tokens are checked."""


if __name__ == "__main__":
    serve(lambda request: ENGINES[request["arm"]](request))
