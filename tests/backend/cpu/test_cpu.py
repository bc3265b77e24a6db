"""The CPU target: every instruction set, dtype and class of shape against float64; calls, threads, faults."""

import concurrent.futures
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels import *
from sampled import examples
from strategies import kernels as random_kernels

from tilewave import ops
from tilewave.backend.assembler import AssemblyFailed, LlvmMachine, assemble
from tilewave.backend.cpu.build import build_cpu
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, host_instruction_set, runs_here
from tilewave.errors import InterpreterError, TargetError
from tilewave.interp.tiles import interpret
from tilewave.ir.types import BOOL
from tilewave.kernels import products
from tilewave.kernels.linear import ProductForm, product_kernel
from tilewave.runtime.arrays import view

DTYPES = [(f32, f32), (f16, f32), (bf16, f32), (f64, f64), (i8, i32), (f8e4m3fn, f32), (f8e5m2, f32)]
DTYPES += [(f8e4m3fnuz, f32), (f8e5m2fnuz, f32)]
RAGGED = (129, 257, 65)
SHAPES = {
    "tiles divide it": (128, 128, 64),
    "one": (1, 1, 1),
    "a row": (1, 300, 40),
    "a column": (300, 1, 7),
    "thin": (70, 90, 1),
}


def check_gemm(name, dtype, acc, shape):
    """Compiled everywhere; run where the machine has the instructions."""
    m, n, k = shape
    kernel = compiled(gemm(dtype, acc), subs=sizes(m, n, k, 64, 64, 64), target="cpu", instruction_set=name)
    assert kernel.code_object.startswith(b"\x7fELF")
    if runs_here(INSTRUCTION_SETS[name]):
        rng = np.random.default_rng(0)
        a, b, c = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype), poisoned((m, n), acc)
        kernel(a, b, c)
        check_product(c, a, b, acc)


@pytest.mark.share(10)
@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@pytest.mark.parametrize(("dtype", "acc"), DTYPES, ids=str)
def test_every_instruction_set_and_dtype(name, dtype, acc):
    if INSTRUCTION_SETS[name].only and dtype.name not in INSTRUCTION_SETS[name].only:
        with pytest.raises(TargetError, match="amx multiplies bf16 and i8, in tiles of 16 rows and 64 bytes"):
            compiled(gemm(dtype, acc), subs=sizes(64, 64, 64, 64, 64, 64), target="cpu", instruction_set=name)
        return
    check_gemm(name, dtype, acc, RAGGED)


@pytest.mark.share(12)
@pytest.mark.parametrize("name", [name for name, s in INSTRUCTION_SETS.items() if runs_here(s)])
@pytest.mark.parametrize(("dtype", "acc"), DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_dtype_and_shape(name, dtype, acc, shape):
    if not INSTRUCTION_SETS[name].only or dtype.name in INSTRUCTION_SETS[name].only:
        check_gemm(name, dtype, acc, SHAPES[shape])


def test_an_instruction_set_that_is_not_here_compiles_and_says_so_at_the_call():
    missing = next(s for s in INSTRUCTION_SETS.values() if not runs_here(s) and not s.only)
    kernel = compiled(gemm(f32), subs=sizes(8, 8, 8), target="cpu", instruction_set=missing.name)
    a = np.ones((8, 8), np.float32)
    with pytest.raises(TargetError, match=f"gemm: this machine does not have {missing.name}"):
        kernel(a, a, np.empty_like(a))
    with pytest.raises(TargetError, match="no instruction set is called 'mmx'"):
        compiled(gemm(f32), subs=sizes(8, 8, 8), target="cpu", instruction_set="mmx")


@given(random_kernels())
@settings(max_examples=examples(40))
def test_random_kernels_do_what_the_interpreter_does(kernel):
    random_kernel_agrees(kernel)


@pytest.mark.slow
@given(random_kernels())
@settings(max_examples=examples(1000))
def test_a_thousand_random_kernels_do_what_the_interpreter_does(kernel):
    random_kernel_agrees(kernel)


def random_kernel_agrees(kernel):
    want = np.arange(64, dtype=np.float32).reshape(8, 8) % 7
    found = want.copy()
    try:
        interpret(kernel, [want], {"n": 3})
    except InterpreterError:
        return  # a tile wholly outside: the interpreter reports it, machine code does nothing there
    build_cpu(kernel, None).program([view(found)], [3], 1)
    np.testing.assert_array_equal(found, want)


@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 80), st.sampled_from([f32, i8]), st.booleans())
@settings(max_examples=examples(15))
def test_small_integers_come_out_exactly(m, n, k, dtype, turned):
    rng = np.random.default_rng(m * n + k)
    a, b = (rng.integers(-8, 9, s).astype(dtype.numpy) for s in ((m, k), (n, k)))
    acc = i32 if dtype == i8 else f32
    c = poisoned((m, n), acc)
    kernel = gemm(dtype, acc, b_dims=(K, N) if turned else (N, K))
    compiled(kernel, subs=sizes(m, n, k, 32, 16, 24), target="cpu")(a, b.T if turned else b, c)
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64).T)


