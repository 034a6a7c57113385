"""The llama.cpp arm through its C interface: no tokenizer, only decode and the largest logit, or its own samplers.

It runs in any interpreter with llama-cpp-python, gguf and numpy, and needs nothing of ours but its sibling modules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..models.gguf_file import write_gguf
from .channel import Generation, serve


class Llama:
    """A context with as many threads as the other arms, weights and head in bf16, KV cache in its default type."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        import llama_cpp

        gguf = Path(request["gguf"])
        if not gguf.exists():
            partial = gguf.with_suffix(".partial")
            write_gguf(Path(request["model"]), partial)
            partial.rename(gguf)
        self._c: Any = llama_cpp.llama_cpp
        self._c.llama_backend_init()
        self._model = self._c.llama_model_load_from_file(str(gguf).encode(), self._c.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"{gguf}: llama.cpp does not load it")
        params = self._c.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = request["context"]
        params.n_threads = params.n_threads_batch = request["threads"]
        self._context = self._c.llama_init_from_model(self._model, params)
        self._vocab = self._c.llama_vocab_n_tokens(self._c.llama_model_get_vocab(self._model))
        self.facts = {
            "llama_cpp_python": llama_cpp.__version__,
            "system": self._c.llama_print_system_info().decode(),
            "threads": request["threads"],
            "weights": "bf16",
        }

    def generate(self, ids: Sequence[int], new: int, **drawn: Any) -> Generation:
        """Decode the prompt as one batch, then a token at a time: the likeliest, or by llama.cpp's samplers."""
        if not drawn:
            return self._timed(ids, new, self._largest)
        c = self._c
        chain = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        try:
            for sampler in (
                c.llama_sampler_init_temp(drawn["temperature"]),
                c.llama_sampler_init_top_p(drawn["top_p"], 1),
                c.llama_sampler_init_dist(drawn["seed"]),
            ):
                c.llama_sampler_chain_add(chain, sampler)  # which then frees it
            return self._timed(ids, new, lambda: int(c.llama_sampler_sample(chain, self._context, -1)))
        finally:
            c.llama_sampler_free(chain)

    def _timed(self, ids: Sequence[int], new: int, choose: Callable[[], int]) -> Generation:
        begin = time.perf_counter()
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        self._decode(ids)
        tokens = [choose()]
        first = time.perf_counter()
        for _ in range(new - 1):
            self._decode(tokens[-1:])
            tokens.append(choose())
        return Generation(tokens, first - begin, time.perf_counter() - first)

    def tops(self, ids: Sequence[int], new: int, count: int) -> tuple[list[int], list[list[int]]]:
        """Return the greedy tokens and the `count` tokens with the largest logits of every step."""
        self._c.llama_memory_clear(self._c.llama_get_memory(self._context), True)
        tokens: list[int] = []
        tops: list[list[int]] = []
        for _ in range(new):
            self._decode(tokens[-1:] or ids)
            tokens.append(self._largest())
            tops.append([int(i) for i in (-self._logits()).argsort()[:count]])
        return tokens, tops

    def _decode(self, ids: Sequence[int]) -> None:
        array = (self._c.llama_token * len(ids))(*ids)
        if self._c.llama_decode(self._context, self._c.llama_batch_get_one(array, len(ids))):
            raise RuntimeError("llama_decode failed")

    def _logits(self) -> Any:
        """Return a view of the last token's logits [vocab]."""
        import numpy as np

        return np.ctypeslib.as_array(self._c.llama_get_logits_ith(self._context, -1), (self._vocab,))

    def _largest(self) -> int:
        return int(self._logits().argmax())


if __name__ == "__main__":
    serve(Llama)
