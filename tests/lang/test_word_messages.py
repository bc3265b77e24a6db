# ruff: noqa: E501  (the messages stand here as a terminal shows them)
"""What an author is told who uses one of the words beside products wrongly; the text is exact, with its carets."""

import pytest
from messages import HEAD, said, same

from tilewave.errors import (
    ConstraintError,
    DTypeError,
    ShapeError,
    SymbolError,
    TraceError,
)

KERNEL = """
@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)])
def kernel(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32], n: i32):
    x = read(a)
    own = allocate((M, N), (64, 32), f32)
    {line}
    write(x, c)


wave_compile(WaveCompileOptions(subs=sizes, target="numpy"), kernel)
"""
TILE = "a tile [M, N] (64x64 f32)"
ROUNDED = "write x.round(), which rounds halves away from 0, or roundeven(x), which rounds them as Python does"
PRODUCT = (
    "write mma(a, b, acc): acc + a · bᵀ, summed over the dim that a and b share; acc may be Register[M, N, f32](0.0)"
)
NAMED = "it names each dim of the tile once, in any order, and those along which it is repeated"
SAME = "both have the same tiles and numbers, in the same order, dims and dtype"

BY_DATA = (
    "where tiles lie is known before there is data: bring the elements into the order in which they are read, by a "
    "kernel or on the host, or write the place as a formula of an IndexMapping"
)
TOGETHER = "write read(…, source=(m, k), target=(m, k)), or mapping=…"