@pytest.mark.parametrize("tile", [(16, 3, 16), (2, 3, 5), (1, 1, 1), (7, 13, 3), (5, 64, 32)], ids=str)
@pytest.mark.parametrize(("dtype", "acc"), [(f32, f32), (i8, i32), (f16, f32)], ids=str)
def test_tiles_of_any_size(tile, dtype, acc):
    rng = np.random.default_rng(0)
    a, b, c = random_array(rng, (20, 11), dtype), random_array(rng, (17, 11), dtype), poisoned((20, 17), acc)
    compiled(gemm(dtype, acc), subs=sizes(20, 17, 11, *tile), target="cpu")(a, b, c)
    check_product(c, a, b, acc)


def test_narrow_inputs_may_add_up_in_f64():
    rng = np.random.default_rng(0)
    a, b, c = random_array(rng, (40, 50), f16), random_array(rng, (30, 50), f16), poisoned((40, 30), f64)
    compiled(gemm(f16, f64), subs=sizes(40, 30, 50), target="cpu")(a, b, c)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64).T, rtol=1e-13, atol=1e-13)


MULTIPLIED_HERE = [
    (name, dtype, acc)
    for name, s in INSTRUCTION_SETS.items()
    for dtype, acc in DTYPES
    if runs_here(s) and (not s.only or dtype.name in s.only)
]


@pytest.mark.share(10)
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("name", "dtype", "acc"), MULTIPLIED_HERE, ids=str)
def test_truth_values_are_packed_as_numbers(name, dtype, acc, turned):
    """Whole panels and edges, along the depth and along the rows: a byte each in memory, a bit each in registers."""

    @wave(tiling())
    def count(a: Memory[M, K, G, BOOL], b: Memory[N, K, G, dtype], c: Memory[M, N, G, acc]):
        @iterate(K, init_args=[Register[M, N, acc](0)])
        def total(sum):
            return mma(cast(read(a), dtype), read(b), sum)

        write(total, c)

    m, n, k = 70, 37, 75
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 2, (m, k)).astype(np.bool_), rng.integers(-4, 5, (n, k)).astype(dtype.numpy)
    c = poisoned((m, n), acc)
    kernel = compiled(count, subs=sizes(m, n, k, 64, 32, 64), target="cpu", instruction_set=name)
    kernel(np.asfortranarray(a) if turned else a, b, c)
    assert "prepack(%a)" in str(kernel.ir())
    np.testing.assert_array_equal(c, a.astype(np.int64) @ b.astype(np.int64).T)


def test_a_packed_product_beside_tiles_too_large_for_registers():
    """One product is packed; the other's operand is computed, and its tiles are 64x64."""

    @wave(tiling())
    def two(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32], d: Memory[M, N, G, f32]):
        @iterate(K, init_args=[Register[M, N, f32](0.0), Register[M, N, f32](0.0)])
        def sums(plain, shifted):
            return mma(read(a), read(b), plain), mma(read(a) + 1.0, read(b), shifted)

        write(sums[0], c)
        write(sums[1], d)

    rng = np.random.default_rng(0)
    a, b = random_array(rng, (70, 300), f32), random_array(rng, (90, 300), f32)
    c, d = poisoned((70, 90), f32), poisoned((70, 90), f32)
    compiled(two, subs=sizes(70, 90, 300, block_k=128), target="cpu")(a, b, c, d)
    check_product(c, a, b)
    check_product(d, a + np.float32(1), b)


def gemm_of(m, n, k, threads=None, dtype=f32):
    kernel = compiled(gemm(dtype), subs=sizes(m, n, k), target="cpu")
    rng = np.random.default_rng(5)
    a, b = random_array(rng, (m, k), dtype), random_array(rng, (n, k), dtype)
    return kernel, a, b


@pytest.mark.parametrize("cols", [256, 300, 700])
@pytest.mark.parametrize("are_open", [True, False], ids=["open", "known"])
def test_neighbouring_panels_of_rows_are_packed_together(cols, are_open):
    """B in rows, with panels of several tasks, of which the last may be no whole one; then batches of it."""
    rng = np.random.default_rng(3)
    a, b, c = random_array(rng, (20, 37), f32), random_array(rng, (37, cols), f32), poisoned((20, cols), f32)
    known = {} if are_open else {K: 37, N: cols, M: 20}
    made = ops.matmul.kernel(a, b).compile(target="cpu", subs={**known, BLOCK_M: 16, BLOCK_N: 64, BLOCK_K: 32})
    made(a, b, c)
    check_product(c, a, np.ascontiguousarray(b.T))
    batches = np.stack([b, b[::-1], 2 * b])
    for found, one in zip(ops.matmul(a, batches), batches, strict=True):
        check_product(found, a, np.ascontiguousarray(one.T))


