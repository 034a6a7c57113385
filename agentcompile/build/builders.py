"""The builders, by language. They run in workers and may be killed at any time without leaving partial results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from agentcompile.build.binary import Binary, binary_key
from agentcompile.build.cxx import run_cxx
from agentcompile.build.fenced import compile_apart
from agentcompile.build.nvrtc import NVRTC_FLAGS, Cubin, compile_cubin, nvrtc_toolchain
from agentcompile.build.prelude import prelude_flags
from agentcompile.build.stateless import refusal, state_of_cubin
from agentcompile.build.toolchain import COMPILE_FLAGS, KERNEL_LINK_FLAGS, LINK_FLAGS, Toolchain
from agentcompile.build.triton import TRITON_FLAGS, compile_images, images_in, triton_programs, triton_version
from agentcompile.errors import AgentCompileError, ExitCode
from agentcompile.ir.codec import CodecError, decode, encode
from agentcompile.ir.digest import canonical, digest_bytes
from agentcompile.ir.resources import Resources
from agentcompile.ir.template import Language, Source
from agentcompile.ir.trial import BuildFailed, Disturbed, TimedOut
from agentcompile.system.cubins import pack
from agentcompile.system.store import Store

_RESOURCES = ".resources.json"
"""Ending of the file with the assembler's report, beside the binary."""
_RUNTIME = Path(__file__).resolve().parent.parent / "runtime"


_Built = Binary | BuildFailed | TimedOut | Disturbed
Builder = Callable[[Source, Store, Toolchain, float, bool], _Built]
"""A function of a source, where to keep its binary, the compiler, its limit in seconds, and whether it is fenced."""


def compile(source: Source, store: Store, *, toolchain: Toolchain, limit_s: float, fenced: bool = False) -> _Built:
    """Compile `source` with its own flags, or find the binary of an earlier run in `store`.

    What compiles a `fenced` source can neither write to the store nor read more than its toolchain and scratch.

    Raises:
        AgentCompileError: the store cannot be written, or the compiler cannot be started or confined (environment).
        KeyError: no builder serves the language.
    """
    return BUILDERS[source.language](source, store, toolchain, limit_s, fenced)


def compile_executor(
    store: Store, *, toolchain: Toolchain, flags: tuple[str, ...] = (), limit_s: float = 120.0
) -> Path:
    """Compile the executor of launch lists, once for each toolchain and `flags` (the instruction sets that it may use).

    Raises:
        AgentCompileError: the compiler cannot compile it, and so cannot compile kernels either (environment).
    """
    names = ("draw.h", "products.h", "ranks.h", "executor.cpp")
    text = "".join((_RUNTIME / name).read_text(encoding="utf-8") for name in names)
    flags = (*COMPILE_FLAGS, *flags)
    key = binary_key(digest_bytes("executor/1", text.encode()), toolchain.name, (*flags, *LINK_FLAGS))
    built = store.get(key, ".so") or run_cxx(
        text, key, toolchain, (*flags, "-pthread"), limit_s, store, stateless=False
    )
    if isinstance(built, Path):
        return built
    match built:
        case BuildFailed():
            why = built.log
        case TimedOut():
            why = f"it took longer than {limit_s:g} s"
        case Disturbed():
            why = built.detail
    hint = "a compiler with C++20 is needed: g++ 11 or clang++ 14, or newer"
    raise AgentCompileError(
        f"{toolchain.name} cannot compile the executor: {why}", exit_code=ExitCode.ENVIRONMENT, hint=hint
    )


def _compile_cpp(source: Source, store: Store, toolchain: Toolchain, limit_s: float, fenced: bool) -> _Built:
    flags = (*COMPILE_FLAGS, *source.flags)
    link = LINK_FLAGS if toolchain.keeps_state else KERNEL_LINK_FLAGS
    key = binary_key(source.digest, toolchain.name, (*flags, *link, *_kept(toolchain)))
    built: Path | BuildFailed | TimedOut | Disturbed | None = store.get(key, ".so")
    if built is None:
        # Parsed headers lie in the store, which a fenced compiler does not see.
        parsed = () if fenced else prelude_flags(source.text, toolchain, flags, limit_s, store)
        stateless = not toolchain.keeps_state
        built = run_cxx(
            source.text, key, toolchain, (*flags, *parsed), limit_s, store, fenced=fenced, stateless=stateless
        )
    return _binary(built)