CASES = {
    "places that data tells": (
        TraceError,
        "y = ‹read(a, mapping_dynamic_vals=(x,))›",
        "read: mapping_dynamic_vals are places in a [M, N] that data tells",
        BY_DATA,
    ),
    "a source without a target": (
        TraceError,
        "y = ‹read(a, source=(M, N))›",
        "read: source and target are given together, in the place of a mapping",
        TOGETHER,
    ),
    "an iterator that is bound to nothing": (
        TraceError,
        "y = ‹read(a, source=(T, T), target=(T, T))›",
        "read: T stands for no dim of the tile",
        "name the tile's dims by symbols of an IteratorBindings({m: M, …}) among the constraints",
    ),
    "a symbol that data tells": (
        ShapeError,
        "‹set_symbol(T, cast(x, i32))›",
        "set_symbol needs one number, not a tile [M, N] (64x64 i32)",
        "a symbol has one value for all elements of a tile, such as scalar(WORKGROUP_0) * 64; what differs from element to element is written with the iterators of an IndexMapping, such as M - 1 - IndexMapping.iterator(0). What an array holds comes too late for it, as tiles are placed before there is data: give a length at the call, as a number",
    ),
    "an argument for a symbol": (
        TraceError,
        "y = ‹SymbolBind[i32]›",
        "SymbolBind[i32] makes an argument of a symbol",
        "leave the argument out: a symbol with no value in subs is given at the call by its name, kernel(a, c, LENGTH=…), or stays open, dynamic_symbols=[LENGTH]",
    ),
    "a tag that is no name": (
        TraceError,
        "y = ‹read(a, tag=3)›",
        "a tag is a name, not 3",
        'write tag="scores", or leave it out',
    ),
    "a scaled cap without its head": (
        TraceError,
        "y = ‹softsign(x, apply_scaling=True)›",
        "softsign: apply_scaling divides the cap by the root of head_dim, which is not given",
        "write head_dim=128, say, or leave apply_scaling out",
    ),
    "a product by @": (
        TraceError,
        "y = ‹x @ x›",
        f"@ has no op for {TILE} and {TILE}: a product needs sums to add to",
        PRODUCT,
    ),
    "a number by @": (
        TraceError,
        "y = ‹2.0 @ x›",
        f"@ has no op for 2.0 and {TILE}: a product needs sums to add to",
        PRODUCT,
    ),
    "permute to other dims": (
        ShapeError,
        "y = ‹permute(x, target_shape=[N, K])›",
        f"permute: {TILE} has no order [N, K]",
        "target_shape names each of its dims once",
    ),
    "permute to one dim twice": (
        ShapeError,
        "y = ‹x.permute([M, M])›",
        f"permute: {TILE} has no order [M, M]",
        "target_shape names each of its dims once",
    ),
    "permute without a list": (
        ShapeError,
        "y = ‹permute(x, M)›",
        "permute: target_shape is M, no list of dims",
        "write permute(x, target_shape=[M, N])",
    ),
    "permute of what is no tile": (
        TraceError,
        "y = ‹permute(3.0, [M])›",
        "permute needs a tile or a number of the kernel, not 3.0",
        "",
    ),
    "broadcast that loses a dim": (
        ShapeError,
        "y = ‹broadcast(x, target_shape=[M, K])›",
        f"broadcast: target_shape [M, K] does not name N, of {TILE}",
        NAMED,
    ),
    "broadcast along a dim twice": (
        ShapeError,
        "y = ‹broadcast(self_index(M), target_shape=[M, M])›",
        "broadcast: target_shape [M, M] names a dim twice, of a tile [M] (64 index)",
        NAMED,
    ),
    "Python's round": (
        TraceError,
        "y = ‹round(x)›",
        f"{TILE} is not rounded by Python's round",
        ROUNDED,
    ),
    "whole numbers rounded down": (
        DTypeError,
        "y = ‹floor(cast(x, i32))›",
        "floor needs floats, not a tile [M, N] (64x64 i32)",
        "whole numbers are rounded already: leave it out",
    ),
    "whole numbers rounded": (
        DTypeError,
        "y = ‹cast(x, i32).round()›",
        "round needs floats, not a tile [M, N] (64x64 i32)",
        "whole numbers are rounded already: leave it out",
    ),
    "whole numbers rounded to even": (
        DTypeError,
        "y = ‹roundeven(n)›",
        "roundeven needs floats, not a number (i32)",
        "whole numbers are rounded already: leave it out",
    ),
    "1 / a whole number": (
        DTypeError,
        "y = ‹reciprocal(n)›",
        "reciprocal needs floats, not a number (i32)",
        "write cast(x, f32) first",
    ),
    "log10 of a whole number": (
        DTypeError,
        "y = ‹log10(n)›",
        "log10 needs floats, not a number (i32)",
        "write cast(x, f32) first",
    ),
    "apply_expr without a function": (
        TraceError,
        "y = ‹apply_expr(n, n + 1)›",
        "apply_expr: a number (i32) is no function",
        "write apply_expr(x, lambda x: …)",
    ),
    "apply_expr with a symbol that nobody knows": (
        SymbolError,
        "y = ‹apply_expr(n, lambda v: v + T)›",
        "T has no value",
        "give it one: WaveCompileOptions(subs={T: …, …})",
    ),
    "apply_expr of what is no tile": (
        TraceError,
        "y = ‹apply_expr(4, lambda v: v + 1)›",
        "apply_expr needs a tile or a number of the kernel, not 4",
        "",
    ),
    "apply_expr that makes no tile": (
        DTypeError,
        "y = ‹apply_expr(x, lambda v: 4)›",
        "apply_expr: the function gives 4, no tile",
        "",
    ),
    "a condition that is a whole number": (
        DTypeError,
        "‹conditional(n)›(lambda: None)",
        "conditional needs a truth value, not a number (i32)",
        "write x > 0, x != y, …",
    ),
    "a condition that is a number of Python's": (
        DTypeError,
        "‹conditional(1.5)›(lambda: None)",
        "conditional needs a truth value, not 1.5",
        "write x > 0, x != y, …",
    ),
    "else_return without a list": (
        TraceError,
        "‹conditional(x > 0.0, else_return=x)›(lambda: x)",
        "else_return is a list of tiles and numbers",
        "write else_return=[x, …]",
    ),
    "a condition that returns what nobody takes": (
        ShapeError,
        "‹conditional(n > 0)(lambda: x)›",
        f"<lambda> returns {TILE}, but else_return is nothing",
        SAME,
    ),
    "a condition that returns another kind": (
        ShapeError,
        "‹conditional(n > 0, else_return=[x])(lambda: n)›",
        f"<lambda> returns a number (i32), but else_return is {TILE}",
        SAME,
    ),
    "a write whose condition has another dim": (
        ShapeError,
        "conditional(Register[M, N, K, f32](0.0) > 0.0)(lambda: ‹write(x, c)›)",
        f"write: the condition spans K, which {TILE} has not",
        "an element is stored or not: the condition has no dims but those of the tile",
    ),
    "a symbol set element by element": (
        TraceError,
        "‹conditional(x > 0.0)(lambda: set_symbol(T, scalar(3)))›",
        "<lambda> sets a symbol under a tile [M, N] (64x64 bool), which differs from element to element",
        "a symbol has one value for all elements: set it outside",
    ),
    "a memory with too few lengths": (
        ShapeError,
        "y = ‹allocate((M, N), (64,), f32)›",
        "allocate: shape has 2 dims, but distributed_shape 1",
        "write allocate((M, K), (BLOCK_M, BLOCK_K), f16): a length for each dim",
    ),
    "a memory without a list": (
        ShapeError,
        "y = ‹allocate(M, 64, f32)›",
        "allocate: M is no list of dims",
        "write allocate((M, K), (64, 32), f16)",
    ),
    "a memory without a dtype": (
        DTypeError,
        "y = ‹allocate((M,), (64,), 32)›",
        "allocate: 32 is no dtype",
        "write f16, bf16, f32, i8, …",
    ),
    "a global memory of one's own": (
        TraceError,
        "y = ‹allocate((M,), (64,), f32, GLOBAL_ADDRESS_SPACE)›",
        "allocate makes shared memory, not GLOBAL_ADDRESS_SPACE",
        "write SHARED_ADDRESS_SPACE, or leave it out; global memory is an argument of the kernel",
    ),
    "an empty memory": (
        ConstraintError,
        "y = ‹allocate((M,), (0,), f32)›",
        "the length is 0",
        "a length is at least 1",
    ),
    "a tile that is longer than the memory it is written to": (
        ShapeError,
        "‹write(x, own)›",
        "write: a tile has 64 elements along N, but own holds 32",
        "write 64 for N in the distributed_shape of own",
    ),
    "a tile that is longer than the memory it is read from": (
        ShapeError,
        "y = ‹read(own)›",
        "read: a tile has 64 elements along N, but own holds 32",
        "write 64 for N in the distributed_shape of own",
    ),
    "a memory of one's own as a tile": (
        TraceError,
        "y = ‹own + 1.0›",
        "own [M, N] is a memory, not a tile",
        "write read(own)",
    ),
    "an instruction that is none": (
        ConstraintError,
        "y = ‹mma(x, x, x, 'f16')›",
        "mma: mma_type is 'f16', no MMAType",
        "write mma_type=MMAType.F32_16x16x16_F16, or leave it out",
    ),
    "broadcast along a dim that nobody gave a length": (
        SymbolError,
        "y = ‹broadcast(x, target_shape=[M, N, T])›",
        "T has no value",
        "give it one: WaveCompileOptions(subs={T: …, …})",
    ),
}


