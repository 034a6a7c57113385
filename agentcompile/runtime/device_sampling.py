"""Choosing the next token on a CUDA device: one launch behind the logits, so that graphs of many steps need no host.

The choice is that of `sampling.choose`: temperature, top-k, top-p, ties by ascending id, and the number of (seed,
counter). A draw's counter is the step's position less `first`, the position of the prompt's last token: the token that
its logits give is draw 0, as prefill makes it, and a step at position `first + n` makes draw n.

A score is a logit over the temperature, rounded to float32 as the reference rounds it, and its mass is an integer,
2^36 * exp(score - largest score). Sums of masses are exact. Of exp() a mass is off by a relative 2^-23 (float32 with
the roundings of difference, product and reduced argument carried along, and a polynomial good to 9e-9; 2^-23.6 was the
most that 3e7 random scores showed) and by 2^-37 (rounding to an integer; below exp(-26) it is 0). A ratio of sums, of
which errors that all masses share fall out, is therefore within `2^-23 + vocab * 2^-37` of the float64 reference's
cumulative probability, 1.2e-6 for 151936 logits; the second term is reached only where all of the vocabulary lies 24
and more below the largest score. A draw or a top-p closer than that to the edge between two tokens may fall to the
other one; everything else is the reference's choice.

What the reference leaves open: a NaN comes after -infinity, at temperature 0 too, and is chosen only when all are;
where the largest score is infinite, the logits that equal it share everything.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import torch

from agentcompile.ir.graph import DType
from agentcompile.ir.template import Launch, Source
from agentcompile.runtime.driver import Call, Module
from agentcompile.runtime.sampling import Sampling

MAX_VOCAB = 300_000
"""What fits a block's counters, and a cluster's shared memory in float32."""
_TEXTS = ("sample_keys.cuh", "sample.cu")
_FORMATS = {"bf16": (2, 8), "fp16": (2, 5), "fp32": (4, 8)}
"""Bytes and exponent bits of a logit."""
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_THREADS = 1024
_CLUSTER = 8
"""Blocks: the most that every device with clusters takes."""
_HISTOGRAM_BYTES = 2 * 256 * 32 * 4
_SETTINGS = struct.Struct("<QqQqfi")
"""`Settings` of sample.cu."""
_WHOLE = 1 << 63


def sampler_source(vocab: int, dtype: DType, arch: str, *, blocks: int = 0) -> Source:
    """The kernel for logits [vocab] of `dtype` (``bf16``, ``fp16``, ``fp32``) on `arch`; ``build.compile`` takes it.

    `blocks` is 1, or those of a cluster up to 8; 0 takes 8 on data-centre devices with clusters (compute capability 9
    and 10), whose shared memory holds the keys then, and 1 elsewhere. ValueError for a vocabulary that is empty or over
    `MAX_VOCAB`.
    """
    if not 0 < vocab <= MAX_VOCAB:
        raise ValueError(f"vocab = {vocab} is not in 1..{MAX_VOCAB}")
    blocks = blocks or (_CLUSTER if arch.removeprefix("sm_").rstrip("af")[:-1] in ("9", "10") else 1)
    head = f"{_logits(vocab, dtype)}constexpr int BLOCKS = {blocks}, THREADS = {_THREADS};\n"
    vectors = math.ceil(vocab * _FORMATS[dtype][0] / 16)
    shared = _HISTOGRAM_BYTES + (16 * math.ceil(vectors / blocks) if blocks > 1 else 0)
    launch = Launch(
        entry="sample",
        arguments=("logits", "position", "settings", "token", "logprobs"),
        grid=(str(blocks),),
        block=(str(_THREADS),),
        shared_bytes=str(shared),
        pdl=True,
    )
    here = Path(__file__).parent
    text = head + "".join((here / name).read_text(encoding="utf-8") for name in _TEXTS)
    flags = (f"--gpu-architecture={arch}",)
    return Source(language="cuda", text=text, launches=(launch,), workspaces=(), flags=flags)


def _logits(vocab: int, dtype: str) -> str:
    nbytes, exponent = _FORMATS[dtype]
    return f"constexpr int vocab = {vocab}, BYTES = {nbytes}, EXPONENT = {exponent};\n"


def packed(sampling: Sampling, *, first: int, slots: int = 0) -> bytes:
    """The settings as the kernel reads them; `slots` log-probabilities have room. A temperature below 1e-45 is 0."""
    top_p = math.ceil(sampling.top_p * _WHOLE)  # a power of two: the product is exact
    seed = sampling.seed & (1 << 64) - 1
    top_k = min(sampling.top_k, MAX_VOCAB)
    return _SETTINGS.pack(seed, first, top_p, slots, sampling.temperature, top_k)


class DeviceSampler:
    """The kernel bound to one step's tensors. The settings lie on the device: a captured launch serves any of them."""

    def __init__(
        self,
        source: Source,
        module: Module,
        *,
        logits: torch.Tensor,
        token: torch.Tensor,
        position: torch.Tensor,
        logprobs: torch.Tensor | None = None,
        overlap: bool = False,
    ) -> None:
        """Bind what `sampler_source` gave, compiled and loaded as `module`.

        `logits` is [vocab], contiguous and at a multiple of 16 bytes, `token` and `position` are int64 [1], `logprobs`
        float32, one for every position there may be. `overlap`: the kernel before takes part in programmatic dependent
        launch, on a device that has it. ValueError for logits that the source was not made for.
        """
        if not source.text.startswith(_logits(logits.numel(), _DTYPES[logits.dtype])):
            raise ValueError(f"the sampler was not made for {logits.numel()} logits of {logits.dtype}")
        if not logits.is_contiguous() or logits.data_ptr() % 16:
            raise ValueError("logits are not contiguous at a multiple of 16 bytes")
        self._settings = torch.zeros(_SETTINGS.size, dtype=torch.uint8, device=logits.device)
        self._slots = 0 if logprobs is None else logprobs.numel()
        self._bound = (logits, position, self._settings, token, logprobs)
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in self._bound]
        self._call = Call.of(module, source.launches[0], pointers, dependent=overlap)

    def set(self, sampling: Sampling, *, first: int, logprobs: bool = False) -> None:
        """Let launches behind this on the current stream choose so; draw 0 is made at position `first`.

        With `logprobs` each notes the natural-log probability of its token under the unfiltered distribution, at its
        position; it costs a pass over the logits. ValueError when no tensor was bound for them.
        """
        if logprobs and not self._slots:
            raise ValueError("no tensor was bound for log-probabilities")
        data = bytearray(packed(sampling, first=first, slots=self._slots if logprobs else 0))
        # PyTorch keeps pinned memory from reuse until the copy is through.
        self._settings.copy_(torch.frombuffer(data, dtype=torch.uint8).pin_memory(), non_blocking=True)

    def enqueue(self, stream: int | None = None) -> None:
        """Put one choice on the stream of that handle, or on the current one; captures as any launch."""
        self._call.run(torch.cuda.current_stream().cuda_stream if stream is None else stream)
