"""Control of PyTorch's OpenMP threads, which are ended when our own thread pool is about to use the cores.

After a parallel region GNU's libgomp keeps its threads spinning, by default for milliseconds, so that the next region
starts quickly. Beside a pool pinned to the same cores they cost up to a tenth of a short generation.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from agentcompile.system.probe import others_running

_SOFT = 1


def dismiss_threads() -> None:
    """End this thread's idle OpenMP threads, if they are libgomp's; a parallel region makes new ones (some 100 µs)."""
    library = _libgomp()
    if library is not None:
        library.omp_pause_resource_all(_SOFT)


def team() -> tuple[int, int, int] | None:
    """Return the addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads; None without libgomp."""
    library = _libgomp()
    names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
    if library is None or not all(hasattr(library, name) for name in names):
        return None
    parallel, rank, size = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names)
    return parallel, rank, size


def one_thread() -> AbstractContextManager[None]:
    """Keep PyTorch's small operators on this thread: others that they wake spin beside our own pool."""
    return _threads(1)


def fair_threads() -> AbstractContextManager[None]:
    """Use as many of PyTorch's threads as there are cores that no other process wants now, at least one.

    At the end of every parallel operator all threads wait for the last; one that has lost its core delays them for
    milliseconds, and a prompt has hundreds of operators. The models tested gave the same bits with any number of
    threads.
    """
    count = torch.get_num_threads()
    cores = len(os.sched_getaffinity(0))
    return _threads(max(1, min(count, cores - others_running())) if count > 1 else count)


@contextmanager
def _threads(wanted: int) -> Iterator[None]:
    count = torch.get_num_threads()
    if wanted == count:
        yield
        return
    torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(count)


@functools.cache
def _libgomp() -> ctypes.CDLL | None:
    """Return the libgomp that this process has loaded; None without one, or when it is older than OpenMP 5.0."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
        mapped = [words[5] for line in maps.splitlines() if len(words := line.split(maxsplit=5)) == 6]
        path = next(path for path in mapped if Path(path).name.startswith("libgomp"))
        library = ctypes.CDLL(path, mode=os.RTLD_NOW | getattr(os, "RTLD_NOLOAD", 0))
        library.omp_pause_resource_all.argtypes = [ctypes.c_int]
    except (OSError, StopIteration, AttributeError):
        return None
    return library