def rendered(marked, what, remedy):
    """The message for a line in which ‹ and › stand around what is to blame."""
    line = marked.replace("‹", "").replace("›", "")
    begin, end = marked.index("‹"), marked.index("›") - 1
    carets = " " * begin + "^" * (end - begin)
    return "\n".join([what, "  gemm.py:13", f"      {line}", f"      {carets}", *([f"  {remedy}"] if remedy else [])])


@pytest.mark.parametrize("case", CASES)
def test_the_author_is_told(case, tmp_path, monkeypatch):
    error, marked, what, remedy = CASES[case]
    line = marked.replace("‹", "").replace("›", "")
    found = said(tmp_path, monkeypatch, HEAD + KERNEL.replace("{line}", line), error)
    same(found, rendered(marked, what, remedy))


CONSTRAINTS = {
    "an assumption that is no condition": (
        "Assumption(M + 1)",
        "Assumption: M + 1 is no condition",
        "write a < b, a >= b, …, or Eq(a, b), since a == b compares the expressions themselves",
    ),
    "an assumption by ==": (
        "Assumption(M == 4)",
        "Assumption: False is no condition",
        "write a < b, a >= b, …, or Eq(a, b), since a == b compares the expressions themselves",
    ),
    "an assumption that the sizes break": (
        "Assumption(K > 4 * 32)",
        "it is assumed that 128 < K, but K is 96",
        "correct the sizes, or leave the Assumption out: nothing needs it",
    ),
    "an assumption on what nobody tells": (
        "Assumption(K > T)",
        "Assumption: nobody tells T at a call",
        "give T a number in subs, or write the assumption with sizes of arrays",
    ),
    "waves in one number": (
        "HardwareConstraint(waves_per_block=4)",
        "waves_per_block is 4",
        "write three numbers, (2, 2, 1) say: waves along each dimension of the grid",
    ),
    "waves that differ from those that are cut": (
        "HardwareConstraint(waves_per_block=(4, 1, 1))",
        "waves_per_block asks for 4 waves along dimension 0 of the grid, but M is cut among 2",
        "leave waves_per_block out: the waves follow from WaveConstraint",
    ),
    "waves along what is not cut": (
        "HardwareConstraint(waves_per_block=(2, 1, 2))",
        "waves_per_block asks for 2 waves along dimension 2 of the grid, but nothing is cut over dimension 2 of the grid",
        "leave waves_per_block out: the waves follow from WaveConstraint",
    ),
}


@pytest.mark.parametrize("case", CONSTRAINTS)
def test_the_author_of_a_constraint_is_told(case, tmp_path, monkeypatch):
    constraint, what, remedy = CONSTRAINTS[case]
    lines = f"\nmine = {constraint}\ntiles += [WaveConstraint(M, 32), mine]\n"
    gemm = """
@wave(tiles)
def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, G, f32]):
    @iterate(K, init_args=[Register[M, N, f32](0.0)])
    def total(acc):
        return mma(read(a), read(b), acc)

    write(total, c)

wave_compile(WaveCompileOptions(subs=sizes), gemm)
"""
    found = said(tmp_path, monkeypatch, HEAD + lines + gemm, ConstraintError)
    carets = " " * len("mine = ") + "^" * len(constraint)
    same(found, f"{what}\n  gemm.py:9\n      mine = {constraint}\n      {carets}\n  {remedy}")
