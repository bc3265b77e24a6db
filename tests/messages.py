"""Source that makes a mistake, and how the message it is answered with is held against the one expected."""

import runpy
import sys
import textwrap

import pytest

HEAD = """
import numpy as np
from tilewave import *
M, N, K, T = sym.M, sym.N, sym.K, sym.T
G = GLOBAL_ADDRESS_SPACE
tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]
sizes = {M: 128, N: 128, K: 96}
"""
GEMM = """
@wave(tiles)
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    zero = Register[M, N, f32](0.0)

    @iterate(K, init_args=[zero])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)

"""


def said(tmp_path, monkeypatch, source, error):
    """What running `source` as gemm.py raises, without the carets that Python 3.10 cannot place."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gemm.py").write_text(textwrap.dedent(source))
    with pytest.raises(error) as raised:
        runpy.run_path(str(tmp_path / "gemm.py"))
    assert type(raised.value) is error
    return str(raised.value)


def without_carets(text):
    return "\n".join(line for line in text.splitlines() if set(line.strip()) != {"^"})


def same(found, wanted):
    wanted = textwrap.dedent(wanted).strip("\n")
    if sys.version_info < (3, 11):
        found, wanted = without_carets(found), without_carets(wanted)
    assert found == wanted
