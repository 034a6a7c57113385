"""A stream in a thread of its own, as an asynchronous iterator: the event loop runs on while tokens are made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")


async def in_thread(items: Generator[T, None, None], prepare: Callable[[], object] | None = None) -> AsyncGenerator[T]:
    """Yield what `items` yields, from a thread that begins with `prepare` and runs while the consumer wants more.

    Where the consumer stops, by `aclose`, cancellation or the end of its loop, `items` is closed before its next item,
    and the thread has ended when `aclose` returns.

    Raises:
        BaseException: `items` raised it in the thread.
    """
    loop = asyncio.get_running_loop()
    made: asyncio.Queue[T | _Ended] = asyncio.Queue()
    left = threading.Event()
    thread = threading.Thread(target=_run, args=(items, prepare, left, loop, made), daemon=True)
    thread.start()
    end: _Ended | None = None
    try:
        while True:
            item = await made.get()
            if isinstance(item, _Ended):
                end = item
                break
            yield item
    finally:
        left.set()
        while end is None:
            item = await made.get()
            end = item if isinstance(item, _Ended) else None
    if end.error is not None:
        raise end.error


class _Ended:
    """The last item of the queue: the thread is done, with the error that ended it."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def _run(
    items: Generator[T, None, None],
    prepare: Callable[[], object] | None,
    left: threading.Event,
    loop: asyncio.AbstractEventLoop,
    made: asyncio.Queue[T | _Ended],
) -> None:
    end = _Ended(None)
    try:
        with closing(items):
            if prepare is not None:
                prepare()
            for item in items:
                if left.is_set():
                    break
                loop.call_soon_threadsafe(made.put_nowait, item)
    except BaseException as error:  # noqa: BLE001 - the consumer raises it where its caller sees it
        end = _Ended(error)
    try:
        loop.call_soon_threadsafe(made.put_nowait, end)
    except RuntimeError:  # the loop is closed, and nobody waits
        return