@pytest.mark.parametrize("threads", ["1", "2", "5"])
def test_any_number_of_threads(threads, monkeypatch):
    monkeypatch.setenv("TILEWAVE_NUM_THREADS", threads)
    kernel, a, b = gemm_of(300, 500, 70)
    c = poisoned((300, 500), f32)
    kernel(a, b, c)
    check_product(c, a, b)


def test_calls_from_several_python_threads_at_once():
    kernel, a, b = gemm_of(200, 300, 70)
    outputs = [poisoned((200, 300), f32) for _ in range(40)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda c: kernel(a, b, c), outputs))
    check_product(outputs[0], a, b)
    for c in outputs[1:]:
        np.testing.assert_array_equal(c, outputs[0])


def test_a_call_of_a_small_kernel_costs_little():
    """64³ in all, products included; the bound is three times what a quiet machine needs."""
    kernel, a, b = gemm_of(64, 64, 64)
    c = poisoned((64, 64), f32)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        kernel(a, b, c)
        times.append(time.perf_counter() - start)
    assert min(times) < 150e-6


def test_what_llvm_cannot_do_is_an_error_and_not_the_end():
    s = host_instruction_set()
    text = "declare float @llvm.nonsense.f32(float)\ndefine float @f(float %x) {\n  ret double %x\n}\n"
    with pytest.raises(AssemblyFailed):
        assemble(text, s.machine)
    with pytest.raises(AssemblyFailed):
        assemble("define void @f() {\n  ret void\n}\n", LlvmMachine("not-a-machine", "", ""))


def test_machine_code_comes_from_the_cache_the_second_time(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path))
    first = compiled(gemm(f32), subs=sizes(40, 40, 40), target="cpu")
    monkeypatch.setattr("tilewave.backend.cpu.build.assembled", None)
    again = compiled(gemm(f32), subs=sizes(40, 40, 40), target="cpu")
    assert again.code_object == first.code_object
    with pytest.raises(TypeError):
        compiled(gemm(f32), subs=sizes(41, 40, 40), target="cpu")


def test_a_damaged_cache_entry_is_compiled_again(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path))
    kernel, a, b = gemm_of(40, 50, 60)
    for entry in tmp_path.rglob("*.entry"):
        data = bytearray(entry.read_bytes())
        data[len(data) // 2] ^= 0xFF
        entry.write_bytes(bytes(data))
    kernel, a, b = gemm_of(40, 50, 60)
    c = poisoned((40, 50), f32)
    kernel(a, b, c)
    check_product(c, a, b)


def test_every_step_of_the_cpu_is_there_to_see():
    kernel = compiled(gemm(f32), subs=sizes(128, 128, 64), target="cpu")
    assert [s.name for s in kernel.steps][5:] == [
        "serialize_split_k",
        "skip_empty_tiles",
        "tile_reductions",
        "split_tiles",
        "prepack_operands",
        "read_rows_in_place",
        "simplify_2",
        "prefetch_results",
        "fold_trivial_loops",
    ]
    assert "read_panel" in str(kernel.ir())
    assert "define void @workgroup" in kernel.llvm_ir
    assert "workgroup:" in kernel.asm


def test_a_forked_child_computes_too():
    kernel, a, b = gemm_of(200, 300, 70)
    c = poisoned((200, 300), f32)
    kernel(a, b, c)
    script = (
        "import os, sys, numpy as np; sys.path[:0] = sys.argv[1:]; import kernels as k\n"
        "g = k.compiled(k.gemm(k.f32), subs=k.sizes(200, 300, 70), target='cpu')\n"
        "a, b, c = np.ones((200, 70), 'f'), np.ones((300, 70), 'f'), np.zeros((200, 300), 'f')\n"
        "g(a, b, c); c[:] = 0\n"
        "child = os.fork()\n"
        "g(a, b, c); ok = (c == 70).all()\n"
        "if child == 0: os._exit(0 if ok else 3)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or not ok)\n"
    )
    here = str(Path(__file__).parents[2])
    assert (
        subprocess.run([sys.executable, "-W", "ignore", "-c", script, here], check=False, timeout=120).returncode == 0
    )


def test_a_product_of_each_batch_takes_the_matrix_unit():
    """A workgroup has one batch: its block of sums has a leading axis of one."""
    batch = sym.B
    form = ProductForm(bf16, bf16, (products.M, products.K), (products.K, products.N), (batch,))
    subs = {batch: 3, products.M: 33, products.N: 20, products.K: 70}
    tile = {products.BLOCK_M: 32, products.BLOCK_N: 32, products.BLOCK_K: 64}
    options = WaveCompileOptions(subs=subs | tile, target="cpu", instruction_set="amx")
    made = wave_compile(options, product_kernel(form))
    assert "use_matrix_unit" in [step.name for step in made.steps] and "tdpbf16ps" in made.asm
