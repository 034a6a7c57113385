"""The vLLM arm: its offline engine with one sequence in bf16, without prefix caching, run one step at a time.

It runs in any interpreter with vLLM (0.9 or later), and needs nothing of ours but its sibling modules. It calls the
engine's `step` as `LLM.generate` does, so that it can read the clock when the first token is there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .channel import Generation, serve

_CACHE_BYTES, _ROOM_BYTES = 1 << 30, 6 << 30
"""Memory for its KV cache (a sequence of 4,608 tokens of Qwen3-4B takes 0.7 GB), and for compiling and capturing.

vLLM's own default is nine tenths of the GPU, which other arms share.
"""
_MOST = 0.9


class Vllm:
    """An engine with the checkpoint's weights that maps token ids to token ids."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        import torch
        import vllm
        from vllm.sampling_params import RequestOutputKind

        total = torch.cuda.get_device_properties(request["device"]).total_memory
        share = min(_MOST, (request["weight_bytes"] + _CACHE_BYTES + _ROOM_BYTES) / total)
        sampling = request.get("sampling") or {}
        self._made = 0
        self._params: Any = vllm.SamplingParams
        self._delta: Any = RequestOutputKind.DELTA
        self._engine: Any = vllm.LLM(
            model=request["model"],
            skip_tokenizer_init=True,
            dtype="bfloat16",
            max_model_len=request["context"],
            max_num_seqs=1,
            enable_prefix_caching=False,
            gpu_memory_utilization=share,
            seed=sampling.get("seed", 0),
        ).llm_engine
        self.facts = {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "cache_tokens": request["context"],
            "gpu_memory_utilization": round(share, 3),
        }
        for length in request["prompts"]:
            self.generate([1] * length, 8)
            if sampling:
                self.generate([1] * length, 8, **sampling)

    def generate(self, ids: Sequence[int], new: int, **drawn: Any) -> Generation:
        """Generate with one request, which samples with the engine's generator where settings are `drawn`.

        The seed is not used here but when the engine loads: a request with a seed would leave the sampler's fast path.

        Raises:
            RuntimeError: the engine made another number of tokens.
        """
        how = {"temperature": drawn["temperature"], "top_p": drawn["top_p"]} if drawn else {"temperature": 0.0}
        tokens: list[int] = []
        begin = first = last = time.perf_counter()
        for output in self._steps(ids, new, **how):
            last = time.perf_counter()
            first = last if not tokens else first
            tokens += output.token_ids
        if len(tokens) != new:
            raise RuntimeError(f"vLLM made {len(tokens)} tokens, {new} were asked for")
        return Generation(tokens, first - begin, last - first)

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return the greedy tokens and the `count` likeliest tokens of each step, by the engine's log-probabilities."""
        tokens: list[int] = []
        tops: list[list[int]] = []
        for output in self._steps(ids, new, temperature=0.0, logprobs=count):
            tokens += output.token_ids
            for likely in output.logprobs:
                tops.append(sorted(likely, key=lambda token: -likely[token].logprob)[:count])
        return tokens, tops

    def _steps(self, ids: Sequence[int], new: int, **how: Any) -> Iterator[Any]:
        self._made += 1
        params = self._params(max_tokens=new, ignore_eos=True, detokenize=False, output_kind=self._delta, **how)
        self._engine.add_request(str(self._made), {"prompt_token_ids": list(ids)}, params)
        while self._engine.has_unfinished_requests():
            for made in self._engine.step():
                if made.outputs[0].token_ids:
                    yield made.outputs[0]


if __name__ == "__main__":
    serve(Vllm)
