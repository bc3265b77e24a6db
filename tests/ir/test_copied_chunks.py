"""Which chunks lanes may copy to shared memory: what verify takes, and what it says of the others."""

import pytest

from tilewave.ir.parse import parse
from tilewave.ir.verify import VerifyError, verify

RIGHT = {
    "memory": "memory<64x8xf16, global>",
    "to": "memory<2x64x8xf16, shared>",
    "at": "[%row, %o]",
    "to_at": "[%o, %o]",
    "said": "shape = [1, 8], steps = [[0, 0], [0, 1]]",
}
TEXT = """
kernel @k {{workgroups = 1, level = lane, waves = [1, 1], lanes = 64}} (%a: {memory}) {{
  %s = allocate() : {to}
  %row = lane() : index
  %o = const() {{value = 0}} : index
  copy_async_chunks(%a, {at}, %s, {to_at}) {{{said}}}
}}
"""
WRONG = {
    "shape = [1, 8, 1], steps = [[0, 0], [0, 1]]": r"\[1, 8, 1\] is not chunks per lane x elements per chunk",
    "shape = [0, 8], steps = [[0, 0], [0, 1]]": r"\[0, 8\] is not chunks per lane x elements per chunk",
    "shape = [1, 3], steps = [[0, 0], [0, 1]]": "chunks of 3 do not fit rows of memory<2x64x8xf16, shared>",
    "shape = [1, 8], steps = [[0, 0], [1, 0]]": "chunks run along the last axis of memory<64x8xf16, global>",
    "shape = [1, 8], steps = [[0, 1]]": "chunks run along the last axis",
    "shape = [1, 8], steps = [[0, 0], [0, 1]], guard = [2]": r"memory<64x8xf16, global> has no axes \[2\]",
}
PLACES = [
    ({"to": "memory<2x64x8xf32, shared>"}, "copies memory<64x8xf16, global> to memory<2x64x8xf32, shared>"),
    ({"at": "[%row]"}, "memory<64x8xf16, global> needs 2 positions"),
    ({"to_at": "[%o]"}, "memory<2x64x8xf16, shared> needs the index of a row"),
    ({"to_at": "[%o, %o], [%o, %o]"}, "2 columns are not one for each chunk of a lane"),
]


def text(**changed):
    return TEXT.format(**RIGHT | changed)


def test_a_chunk_for_each_lane_is_right():
    assert verify(parse(text())) == parse(text())


@pytest.mark.parametrize("said", WRONG)
def test_chunks_that_no_lane_can_copy(said):
    with pytest.raises(VerifyError, match=WRONG[said]):
        verify(parse(text(said=said)))


@pytest.mark.parametrize("changed, why", PLACES, ids=lambda x: str(x)[:20])
def test_places_that_chunks_do_not_fit(changed, why):
    with pytest.raises(VerifyError, match=why):
        verify(parse(text(**changed)))
