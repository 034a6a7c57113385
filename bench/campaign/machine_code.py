"""Comparison of two shared objects or cubins: a digest of all that is loaded.

Two texts with one digest are equivalent by construction: every instruction, constant, relocation and imported name is
the same; names of local symbols are left out. ELF (System V ABI, 64 bits, little endian) is read only as far as that
needs. A cubin keeps every constant of the text, with its address in constant bank 4; where no instruction may read that
bank, they are left out.
"""

from __future__ import annotations

import struct

from agentcompile.ir.digest import digest_bytes

_MAGIC = b"\x7fELF\x02\x01"
_ALLOCATED, _NO_BITS = 0x2, 8
_CUDA = 190
"""The ELF machine number of a cubin. Of its sections, only those with code are marked as loaded."""
_GLOBALS = (b".nv.global", b".nv.constant4", b".rela.nv.constant4")
"""Sections with variables of the whole program, their initial values and their addresses."""
_LEFT_OUT = (".symtab", ".strtab", ".shstrtab", ".comment", ".note", ".debug", ".nv.info.debug", ".nv_debug")


def code_digest(image: bytes) -> str:
    """Return the digest of the loaded sections of a shared object or cubin; of all bytes for anything else."""
    if not image.startswith(_MAGIC):
        return digest_bytes("image/1", image)
    machine = struct.unpack_from("<H", image, 18)[0]
    # The section table's offset, entry size and count, and the index of the section that holds the names.
    at, (size, count, names) = struct.unpack_from("<Q", image, 40)[0], struct.unpack_from("<HHH", image, 58)
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


def _reads_globals(code: bytes) -> bool:
    """Return whether an instruction of 16 bytes may have an operand in constant bank 4.

    Where an instruction has an operand in a constant bank, five bits of it name the bank.
    """
    return any(struct.unpack_from("<Q", code, at)[0] >> 54 & 0x1F == 4 for at in range(0, len(code) - 7, 16))
