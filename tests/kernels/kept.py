"""What compilers make of a text, remembered as `tests/cxx/g++` does: for all processes of a run of the tests, and for
the next run. A name says all that a result depends on, the compiler's version too; no verdict of a test is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from agentcompile.build import nvrtc
from agentcompile.build.nvrtc import NVRTC_FLAGS, Cubin, compile_cubin, nvrtc_version
from agentcompile.ir.codec import decode, encode
from agentcompile.ir.digest import canonical, digest, digest_bytes
from agentcompile.ir.resources import Resources
from agentcompile.ir.template import Source
from agentcompile.ir.trial import BuildFailed


def kept(name: str, make: Callable[[], bytes]) -> Path | bytes:
    """A file with the bytes of this name, made if nobody has yet; or the bytes, where nothing is kept."""
    folder = os.environ.get("CXX_KEPT")
    if not folder:
        return make()
    path = Path(folder) / name
    if not path.exists():
        begun = path.with_name(f"{name}.{os.getpid()}")
        begun.write_bytes(make())
        begun.replace(path)
    return path


def remembered(name: str, make: Callable[[], bytes]) -> bytes:
    """The bytes of this name, made if nobody has yet; each time, where nothing is kept."""
    found = kept(name, make)
    return found.read_bytes() if isinstance(found, Path) else found


class _NotBuilt(Exception):
    """What the compiler said is not kept: it is asked again."""

    def __init__(self, failed: BuildFailed) -> None:
        super().__init__(failed.log)
        self.failed = failed


def cubin(source: Source) -> Cubin | BuildFailed:
    """`compile_cubin`, once for a text that compiles."""
    reader = digest_bytes("file/1", Path(nvrtc.__file__).read_bytes())
    name = digest("cubin/1", source.text, [*NVRTC_FLAGS, *source.flags], list(nvrtc_version()), reader)

    def make() -> bytes:
        built = compile_cubin(source.text, source.flags)
        if isinstance(built, BuildFailed):
            raise _NotBuilt(built)
        return canonical([encode(one) for one in built.resources]) + b"\n" + built.image

    try:
        resources, _, image = remembered(name, make).partition(b"\n")
    except _NotBuilt as error:
        return error.failed
    return Cubin(image=image, resources=tuple(decode(Resources, one) for one in json.loads(resources)))
