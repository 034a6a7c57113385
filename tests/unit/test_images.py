"""Files of several cubins: what goes in comes out, and a plain cubin is such a file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcompile.system.cubins import ANY, Image, pack, unpack

IMAGES = st.builds(
    Image, entry=st.from_regex(r"[a-z_]+", fullmatch=True), code=st.binary(), shared_bytes=st.integers(0, 1 << 20)
)


@given(st.lists(IMAGES, max_size=4))
def test_what_is_packed_comes_out_again(images: list[Image]) -> None:
    assert unpack(pack(images)) == tuple(images)


def test_a_plain_cubin_holds_whatever_entries_it_has() -> None:
    assert unpack(b"\x7fELF and so on") == (Image(entry=ANY, code=b"\x7fELF and so on"),)


@pytest.mark.parametrize("data", [b"", b"no head", pack([Image(entry="f", code=b"1234")])[:-1], b"[]\nmore"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting value|bytes of code"):
        unpack(data)