def _kept(toolchain: Toolchain) -> tuple[str, ...]:
    """Return what parts the binaries of a toolchain that lets kernels keep state from those of others."""
    return ("keeps-state",) if toolchain.keeps_state else ()


def _compile_cuda(source: Source, store: Store, toolchain: Toolchain, limit_s: float, fenced: bool) -> _Built:
    key = binary_key(source.digest, nvrtc_toolchain().name, (*NVRTC_FLAGS, *source.flags, *_kept(toolchain)))
    built: Path | BuildFailed | None = store.get(key, ".cubin")
    if built is None:
        if fenced:
            kept = compile_apart(_cubin_files, source, store, limit_s)
            if not isinstance(kept, tuple):
                return kept
            made: Cubin | BuildFailed = Cubin(
                image=kept[0], resources=decode(tuple[Resources, ...], json.loads(kept[1]))
            )
        else:
            made = compile_cubin(source.text, source.flags)
        if isinstance(made, BuildFailed):
            return made
        if not toolchain.keeps_state and (why := _state(made.image, source.text)):
            return BuildFailed(log=why)
        store.write(key, canonical([encode(one) for one in made.resources]), _RESOURCES)
        built = store.write(key, made.image, ".cubin")
    return _binary(built)


def _state(image: bytes, text: str) -> str:
    """Return why a program for a GPU is refused; empty when it keeps no state, and for PTX, which the driver reads."""
    try:
        return refusal(state_of_cubin(image, text)) if image.startswith(b"\x7fELF") else ""
    except ValueError as error:
        return f"NVRTC made no cubin: {error}"


def resources_of(source: Source, store: Store, toolchain: str) -> tuple[Resources, ...]:
    """Return what the assembler reported of each entry of a CUDA source when `store` got its binary.

    The result is empty for other languages, and where no report is kept. `toolchain` is the name that a target holds.
    """
    return resources_at(source.digest, source.flags, store, toolchain) if source.language == "cuda" else ()


def resources_at(source: str, flags: tuple[str, ...], store: Store, toolchain: str) -> tuple[Resources, ...]:
    """Return the same as `resources_of`, for the digest of a source that was built with these flags of its own."""
    kept = store.get(binary_key(source, toolchain, (*NVRTC_FLAGS, *flags)), _RESOURCES)
    try:
        return decode(tuple[Resources, ...], json.loads(kept.read_bytes())) if kept is not None else ()
    except (OSError, ValueError, CodecError):  # pruned meanwhile, or damaged: it is only told to advisers
        return ()


def _cubin_files(source: Source, folder: Path) -> tuple[bytes, bytes] | BuildFailed:
    made = compile_cubin(source.text, source.flags)
    return made if isinstance(made, BuildFailed) else (made.image, canonical([encode(one) for one in made.resources]))


def _image_files(source: Source, folder: Path) -> tuple[bytes, bytes] | BuildFailed:
    made = images_in(source, folder)
    return made if isinstance(made, BuildFailed) else (pack(made), b"")


def _compile_triton(source: Source, store: Store, toolchain: Toolchain, limit_s: float, fenced: bool) -> _Built:
    key = binary_key(source.digest, f"triton {triton_version()}", (*TRITON_FLAGS, *source.flags))
    built: Path | BuildFailed | None = store.get(key, ".cubins")
    if built is None:
        if fenced:
            kept = compile_apart(_image_files, source, store, limit_s, programs=triton_programs())
            if not isinstance(kept, tuple):
                return kept
            packed = kept[0]
        else:
            made = compile_images(source, store)
            if isinstance(made, BuildFailed):
                return made
            packed = pack(made)
        built = store.write(key, packed, ".cubins")
    return _binary(built)


def _binary(built: Path | BuildFailed | TimedOut | Disturbed) -> _Built:
    if not isinstance(built, Path):
        return built
    return Binary(digest=digest_bytes("file/1", built.read_bytes()), path=str(built))


BUILDERS: dict[Language, Builder] = {
    "cpp": _compile_cpp,
    "cuda": _compile_cuda,
    "triton": _compile_triton,
    "library": lambda source, *_: Binary(digest=source.digest),
}
