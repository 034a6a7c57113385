"""A sequence and a set that grow without being copied: a longer one shares the storage of the one it was made from."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class _Groups(Generic[T]):
    """Indices of the items of one list by key, with one table for each key function.

    A key function is called once for each item, by the first lookup that needs it.
    """

    __slots__ = ("_lock", "_tables")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[Callable[[T], Hashable], tuple[list[int], dict[Hashable, list[int]]]] = {}

    def places(self, items: list[T], by: Callable[[T], Hashable], key: Hashable) -> list[int]:
        """Return the indices of the items with a key, ascending."""
        with self._lock:
            done, table = self._tables.setdefault(by, ([0], {}))
            for at in range(done[0], len(items)):
                table.setdefault(by(items[at]), []).append(at)
                done[0] = at + 1
            return table.get(key, [])


class GrowingSequence(Sequence[T], Generic[T]):
    """An immutable sequence; `plus` takes constant time, and copies the items only when a longer one exists already."""

    __slots__ = ("_count", "_groups", "_items")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items = list(items)
        self._count = len(self._items)
        self._groups = _Groups[T]()

    def plus(self, item: T) -> GrowingSequence[T]:
        """Return a sequence of these items and one more."""
        longer: GrowingSequence[T] = GrowingSequence.__new__(GrowingSequence)
        if self._count == len(self._items):
            longer._items, longer._groups = self._items, self._groups
        else:  # a longer sequence exists already: the rest of the list belongs to it
            longer._items, longer._groups = self._items[: self._count], _Groups()
        longer._items.append(item)
        longer._count = self._count + 1
        return longer

    def of(self, by: Callable[[T], Hashable], key: Hashable) -> tuple[T, ...]:
        """Return the items for which `by` gives `key`, in order.

        It costs as much as the result is long, plus one call of `by` for each item that no earlier lookup saw. So pass
        the same `by` each time: a function of a module, not a new lambda.
        """
        places = self._groups.places(self._items, by, key)
        return tuple(self._items[at] for at in places[: bisect_left(places, self._count)])

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...

    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        if isinstance(at, slice):
            return tuple(self._items[i] for i in range(*at.indices(self._count)))
        return self._items[range(self._count)[at]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, (str, bytes)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"GrowingSequence({list(self)!r})"


class GrowingSet(Generic[K]):
    """An immutable set of keys; like `GrowingSequence`, a larger one shares the storage of the one it was made from."""

    __slots__ = ("_count", "_order")

    def __init__(self) -> None:
        self._order: dict[K, int] = {}
        self._count = 0

    def plus(self, key: K) -> GrowingSet[K]:
        """Return a set of these keys and `key`."""
        count, order = self._count, self._order
        if count != len(order):  # a larger set exists already: the rest of the table belongs to it
            if key in self:
                return self
            order = {k: at for k, at in order.items() if at < count}
        if order.setdefault(key, count) != count:
            return self
        larger: GrowingSet[K] = GrowingSet.__new__(GrowingSet)
        larger._order, larger._count = order, count + 1
        return larger

    def __contains__(self, key: K) -> bool:
        return self._order.get(key, self._count) < self._count

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GrowingSet) and len(self) == len(other) and all(key in other for key in self._keys())

    def __hash__(self) -> int:
        return hash(frozenset(self._keys()))

    def _keys(self) -> list[K]:
        return [key for key, at in self._order.items() if at < self._count]
