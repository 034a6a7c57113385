"""Whether two shared objects or cubins are the same program: a digest of all that is loaded.

Two texts with one digest are equivalent by construction: every instruction, constant, relocation and imported name is
the same; names of local symbols are left out. ELF (System V ABI, 64 bits, little endian) is read as far as that needs.
A cubin keeps every constant of the text, with its address in constant bank 4; where no instruction may read that bank,
they are left out.
"""

from __future__ import annotations

import struct

from agentcompile.ir.digest import digest_bytes

_MAGIC = b"\x7fELF\x02\x01"
_ALLOCATED, _NO_BITS = 0x2, 8
_CUDA = 190
"""Machine number of a cubin. Its sections are not marked as loaded, but for the code."""
_GLOBALS = (b".nv.global", b".nv.constant4", b".rela.nv.constant4")
"""Variables of the whole program, what they start as, and their addresses."""
_LEFT_OUT = (".symtab", ".strtab", ".shstrtab", ".comment", ".note", ".debug", ".nv.info.debug", ".nv_debug")


def code_digest(image: bytes) -> str:
    """The digest of a shared object's loaded sections or of a cubin's; that of the bytes for anything else."""
    if not image.startswith(_MAGIC):
        return digest_bytes("image/1", image)
    machine = struct.unpack_from("<H", image, 18)[0]
    at, size, count, names = _table(image)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, at + i * size) for i in range(count)]
    strings = headers[names][4]
    parts, globals_read = [], machine != _CUDA
    for name, kind, flags, _, offset, length, *_ in headers:
        begin = strings + name
        label = image[begin : image.index(b"\0", begin)].decode()
        kept = machine == _CUDA or flags & _ALLOCATED
        if kept and kind != _NO_BITS and length and not label.startswith(_LEFT_OUT):
            body = image[offset : offset + length]
            parts.append(label.encode() + b"\0" + body)
            globals_read = globals_read or (label.startswith(".text") and _reads_globals(body))
        elif kept and kind == _NO_BITS:
            parts.append(f"{label} {length}".encode())
    left = parts if globals_read else [part for part in parts if not part.startswith(_GLOBALS)]
    return digest_bytes("code/1", b"\1".join(left))


def _table(image: bytes) -> tuple[int, int, int, int]:
    """Offset, entry size, count and index of the names of the section table."""
    at = struct.unpack_from("<Q", image, 40)[0]
    size, count, names = struct.unpack_from("<HHH", image, 58)
    return at, size, count, names


def _reads_globals(code: bytes) -> bool:
    """Whether an instruction of 16 bytes may have an operand in constant bank 4: the five bits that name a bank, where
    an instruction has such an operand, say so."""
    return any(struct.unpack_from("<Q", code, at)[0] >> 54 & 0x1F == 4 for at in range(0, len(code) - 7, 16))
