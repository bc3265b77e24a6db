"""Names that authors give to kernels, arrays and variables, against those that lowerings give to their own values."""

import numpy as np
import pytest

from tilewave import *
from tilewave.errors import SymbolError

M, K, GLOBAL = sym.M, sym.K, GLOBAL_ADDRESS_SPACE
TARGETS = ("cpu", "gfx942", "sm_90a")
ARRAYS = (*(f"{letter}{n}" for letter in "ct" for n in range(3, 30, 4)), "head3", "entry", "thread", "map", "zahl_ä")
KERNELS = (
    "run",
    "workgroup",
    "workgroup_memory",
    "read_shared",
    "to_f8e5m2",
    "main",
    "exp",
    "entry",
    "größe",
    "<lambda>",
)


def doubled(kernel_name="kernel", array_name="out"):
    """2³ · a, through a loop, with the kernel and its output named so."""

    def kernel(a, out):
        @iterate(K, init_args=[read(a)])
        def total(p):
            return p + p

        write(total, out)

    memory = Memory[M, GLOBAL, f32]
    code = kernel.__code__.replace(co_name=kernel_name, co_varnames=("a", array_name, "total"))
    renamed = type(kernel)(code, kernel.__globals__, kernel_name, None, kernel.__closure__)
    renamed.__annotations__ = {"a": memory, array_name: memory}
    return wave([WorkgroupConstraint(M, 64, 0), TilingConstraint(K, 1)])(renamed)


def check(target, kernel):
    compiled = wave_compile(WaveCompileOptions(subs={M: 64, K: 3}, target=target), kernel)
    a, out = np.arange(64, dtype=np.float32), np.full(64, np.nan, np.float32)
    if target == "cpu":
        compiled(a, out)
    elif target == "gfx942":
        compiled.emulate(a, out)
    else:
        assert compiled.asm.isascii()
        return
    assert (out == 8 * a).all()


@pytest.mark.share(8)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_may_have_any_name(target, name):
    check(target, doubled(array_name=name))


@pytest.mark.share(8)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_may_have_any_name(target, name):
    check(target, doubled(kernel_name=name))


def test_an_open_symbol_has_a_name_that_machine_code_can_have():
    group = sym.größe
    kernel = wave([WorkgroupConstraint(M, 64, 0), WorkgroupMapping(mapping.grouped(group))])(doubled().function)
    with pytest.raises(SymbolError, match="größe cannot stay dynamic"):
        wave_compile(WaveCompileOptions(subs={M: 64, K: 3}, dynamic_symbols=[group]), kernel)
