"""Compiled CPU kernels called from Python: libraries, bound launches, programs of them, and the decode loop.

In: paths of shared objects and addresses of buffers. Out: buffers written, nanoseconds, tokens. Everything between two
calls from Python runs in `executor.cpp` with the interpreter's lock released. The caller keeps every buffer alive and
its address fixed; nothing here copies or owns tensor data.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.runtime.elf import loaded_bytes
from agentcompile.runtime.sampling import Sampling

MAX_THREADS = 256
_ABI = 7
_STALE = "delete the file; it is built again when it is needed"
_LARGE = "let the kernel keep large arrays in workspaces, and not in variables of the file"
_MOST_LOADED = 1 << 28
"""Bytes of code and static data that a kernel's library may take. With room for more, loading one would use up the
memory that its process may have, and what comes after it would fail for a reason that names something else."""
_STOPPED: tuple[StopReason, ...] = ("limit", "stop", "context", "cancelled")

StopReason = Literal["limit", "stop", "context", "cancelled"]


class _CallStruct(ctypes.Structure):
    _fields_ = (("kernel", ctypes.c_void_p), ("args", ctypes.c_void_p))


class _DecodeStruct(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("ids", "token", "draw", "position", "stops")),
        ("stop_count", ctypes.c_int64),
        ("context", ctypes.c_int64),
        ("cancel", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("limit", ctypes.c_int64),
        ("made", ctypes.c_int64),
        ("reason", ctypes.c_int64),
    )


class _DrawStruct(ctypes.Structure):
    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("vocab", ctypes.c_int64),
        ("wide", ctypes.c_int64),
        ("temperature", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        ("top_p", ctypes.c_double),
        ("seed", ctypes.c_uint64),
        ("first", ctypes.c_int64),
        ("room", ctypes.c_void_p),
    )


class Library:
    """A loaded shared object of kernels; it stays loaded as long as the process, as launches hold raw addresses."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if (taken := loaded_bytes(path)) > _MOST_LOADED:
                most = f"at most {_MOST_LOADED / 1e9:.2f} GB are allowed"
                text = f"{path}: cannot be loaded: it takes {taken / 1e9:.1f} GB of memory, {most}"
                raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=_LARGE)
            self.handle = ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            text = f"{path}: cannot be loaded: {error}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=_STALE) from None

    def entry(self, name: str) -> int:
        """Return the address of function `name`.

        Raises:
            AgentCompileError: the library has no such function (environment).
        """
        address = self.find(name)
        if address is None:
            hint = 'a kernel defines each entry as `extern "C" void entry(const entry_args&, int, int)`'
            text = f"{self.path}: has no entry {name!r}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)
        return address

    def find(self, name: str) -> int | None:
        """Return the address of function `name`, or None."""
        try:
            function = getattr(self.handle, name)
        except AttributeError:
            return None
        return ctypes.cast(function, ctypes.c_void_p).value


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One bound launch: a kernel's address and the pointers of its argument struct in order (0 is null)."""

    address: int
    pointers: tuple[int, ...]

    @staticmethod
    def of(library: Library, entry: str, pointers: Sequence[int]) -> Call:
        """Bind the function `entry` of `library` to `pointers`."""
        return Call(address=library.entry(entry), pointers=tuple(pointers))


