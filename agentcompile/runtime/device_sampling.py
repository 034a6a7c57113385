"""Choice of the next tokens on a CUDA device: one launch behind the logits, so that graphs of many steps need no host.

A step has a row of logits for every sequence that it holds. A row has its own settings, position and results, and its
choice is the same whatever the other rows are.

The choice is that of `sampling.choose`: temperature, top-k, top-p, ties by ascending id, and the random number of
(seed, counter). A draw's counter is the step's position less `first`, the position of the prompt's last token: the
token chosen from that token's logits, in prefill, is draw 0, and a step at position `first + n` makes draw n.

A score is a logit over the temperature, rounded to float32 as the reference rounds it. Its mass, the unnormalised
probability, is an integer, 2^36 * exp(score - largest score), so that sums of masses are exact. A mass differs from the
exact exp() by a relative 2^-23 (float32 with the roundings of difference, product and reduced argument carried along,
and a polynomial good to 9e-9; 2^-23.6 was the largest error over 3e7 random scores) and by 2^-37 (rounding to an
integer; below exp(-26) it is 0). A ratio of sums, in which errors common to all masses cancel, is therefore within
`2^-23 + vocab * 2^-37` of the float64 reference's cumulative probability, 1.2e-6 for 151936 logits; the second term is
reached only where the whole vocabulary lies 24 or more below the largest score. A draw or a top-p closer than that to
the edge between two tokens may select the other one; every other choice is the reference's.

Cases that the reference leaves open: a NaN comes after -infinity, at temperature 0 too, and is chosen only when all are
NaN; where the largest score is infinite, the logits that equal it share all the probability.
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
"""The largest vocabulary that fits a block's counters, and a cluster's shared memory in float32."""
MAX_ROWS = 65_535
"""The largest second extent of a grid."""
_TEXTS = ("sample_keys.cuh", "sample.cu")
_FORMATS = {"bf16": (2, 8), "fp16": (2, 5), "fp32": (4, 8)}  # bytes and exponent bits of a logit, by type
_DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_THREADS = 1024
_CLUSTER = 8  # blocks of a cluster: the most that every device with clusters allows
_HISTOGRAM_BYTES = 2 * 256 * 32 * 4
_SETTINGS = struct.Struct("<QqQqfi")  # the layout of the structure `Settings` in sample.cu
_WHOLE = 1 << 63


def sampler_source(vocab: int, dtype: DType, arch: str, *, blocks: int = 0, rows: int = 1) -> Source:
    """Return the kernel for logits [rows, vocab] of `dtype` on `arch`, ready for ``build.compile``.

    `dtype` is ``bf16``, ``fp16`` or ``fp32``. `blocks`, the thread blocks per row, is 1 or a cluster's size up to 8; 0
    takes 8 on data-centre devices with clusters (compute capability 9 and 10), whose shared memory then holds the keys,
    and 1 elsewhere.

    Raises:
        ValueError: the vocabulary is empty or over `MAX_VOCAB`, or `rows` is not in 1..`MAX_ROWS`.
    """
    if not 0 < vocab <= MAX_VOCAB:
        raise ValueError(f"vocab = {vocab} is not in 1..{MAX_VOCAB}")
    if not 0 < rows <= MAX_ROWS:
        raise ValueError(f"rows = {rows} is not in 1..{MAX_ROWS}")
    blocks = blocks or (_CLUSTER if arch.removeprefix("sm_").rstrip("af")[:-1] in ("9", "10") else 1)
    head = f"{_logits(rows, vocab, dtype)}constexpr int BLOCKS = {blocks}, THREADS = {_THREADS};\n"
    vectors = math.ceil(vocab * _FORMATS[dtype][0] / 16)
    shared = _HISTOGRAM_BYTES + (16 * math.ceil(vectors / blocks) if blocks > 1 else 0)
    launch = Launch(
        entry="sample",
        arguments=("logits", "position", "settings", "token", "logprobs"),
        grid=(str(blocks), str(rows)) if rows > 1 else (str(blocks),),
        block=(str(_THREADS),),
        shared_bytes=str(shared),
        pdl=True,
    )
    here = Path(__file__).parent
    text = head + "".join((here / name).read_text(encoding="utf-8") for name in _TEXTS)
    flags = (f"--gpu-architecture={arch}",)
    return Source(language="cuda", text=text, launches=(launch,), workspaces=(), flags=flags)


def _logits(rows: int, vocab: int, dtype: str) -> str:
    nbytes, exponent = _FORMATS[dtype]
    return f"constexpr int ROWS = {rows}, vocab = {vocab}, BYTES = {nbytes}, EXPONENT = {exponent};\n"


def packed(sampling: Sampling, *, first: int, slots: int = 0) -> bytes:
    """Pack the settings as the kernel reads them, with room for `slots` log-probabilities; below 1e-45 it is greedy."""
    top_p = math.ceil(sampling.top_p * _WHOLE)  # a power of two: the product is exact
    seed = sampling.seed & (1 << 64) - 1
    top_k = min(sampling.top_k, MAX_VOCAB)
    return _SETTINGS.pack(seed, first, top_p, slots, sampling.temperature, top_k)


class DeviceSampler:
    """The sampling kernel bound to one step's tensors; its settings lie on the device: a captured launch serves any."""

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
        rows: int = 1,
    ) -> None:
        """Bind what `sampler_source` returned for as many `rows`, compiled and loaded as `module`.

        `logits` is [rows, vocab], contiguous and at a multiple of 16 bytes; `token` and `position` are int64 [rows],
        contiguous; `logprobs` is float32 with one entry for every possible position of each row. With one row, every
        tensor may lack its first extent. `overlap`: the preceding kernel takes part in programmatic dependent launch,
        on a device that has it.

        Raises:
            ValueError: the source was not made for tensors of these shapes, types or alignments.
        """
        vocab, uneven = divmod(logits.numel(), rows)
        if uneven or not source.text.startswith(_logits(rows, vocab, _DTYPES[logits.dtype])):
            raise ValueError(f"the sampler was not made for {rows} x {vocab} logits of {logits.dtype}")
        if not logits.is_contiguous() or logits.data_ptr() % 16:
            raise ValueError("logits are not contiguous at a multiple of 16 bytes")
        for name, tensor in (("token", token), ("position", position)):
            if tensor.numel() != rows or not tensor.is_contiguous():
                raise ValueError(f"{name} is {list(tensor.shape)}, for {rows} rows")
        if logprobs is not None and (logprobs.numel() % rows or not logprobs.is_contiguous()):
            raise ValueError(f"logprobs is {list(logprobs.shape)}, for {rows} rows")
        self.rows = rows
        self._settings = torch.zeros(rows, _SETTINGS.size, dtype=torch.uint8, device=logits.device)
        self._slots = 0 if logprobs is None else logprobs.numel() // rows
        self._bound = (logits, position, self._settings, token, logprobs)
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in self._bound]
        self._call = Call.of(module, source.launches[0], pointers, dependent=overlap)

    def set(self, sampling: Sampling, *, first: int, logprobs: bool = False, row: int = 0) -> None:
        """Set the sampling of `row` for later launches on the current stream; draw 0 is made at position `first`.

        Rows that were never set take the largest logit. With `logprobs` each launch notes the natural-log probability
        of the token under the unfiltered distribution, at its position; this costs a pass over the logits.

        Raises:
            ValueError: `logprobs` is asked for and no tensor was bound for them.
            IndexError: there is no such row.
        """
        if logprobs and not self._slots:
            raise ValueError("no tensor was bound for log-probabilities")
        if not 0 <= row < self.rows:
            raise IndexError(f"row {row} of {self.rows}")
        data = bytearray(packed(sampling, first=first, slots=self._slots if logprobs else 0))
        # PyTorch keeps pinned memory from reuse until the copy is through.
        self._settings[row].copy_(torch.frombuffer(data, dtype=torch.uint8).pin_memory(), non_blocking=True)

    def enqueue(self, stream: int | None = None) -> None:
        """Launch one choice on the stream with that handle, or on the current one; it can be captured in a graph."""
        self._call.run(torch.cuda.current_stream().cuda_stream if stream is None else stream)
