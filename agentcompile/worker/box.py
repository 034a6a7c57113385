"""The black box: a page shared by parent and worker that says, after a crash, which arm was running."""

from __future__ import annotations

import mmap
import os
import struct

_NOTE = struct.Struct("<q")
_LEFT = _NOTE.size
_TICKS = 2 * _NOTE.size
NOTHING = -1


class Box:
    """A shared page with the index of the arm that is running; it outlives the worker. A write costs no system call."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @classmethod
    def make(cls) -> Box:
        """Make a box in anonymous memory, whose descriptor a worker inherits."""
        fd = os.memfd_create("agentcompile-box", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        box = cls(fd)
        box.write(NOTHING)
        return box

    def write(self, arm: int) -> None:
        """Note that `arm` runs from now on."""
        _NOTE.pack_into(self._page, 0, arm)

    def read(self) -> int:
        """Return the arm that was noted last, or `NOTHING`; a kernel may have overwritten it with any number."""
        return int(_NOTE.unpack_from(self._page)[0])

    def tick(self) -> None:
        """Count one more finished part of the work, to show that the worker goes on."""
        _NOTE.pack_into(self._page, _TICKS, self.ticks + 1)

    @property
    def ticks(self) -> int:
        """The number of finished parts, over all requests."""
        return int(_NOTE.unpack_from(self._page, _TICKS)[0])

    def leave(self) -> None:
        """Note that the worker ends itself: a signal that it ends by was not sent by another process."""
        _NOTE.pack_into(self._page, _LEFT, 1)

    @property
    def left(self) -> bool:
        """Whether the worker ended itself."""
        return bool(_NOTE.unpack_from(self._page, _LEFT)[0])

    def close(self) -> None:
        """Unmap the page and close its descriptor."""
        self._page.close()
        os.close(self.fd)
