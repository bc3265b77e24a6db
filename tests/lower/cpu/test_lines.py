"""Assembly for CPUs names the author's lines, and is the code that runs."""

import re
from pathlib import Path

import pytest

from tilewave import *
from tilewave.backend.assembler import assembled
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS
from tilewave.view.listing import Listing

M, N, K, L, G = sym.M, sym.N, sym.K, sym.L, GLOBAL_ADDRESS_SPACE
tiles = [WorkgroupConstraint(M, 32, 0), WorkgroupConstraint(N, 32, 1), TilingConstraint(K, 16)]


@wave(tiles)
def gemm(a: Memory[M, K, G, f32], b: Memory[N, K, G, f32], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)  # the product

    root = sqrt(total)  # the root
    write(root, c)  # the write


@wave(tiles[:2])
def chained(q: Memory[M, K, G, f32], k: Memory[L, K, G, f32], v: Memory[N, L, G, f32], c: Memory[M, N, G, f32]):
    """The kernel's tiles are in memory: what is computed there, some elements at a time, was written elsewhere."""
    scores = mma(read(q), read(k), Register[M, L, f32](0.0))
    products = mma(scores, read(v), Register[M, N, f32](0.0))  # the product
    root = sqrt(products)  # the root
    shifted = root + 1.0
    write(shifted, c)  # the write


def compiled(kernel, name="avx2"):
    sizes = {M: 100, N: 70, K: 48, L: 80} if kernel is chained else {M: 100, N: 70, K: 48}
    return wave_compile(WaveCompileOptions(subs=sizes, target="cpu", instruction_set=name), kernel)


def by_comment(kernel):
    """The instructions of each line of this file that has a comment."""
    listing = Listing.of(compiled(kernel).asm)
    assert listing.file == __file__
    source = listing.source()
    found = {}
    for line in listing.lines:
        comment = source.get(line.line, "").partition("# the ")[2]
        found.setdefault(comment, set()).add(line.text.split()[0])
    return found


def test_products_roots_and_writes_are_found_at_their_lines():
    found = by_comment(gemm)
    assert any(word.startswith("vfmadd") for word in found["product"])
    assert any(word.startswith(("vsqrt", "vrsqrt")) for word in found["root"])
    assert not any(word.startswith(("vfmadd231", "vsqrt")) for word in found["write"])


def test_packing_belongs_to_the_read():
    asm = compiled(gemm).asm
    packing = asm[asm.index("prepack_0:") : asm.index("workgroup:")]
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the product" in text)
    assert re.search(rf"\.loc\s+\d+ {line} ", packing)


def test_what_is_computed_where_it_is_used_keeps_its_own_line():
    assert compiled(chained).build.launch.scratch_bytes > 0
    found = by_comment(chained)
    assert any(word.startswith("vfmadd") for word in found["product"])
    assert any(word.startswith("vsqrt") for word in found["root"])  # LLVM takes some of them along to their stores
    assert not any(word.startswith("vfmadd") for word in found["write"])


@pytest.mark.parametrize("name", ["avx2", "avx512", "x86-64"])
@pytest.mark.parametrize("kernel", [gemm, chained], ids=["gemm", "chained"])
def test_the_code_is_that_which_runs(kernel, name):
    plain, lined = without_and_with_lines(kernel, name)
    assert plain == lined and len(plain) > 100


@pytest.mark.parametrize("kernel", [gemm, chained], ids=["gemm", "chained"])
def test_on_arm_it_multiplies_as_that_which_runs(kernel):
    """On Arm, LLVM orders some instructions differently with debug lines."""
    plain, lined = ([x for x in code if x.startswith("fml")] for code in without_and_with_lines(kernel, "neon"))
    assert plain == lined and len(plain) > 10


def without_and_with_lines(kernel, name):
    made, s = compiled(kernel, name), INSTRUCTION_SETS[name]
    assert "!dbg" not in made.llvm_ir
    plain = assembled("k", name, made.llvm_ir, s.machine._replace(gives="text")).asm
    return instructions(plain), instructions(made.asm)


def instructions(asm):
    """Return the instructions of workgroups and packing, without labels, directives and remarks."""
    asm = asm[: asm.index("\nrun:")]
    return [
        re.sub(r"\.L\w+", "L", re.sub(r"\t#.*|//.*", "", line).strip())
        for line in asm.splitlines()
        if re.match(r"\t\w", line)
    ]