class Executor:
    """The process's pool of `threads` pinned threads; the calling thread is one of them while a program runs.

    Executors of equal `threads` share one pool, whose jobs exclude each other; pools of different sizes are
    independent. Calls are safe from any thread.
    """

    def __init__(self, library: Path, threads: int) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads = {threads} is not in 1..{MAX_THREADS}")
        self.threads = threads
        lib = Library(library).handle
        lib.ac_abi.restype = ctypes.c_int64
        if (abi := lib.ac_abi()) != _ABI:
            text = f"{library}: executor interface {abi}, expected {_ABI}"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=_STALE)
        lib.ac_pool.restype = ctypes.c_void_p
        lib.ac_pool.argtypes = [ctypes.c_int]
        long, pointer = ctypes.c_int64, ctypes.c_void_p
        lib.ac_run.argtypes = [pointer, pointer, long, long, pointer]
        lib.ac_time.argtypes = [pointer, pointer, long, long, long, pointer]
        lib.ac_decode_steps.argtypes = [pointer, pointer, long, pointer, pointer]
        lib.ac_product.restype = None
        lib.ac_product.argtypes = [pointer, pointer, pointer, pointer, pointer, long, long, long, long]
        self.product = lib.ac_product
        """A matrix product with a packed weight, on the caller's threads; see `packed.Packed`."""
        self._lib = lib
        self._pool = lib.ac_pool(threads)
        if not self._pool:
            raise MemoryError("no memory for a thread pool")

    def start(self) -> None:
        """Start the pool's threads, which otherwise begin with the first job."""
        nothing = ctypes.cast(self._lib.ac_abi, ctypes.c_void_p).value  # it returns a number, and does no more
        assert nothing is not None
        NativeProgram(self, [Call(address=nothing, pointers=())]).run()

    def run(self, calls: ctypes.Array[_CallStruct], repeat: int, spent: int = 0) -> None:
        """Run `calls` in order, `repeat` times; add their nanoseconds to int64s at address `spent`, unless it is 0."""
        self._check(self._lib.ac_run(self._pool, calls, len(calls), repeat, spent or None))

    def time(self, calls: ctypes.Array[_CallStruct], repeat: int, samples: int) -> list[int]:
        """Return the nanoseconds of each of `samples` intervals, each around `repeat` runs."""
        times = (ctypes.c_int64 * samples)()
        self._check(self._lib.ac_time(self._pool, calls, len(calls), repeat, samples, times))
        return list(times)

    def decode(self, calls: ctypes.Array[_CallStruct], state: _DecodeStruct, spent: int = 0) -> None:
        """Run decode steps until `state` says stop; `spent` is as in `run`."""
        self._check(self._lib.ac_decode_steps(self._pool, calls, len(calls), ctypes.byref(state), spent or None))

    def _check(self, error: int) -> None:
        if error:
            text = f"cannot start {self.threads} threads: {os.strerror(error)}"
            hint = "lower --threads or raise the limit on processes (ulimit -u)"
            raise AgentCompileError(text, exit_code=ExitCode.ENVIRONMENT, hint=hint)


class CallClock:
    """The nanoseconds that each call of a step has taken, with barriers and launch overhead, while the clock runs.

    Each step has one. It is stopped unless a step is profiled; while it runs, a call costs two readings of the time.
    """

    def __init__(self, count: int) -> None:
        self._spent = (ctypes.c_int64 * count)()
        self.running = False
        self.steps = 0  # the steps that were timed since it was started

    def start(self) -> None:
        """Start the clock at zero."""
        ctypes.memset(self._spent, 0, ctypes.sizeof(self._spent))
        self.running, self.steps = True, 0

    def stop(self) -> tuple[int, ...]:
        """Stop the clock and return the nanoseconds of every call, over all steps since the start."""
        self.running = False
        return tuple(self._spent)

    def add(self, at: int, ns: int) -> None:
        """Add the nanoseconds of call `at`, which was timed by something other than the executor."""
        self._spent[at] += ns

    def place(self, at: int = 0) -> int:
        """Return the address where the executor adds the times of calls from number `at` on; 0 while stopped."""
        return ctypes.addressof(self._spent) + at * ctypes.sizeof(ctypes.c_int64) if self.running else 0


def _bind(calls: Sequence[Call]) -> tuple[ctypes.Array[_CallStruct], list[object]]:
    if not calls:
        raise ValueError("a program needs at least one call")
    bound, keep = (_CallStruct * len(calls))(), list[object]()
    for slot, call in zip(bound, calls, strict=True):
        if not call.address:
            raise ValueError("a call with a null kernel address")
        pointers = (ctypes.c_void_p * max(len(call.pointers), 1))(*call.pointers)
        keep.append(pointers)
        slot.kernel, slot.args = call.address, ctypes.addressof(pointers)
    return bound, keep


