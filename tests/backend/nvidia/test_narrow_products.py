"""Products of which some columns are used: a branch for each width, and boxes of rows that may be left out."""

import re
from functools import cache

import pytest

from tilewave import *
from tilewave.backend.nvidia.ptxas import ptxas
from tilewave.kernels.grouped import G, GroupedForm, GroupedTile, K, N, T, grouped_product_kernel


@cache
def compiled(rows):
    sizes = {T: 8192, G: 8, N: 1024, K: 1024}
    return grouped_product_kernel(GroupedTile(rows, 256, 64), GroupedForm(bf16, bf16, i32)).compile("sm_90a", sizes)


@pytest.mark.parametrize("rows, widths", [(16, [16]), (48, [16, 32, 48]), (128, [16, 32, 48, 64, 80, 96, 112, 128])])
def test_a_product_has_a_branch_for_each_width(rows, widths):
    words = re.findall(r"m64n(\d+)k16|(wgmma\.fence)|(wgmma\.wait_group)", compiled(rows).build.asm)
    found = [[], []]
    for width, fence, wait in words:
        found[1].append("fence" if fence else "wait" if wait else int(width))
    text = [word for i, word in enumerate(found[1]) if not i or found[1][i - 1] != word]
    assert sorted(text[1::3]) == widths
    assert text == [word for width in text[1::3] for word in ("fence", width, "wait")]


def test_lanes_load_the_parts_that_have_rows_in_use_and_the_bytes_of_others_complete():
    text = compiled(128).build.asm
    assert text.count("cp.async.bulk.tensor.2d.shared") == text.count("mbarrier.complete_tx") == 1


def test_few_rows_are_one_box():
    text = compiled(16).build.asm
    assert text.count("cp.async.bulk.tensor.2d.shared") == 1 and "mbarrier.complete_tx" not in text


@pytest.mark.skipif(not ptxas(), reason="no ptxas on this machine")
@pytest.mark.slow
def test_ptxas_serializes_no_width():
    assert compiled(128).resources.assembled.serialized == ()
