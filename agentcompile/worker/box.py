"""The black box: a page shared by parent and worker that says, after a crash, what was running."""

from __future__ import annotations

import mmap
import os
import struct

_NOTE = struct.Struct("<q")
_LEFT = _NOTE.size
_TICKS = 2 * _NOTE.size
NOTHING = -1


class Box:
    """Holds the index of the arm that is running; outlives the worker. Writing it costs no system call."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def make(cls) -> Box:
        """A new box in anonymous memory, whose descriptor a worker inherits."""
        fd = os.memfd_create("agentcompile-box", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        box = cls(fd)
        box.write(NOTHING)
        return box

    def write(self, arm: int) -> None:
        """Note that `arm` runs from now on."""
        _NOTE.pack_into(self._page, 0, arm)

    def read(self) -> int:
        """The arm that was noted last, or `NOTHING`; a kernel may have overwritten it with any number."""
        return int(_NOTE.unpack_from(self._page)[0])

    def tick(self) -> None:
        """Note that work goes on: a part of it is done."""
        _NOTE.pack_into(self._page, _TICKS, self.ticks + 1)

    @property
    def ticks(self) -> int:
        """How many parts are done, of whatever was asked."""
        return int(_NOTE.unpack_from(self._page, _TICKS)[0])

    def leave(self) -> None:
        """Note that the worker ends itself: whatever signal it ends by, nobody else sent it."""
        _NOTE.pack_into(self._page, _LEFT, 1)

    @property
    def left(self) -> bool:
        """Whether the worker ended itself."""
        return bool(_NOTE.unpack_from(self._page, _LEFT)[0])

    def close(self) -> None:
        """Unmap and close."""
        self._page.close()
        os.close(self.fd)