class NativeProgram:
    """An ordered list of launches with a barrier after each."""

    def __init__(
        self, executor: Executor, calls: Sequence[Call], *, clock: CallClock | None = None, at: int = 0
    ) -> None:
        """Bind `calls` to `executor`; they are the calls number `at` and on of the `clock`.

        Raises:
            ValueError: there are no calls, or one has a null kernel address.
        """
        self._executor = executor
        self.calls, self._keep = _bind(calls)
        """The launches as C structures, which live as long as the program, and what they refer to."""
        self._clock, self._at = clock, at

    def run(self, repeat: int = 1) -> None:
        """Run the list `repeat` times."""
        self._executor.run(self.calls, repeat, self._clock.place(self._at) if self._clock else 0)

    def time(self, repeat: int, samples: int) -> list[int]:
        """Return `samples` intervals, in ns, each around `repeat` runs of the list.

        Raises:
            ValueError: `repeat` or `samples` is less than 1.
        """
        if repeat < 1 or samples < 1:
            raise ValueError(f"repeat = {repeat} and samples = {samples} must be at least 1")
        return self._executor.time(self.calls, repeat, samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedTokens:
    """The tokens of one `NativeDecoder.steps` call in order, and why it returned."""

    tokens: tuple[int, ...]
    reason: StopReason
    logprobs: tuple[float, ...] = ()
    """The natural-log probability of every token under the unfiltered distribution, when asked for."""


class NativeDecoder:
    """A decode loop that runs no Python between steps.

    A step runs the program, appends `*token`, or what is drawn from its logits, to the output, writes it to `*ids`
    (which may be the buffer of `*token`) and advances `*position`. It stops after a stop id (which is part of the
    output), at the last slot of the KV cache, when `cancel` is called from another thread, or after the number of steps
    asked for.
    """

    def __init__(
        self,
        executor: Executor,
        calls: Sequence[Call],
        *,
        ids: int,
        token: int,
        position: int,
        stop_ids: Sequence[int],
        context: int,
        logits: torch.Tensor | None = None,
        clock: CallClock | None = None,
    ) -> None:
        """Bind the launches and the decode state.

        `ids`, `token`, `position` are addresses of int64 scalars; `context` is the number of cache slots. Without
        `logits` [vocab], float32 or bfloat16, only greedy decoding is possible.
        """
        self._executor, self._clock = executor, clock
        self._calls, self._keep = _bind(calls)
        self._stops = (ctypes.c_int64 * max(len(stop_ids), 1))(*stop_ids)
        self._cancel = ctypes.c_int32(0)
        self._logits = logits
        self._draw = _DrawStruct()
        self._room: ctypes.Array[ctypes.c_char] | None = None
        self._lock = threading.Lock()
        self._state = _DecodeStruct(
            ids=ids,
            token=token,
            position=position,
            stops=ctypes.addressof(self._stops),
            stop_count=len(stop_ids),
            context=context,
            cancel=ctypes.addressof(self._cancel),
        )

    def begin(self, sampling: Sampling, *, first: int, logprobs: bool) -> bool:
        """Set the sampling for what follows; False for log-probabilities, and for draws where there are no logits."""
        if logprobs or (not sampling.greedy and self._logits is None):
            return False
        with self._lock:
            self._state.draw = None if sampling.greedy else self._drawing(sampling, first)
        return True

    def draw(self, logits: torch.Tensor, at: int, *, more: bool) -> DecodedTokens | None:
        """Return None: a prompt's last logits lie on the host, which chooses from them."""

    def steps(self, count: int, *, at: int = 0, more: bool = False) -> DecodedTokens:
        """Make up to `count` steps from the position in memory, whatever `at` and `more` say; none past the cache."""
        with self._lock:
            self._cancel.value = 0
            out = (ctypes.c_int64 * max(count, 1))()
            self._state.out, self._state.limit = ctypes.addressof(out), count
            self._executor.decode(self._calls, self._state, self._clock.place() if self._clock else 0)
            if self._clock:
                self._clock.steps += self._state.made
            return DecodedTokens(tokens=tuple(out[: self._state.made]), reason=_STOPPED[self._state.reason])

    def _drawing(self, sampling: Sampling, first: int) -> int:
        assert self._logits is not None
        self._room = self._room or ctypes.create_string_buffer(8 * self._logits.numel())
        self._draw = _DrawStruct(
            logits=self._logits.data_ptr(),
            vocab=self._logits.numel(),
            wide=self._logits.dtype == torch.float32,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed & (2**64 - 1),
            first=first,
            room=ctypes.addressof(self._room),
        )
        return ctypes.addressof(self._draw)

    def cancel(self) -> None:
        """Ask a running `steps` to return after its current step."""
        self._cancel.value = 1
