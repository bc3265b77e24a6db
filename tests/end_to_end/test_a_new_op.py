"""An op that the package has never heard of is added from here, in five places, and runs everywhere.

Its class, its meaning, its row in the lowerings, and its word in the text and in the language: that is all it takes.
Passes and analyses know it by what it says of itself.
"""

from dataclasses import dataclass

import numpy as np
import pytest
from one_op import CPU, EMULATED, INTERPRETED, kernel_of, run

from tilewave import *
from tilewave.errors import TilewaveError
from tilewave.interp import arithmetic
from tilewave.ir.core import Value
from tilewave.ir.ops import VOCABULARY, Elementwise
from tilewave.ir.parse import parse
from tilewave.ir.verify import VerifyError, verify
from tilewave.lang.ops import elementwise
from tilewave.lower import numbers

WAYS = [*INTERPRETED, *CPU, *EMULATED]
M, N, K = sym.M, sym.N, sym.K


# -- 1: the class


@dataclass(frozen=True)
class Clamp(Elementwise):
    """x, or the nearer of two bounds where x is outside them."""

    x: Value
    low: Value
    high: Value


# -- 2: its meaning


def clamped(x, low, high):
    return np.minimum(np.maximum(x, low), high)


# -- 3: its row in the lowerings


def lower_clamp(w):
    kind, (x, low, high) = w.kind, w.operands
    words = ("maximum", "minimum") if w.dtype.is_float else ("smax", "smin")
    above = w.f.call(kind, f"llvm.{words[0]}.{numbers.suffix(kind)}", [(kind, x), (kind, low)])
    return w.f.call(kind, f"llvm.{words[1]}.{numbers.suffix(kind)}", [(kind, above), (kind, high)])


# -- 4: its word in the language


def clamp(x, low, high):
    return elementwise(Clamp, x, low, high)


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(arithmetic.MEANING, Clamp, clamped)
    monkeypatch.setitem(numbers.LOWERINGS, Clamp, lower_clamp)
    monkeypatch.setitem(VOCABULARY, Clamp.word(), Clamp)  # 5: its word in the text


# -- what follows from these


DTYPES = {"f32": f32, "f16": f16, "bf16": bf16, "i32": i32, "i8": i8}


def bounds_of(dtype):
    return (-2.5, 3.0) if dtype.is_float else (-2, 3)


@pytest.mark.share(8)
@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_it_is_exact_on_every_level_and_target(way, name):
    dtype = DTYPES[name]
    low, high = bounds_of(dtype)
    x = np.arange(-50, 50).astype(dtype.numpy)
    got = np.zeros(100, dtype.numpy)
    run(way, kernel_of([dtype], [(dtype, lambda x: clamp(x, low, high))], tile=64), [x, got])
    np.testing.assert_array_equal(got.astype(np.float64), np.clip(np.arange(-50.0, 50.0), low, high))


def gemm_that_clamps():
    @wave(
        [
            WorkgroupConstraint(M, 64, 0),
            WorkgroupConstraint(N, 64, 1),
            TilingConstraint(K, 32),
            WaveConstraint(M, 32),
            WaveConstraint(N, 32),
        ]
    )
    def kernel(
        a: Memory[M, K, SHARED_ADDRESS_SPACE, f16],
        b: Memory[N, K, SHARED_ADDRESS_SPACE, f16],
        most: Memory[N, GLOBAL_ADDRESS_SPACE, f32],
        c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
    ):
        @iterate(K, init_args=[Register[M, N, f32](0.0)])
        def total(acc):
            return mma(clamp(read(a), -2.0, 2.0), read(b), acc)  # between a load and its product

        write(clamp(total, -60.0, read(most)), c)  # and is repeated along rows

    return kernel


def gemm_arrays(m, n, k):
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, shape).astype(np.float16) for shape in ((m, k), (n, k)))
    most = rng.integers(0, 60, n).astype(np.float32)
    wanted = np.clip(a.clip(-2, 2).astype(np.float64) @ b.astype(np.float64).T, -60, most)
    return a, b, most, wanted


@pytest.mark.parametrize("sizes", [(128, 128, 64), (70, 90, 50)])
@pytest.mark.parametrize("way", ["tiles", "lanes of gfx942", "lanes of sm_90a", CPU[0], "gfx942", "gfx950"])
def test_every_pass_takes_it(way, sizes):
    """Before and after a matrix product, for whole and boundary tiles: small integers, so it is exact."""
    a, b, most, wanted = gemm_arrays(*sizes)
    c = np.zeros(wanted.shape, np.float32)
    place, _, chip = way.partition(" ")
    target = "numpy" if place == "tiles" else chip.rpartition(" ")[2] if place == "lanes" else place
    subs = dict(zip((M, N, K), sizes, strict=True))
    compiled = wave_compile(WaveCompileOptions(subs=subs, target=target), gemm_that_clamps())
    if place == "cpu":
        compiled(a, b, most, c)
    elif place in EMULATED:
        compiled.emulate(a, b, most, c)
    else:
        compiled.interpret(a, b, most, c, level="tile" if place == "tiles" else "lane")
    np.testing.assert_array_equal(c, wanted)


def test_hopper_has_code_for_it():
    subs = {M: 128, N: 128, K: 64}
    ptx = wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), gemm_that_clamps()).asm
    assert "max.NaN.f32" in ptx and "min.NaN.f32" in ptx


def test_its_text_is_read_back():
    text = """kernel @k {workgroups = 1} (%a: index, %b: index) {
  %x = clamp(%a, %a, %b) : index
}
"""
    kernel = verify(parse(text))
    assert str(kernel) == text and isinstance(kernel.body.ops[0], Clamp)


def test_the_verifier_holds_it_to_what_it_says():
    text = "kernel @k {workgroups = 1} (%a: index, %n: index) {\n"
    text += "  %x = const() {value = 1.0} : f32\n  %y = clamp(%a, %a, %x) : index\n}\n"
    with pytest.raises(VerifyError) as raised:
        verify(parse(text))
    assert raised.value.what == "clamp: index and f32 do not go together"


def test_without_its_row_the_lowering_names_it_and_its_line(monkeypatch):
    monkeypatch.delitem(numbers.LOWERINGS, Clamp)
    for target in ("cpu", "gfx942"):
        subs = {M: 192, N: 64, K: 32}  # a size that no other test uses, so that nothing of it is in the cache
        with pytest.raises(TilewaveError) as raised:
            _ = wave_compile(WaveCompileOptions(subs=subs, target=target), gemm_that_clamps()).llvm_ir
        assert "cannot lower clamp" in raised.value.what
        assert raised.value.loc.file.endswith("test_a_new_op.py")


def test_without_its_meaning_the_interpreter_names_it(monkeypatch):
    monkeypatch.delitem(arithmetic.MEANING, Clamp)
    with pytest.raises(NotImplementedError, match="no meaning is given to clamp"):
        arrays = [np.zeros(64, np.float32) for _ in range(2)]
        run("tiles", kernel_of([f32], [(f32, lambda x: clamp(x, 0.0, 1.0))], tile=64), arrays)
