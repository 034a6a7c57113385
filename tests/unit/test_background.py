"""A stream in a thread: items come in order, errors come through, and a consumer that stops ends the thread."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Generator

import pytest

from agentcompile.runtime.background import in_thread


class Source:
    """Numbers without end, and whether whoever took them closed it, and in which thread."""

    def __init__(self) -> None:
        self.closed = threading.Event()
        self.threads: set[int] = set()

    def items(self) -> Generator[int, None, None]:
        try:
            for number in itertools.count():
                self.threads.add(threading.get_ident())
                yield number
        finally:
            self.closed.set()


def test_all_items_come_in_order_from_another_thread() -> None:
    threads = set[int]()

    def items() -> Generator[int, None, None]:
        for number in range(100):
            threads.add(threading.get_ident())
            yield number

    async def read() -> list[int]:
        return [number async for number in in_thread(items())]

    assert asyncio.run(read()) == list(range(100))
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_what_prepares_runs_in_the_thread_before_the_items() -> None:
    source, prepared = Source(), list[int]()

    async def read() -> int:
        items = in_thread(source.items(), lambda: prepared.append(threading.get_ident()))
        first = await anext(items)
        await items.aclose()
        return first

    assert asyncio.run(read()) == 0
    assert set(prepared) == source.threads


def test_an_error_of_the_source_is_raised_where_the_items_are_read() -> None:
    def items() -> Generator[int, None, None]:
        yield 1
        raise RuntimeError("broken")

    found: list[int] = []

    async def read() -> None:
        async for number in in_thread(items()):
            found.append(number)

    with pytest.raises(RuntimeError, match="broken"):
        asyncio.run(read())
    assert found == [1]


def test_a_consumer_that_closes_the_iterator_ends_the_source_before_that_returns() -> None:
    source = Source()

    async def read() -> bool:
        items = in_thread(source.items())
        assert await anext(items) == 0
        await items.aclose()
        return source.closed.is_set()

    assert asyncio.run(read())


def test_a_cancelled_task_ends_the_source() -> None:
    source = Source()

    async def consume(begun: asyncio.Event) -> None:
        async for _ in in_thread(source.items()):
            begun.set()

    async def read() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(consume(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(read())
    assert source.closed.wait(60)


def test_a_loop_that_ends_with_the_iterator_open_ends_the_source() -> None:
    source = Source()

    async def read() -> None:
        await anext(in_thread(source.items()))

    asyncio.run(read())
    assert source.closed.wait(60)
