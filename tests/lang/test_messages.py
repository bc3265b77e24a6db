# ruff: noqa: E501  (the messages stand here as a terminal shows them)
"""Every mistake an author can make, and the exact text it is answered with."""

import os
import sys
import textwrap

import pytest
from messages import GEMM, HEAD, said, same

from tilewave.errors import (
    CallError,
    ConstraintError,
    CoverageError,
    DimensionError,
    DTypeError,
    EndlessLoop,
    NoAttribute,
    ShapeError,
    SymbolError,
    TargetError,
    TilewaveError,
    TraceError,
)
from tilewave.mapping import MappingError, ParameterError

A, B, C = "np.ones((128, 96), np.float16)", "np.ones((128, 96), np.float16)", "np.empty((128, 128), np.float32)"


OPEN_AND_WHOLE = (
    "call the kernel with its arrays, or say how long it is, subs={T: …}, or how long at most, longest={T: 4096}; or "
    "cut it: add WorkgroupConstraint(T, BLOCK_T, …), or TilingConstraint(T, BLOCK_T) and do this inside an iterate over T"
)
CASES = {
    "a symbol without a value": (
        SymbolError,
        HEAD + "tiles += [GridConstraint(T)]\n" + GEMM + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        T has no value
          gemm.py:8
              tiles += [GridConstraint(T)]
                        ^^^^^^^^^^^^^^^^^
          give it one: WaveCompileOptions(subs={T: …, …})
        """,
    ),
    "an address space without a value": (
        SymbolError,
        HEAD
        + GEMM.replace("b: Memory[N, K, G, f16]", "b: Memory[N, K, sym.SPACE, f16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        SPACE has no value
          gemm.py:10
              def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, sym.SPACE, f16], c: Memory[M, N, G, f32]):
                                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give it one: WaveCompileOptions(subs={SPACE: SHARED_ADDRESS_SPACE, …})
        """,
    ),
    "a dimension that no constraint cuts, and whose length is open": (
        DimensionError,
        HEAD
        + GEMM.replace("        return mma", "        bias = read(d)\n        return mma").replace(
            "c: Memory", "d: Memory[M, T, G, f16], c: Memory"
        )
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        f"""
        read: d [M, T] spans T, which no constraint cuts, and how long it is is known only at the launch
          gemm.py:15
              bias = read(d)
                     ^^^^^^^
          {OPEN_AND_WHOLE}
        """,
    ),
    "a tiled dimension read outside its loop": (
        DimensionError,
        HEAD
        + GEMM.replace("    zero =", "    early = read(a)\n    zero =")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        read: a [M, K] spans K, which has a tile only inside iterate(K)
          gemm.py:11
              early = read(a)
                      ^^^^^^^
          move it into the function under @iterate(K, …)
        """,
    ),
    "mma shapes that do not fit": (
        ShapeError,
        HEAD
        + GEMM.replace("b: Memory[N, K, G, f16]", "b: Memory[N, M, G, f16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        mma: a is 64x32 [M, K] and b is 64x64 [N, M], but the accumulator is 64x64 [M, N]
          gemm.py:15
              return mma(read(a), read(b), acc)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
          a and b must share exactly one dim that the accumulator has not, to sum over
        """,
    ),
    "mma dtypes that do not fit": (
        DTypeError,
        HEAD
        + GEMM.replace("b: Memory[N, K, G, f16]", "b: Memory[N, K, G, bf16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        mma: f16 times bf16 does not add up in f32
          gemm.py:15
              return mma(read(a), read(b), acc)
                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
          floats of one kind accumulate in f32 (or f64), i8 in i32; cast the result afterwards
        """,
    ),
    "a tile written to a memory of another shape": (
        ShapeError,
        HEAD
        + GEMM.replace("c: Memory[M, N, G, f32]", "c: Memory[M, G, f32]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        write: a tile [M, N] (64x64 f32) does not fit c, which takes [M] (64)
          gemm.py:17
              write(total, c)
              ^^^^^^^^^^^^^^^
          declare c as Memory[M, N, …], or write another tile
        """,
    ),
    "a tile written to a memory of another dtype": (
        DTypeError,
        HEAD
        + GEMM.replace("c: Memory[M, N, G, f32]", "c: Memory[M, N, G, f16]")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        write: the tile is f32, but c holds f16
          gemm.py:17
              write(total, c)
              ^^^^^^^^^^^^^^^
          write cast(tile, f16), or declare c as Memory[…, f32]
        """,
    ),
    "tiles of two dtypes added": (
        DTypeError,
        HEAD
        + GEMM.replace("write(total, c)", "write(total + cast(total, f16), c)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        a tile [M, N] (64x64 f32) and a tile [M, N] (64x64 f16) do not go together
          gemm.py:17
              write(total + cast(total, f16), c)
                    ^^^^^^^^^^^^^^^^^^^^^^^^
          write cast(x, f32) or cast(x, f16) for one of them
        """,
    ),
    "an if on a traced value": (
        TraceError,
        HEAD
        + GEMM.replace("    write(total, c)", "    if total > 0.0:\n        write(total, c)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        a tile [M, N] (64x64 bool) has no truth value while the kernel is being traced
          gemm.py:17
              if total > 0.0:
                 ^^^^^^^^^^^
          `if`, `while`, `for` run in Python, before there is data; write select(condition, a, b) or iterate
        """,
    ),
    "a while on a symbol": (
        TraceError,
        HEAD
        + GEMM.replace("    write(total, c)", "    while M < N:\n        write(total, c)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        M < N has no truth value while the kernel is being traced
          gemm.py:17
              while M < N:
                    ^^^^^
          `if` and `while` run in Python, before sizes are known; write select(condition, a, b) or iterate
        """,
    ),
    "an op outside a kernel": (
        TraceError,
        HEAD + "zero = Register[M, N, f32](0.0)",
        """
        Register is called outside a kernel
          gemm.py:8
              zero = Register[M, N, f32](0.0)
                     ^^^^^^^^^^^^^^^^^^^^^^^^
          kernels run when they are compiled: put it into a function under @wave(constraints)
        """,
    ),
    "a kernel called with what are no arrays": (
        CallError,
        HEAD + GEMM + "gemm(1, 2, 3)",
        """
        gemm: a is an int, not an array
          gemm.py:19
              gemm(1, 2, 3)
              ^^^^^^^^^^^^^
          pass a numpy array, a torch tensor, or anything with DLPack or __cuda_array_interface__
        """,
    ),
    "arrays that do not agree about a size": (
        CallError,
        HEAD
        + GEMM
        + "a, b, c = np.ones((8, 4), np.float16), np.ones((6, 5), np.float16), np.ones((8, 6), np.float32)\n"
        + "gemm(a, b, c)",
        """
        gemm: K is 4 by a, but 5 by b; a is 8x4, b is 6x5
          gemm.py:20
              gemm(a, b, c)
              ^^^^^^^^^^^^^
          K is axis 1 of a and axis 1 of b; they must be equal
        """,
    ),
    "a whole number for a float": (
        CallError,
        HEAD
        + """
@wave(tiles)
def scaled(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32], alpha: f32):
    write(read(a) * alpha, c)


scaled(np.ones((8, 4), np.float32), np.ones((8, 4), np.float32), alpha=2)
""",
        """
        scaled: alpha is 2 (int), but the kernel takes a float (f32)
          gemm.py:14
              scaled(np.ones((8, 4), np.float32), np.ones((8, 4), np.float32), alpha=2)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write alpha=2.0
        """,
    ),
    "a loop that returns nothing": (
        ShapeError,
        HEAD
        + GEMM.replace("return mma(read(a), read(b), acc)", "mma(read(a), read(b), acc)")
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        total carries a tile [M, N] (64x64 f32), but returns nothing
          gemm.py:13
              @iterate(K, init_args=[zero])
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          return the next value of each of init_args, in the same order, dims and dtype
        """,
    ),
    "a grid dimension constrained twice": (
        ConstraintError,
        HEAD.replace("WorkgroupConstraint(N, 64, 1)", "WorkgroupConstraint(N, 64, 0)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        grid dimension 0 is constrained twice: by M and by N
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 0), TilingConstraint(K, 32)]
                                                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          the first is at gemm.py:6; give each its own dimension, 0 to 4
        """,
    ),
    "a tile of zero": (
        ConstraintError,
        HEAD.replace("TilingConstraint(K, 32)", "TilingConstraint(K, sym.BLOCK_K)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs={**sizes, sym.BLOCK_K: 0}), gemm)",
        """
        BLOCK_K is 0
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, sym.BLOCK_K)]
                                                                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          a tile is at least 1
        """,
    ),
    "a negative tile": (
        ConstraintError,
        HEAD.replace("WorkgroupConstraint(M, 64, 0)", "WorkgroupConstraint(M, -64, 0)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        the tile is -64
          gemm.py:6
              tiles = [WorkgroupConstraint(M, -64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]
                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          a tile is at least 1
        """,
    ),
    "a tile that is no whole number": (
        SymbolError,
        HEAD.replace("TilingConstraint(K, 32)", "TilingConstraint(K, K / 5)")
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        K / 5 is 96/5, no whole number
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, K / 5)]
                                                                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^
          write // to round down, or ceiling(…) to round up
        """,
    ),
    "a target that does not exist": (
        TargetError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=sizes, target='gfx941'), gemm)",
        """
        no target is called 'gfx941'
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, target='gfx941'), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          did you mean 'gfx942'? The targets are cpu, gfx942, gfx950, sm_90a, numpy.
        """,
    ),
    "two orders of tiles": (
        ConstraintError,
        HEAD
        + "tiles += [ReorderingConstraint(WORKGROUP_0, 0), WorkgroupMapping('grouped(4)')]\n"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        the order of tiles is given twice: by WorkgroupMapping and by ReorderingConstraint
          gemm.py:8
              tiles += [ReorderingConstraint(WORKGROUP_0, 0), WorkgroupMapping('grouped(4)')]
                                                              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          the other is at gemm.py:8; keep one of them
        """,
    ),
    "a formula that loses tiles": (
        CoverageError,
        HEAD
        + "tiles += [ReorderingConstraint(WORKGROUP_0 // 2, 0)]\n"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        workgroups 0 and 1 both compute tile (0, 0); tile (1, 0) is computed by none
          gemm.py:18
              write(total, c)
              ^^^^^^^^^^^^^^^
          c has 4 tiles: 2 lost, 2 computed more than once.
          Correct the formula, or name a mapping that is right on every grid, for example
              WorkgroupMapping(xcd_contiguous(8) >> grouped(4))
        """,
    ),
    "a formula that leaves the grid": (
        CoverageError,
        HEAD
        + "tiles += [ReorderingConstraint(WORKGROUP_0 + 1, 0)]\n"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        """
        workgroup 1 computes tile (2, 0), outside the 2x2 tiles of c
          gemm.py:18
              write(total, c)
              ^^^^^^^^^^^^^^^
          Correct the formula, or name a mapping that is right on every grid, for example
              WorkgroupMapping(xcd_contiguous(8) >> grouped(4))
        """,
    ),
    "too few arrays": (
        CallError,
        HEAD + GEMM + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {C})",
        """
        gemm: takes 3 arrays (a, b, c), but got 2
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          call gemm(a, b, c)
        """,
    ),
    "an array of another shape": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {B}.T, {C})",
        """
        gemm: b is 96x128, but the kernel was compiled for 128x96
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16).T, np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          it looks transposed: pass b.T
        """,
    ),
    "an array of another dtype": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {C}, {C})",
        """
        gemm: b is f32, but the kernel reads f16
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.empty((128, 128), np.float32), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          pass b.astype(np.float16), or compile with Memory[..., f32]
        """,
    ),
    "a read-only output": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\nc = {C}\nc.flags.writeable = False\n"
        f"compiled.interpret({A}, {B}, c)",
        """
        gemm: c is read-only, but the kernel writes it
          gemm.py:22
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), c)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          pass np.empty((128, 128), np.float32)
        """,
    ),
    "no device": (
        TargetError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes, target='gfx942'), gemm)\ncompiled({A}, {B}, {C})",
        """
        gemm: this machine has no AMD driver (libamdhip64.so or libamdhip64.so.7 or libamdhip64.so.6 or amdhip64_7.dll or amdhip64_6.dll)
          gemm.py:20
              compiled(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          run it on a machine with an AMD GPU; interpret(…) runs the kernel in numpy on any machine
          gemm.emulate(…) runs its machine code on this CPU
        """,
    ),
    "a dynamic symbol without a value at the call": (
        CallError,
        HEAD
        + "tiles += [WorkgroupMapping(mapping.grouped(sym.WGM))]\n"
        + GEMM
        + "compiled = wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=[sym.WGM]), gemm)\n"
        f"compiled.interpret({A}, {B}, {C})",
        """
        gemm needs a value for WGM
          gemm.py:21
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), np.empty((128, 128), np.float32))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write gemm(…, WGM=4)
        """,
    ),
    "a symbol at the call that the kernel does not take": (
        CallError,
        HEAD
        + GEMM
        + f"compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\ncompiled.interpret({A}, {B}, {C}, WGM=4)",
        """
        gemm takes no symbol WGM
          gemm.py:20
              compiled.interpret(np.ones((128, 96), np.float16), np.ones((128, 96), np.float16), np.empty((128, 128), np.float32), WGM=4)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          it takes none; name it in WaveCompileOptions(dynamic_symbols=[WGM])
        """,
    ),
}
PERSISTENT = """
tiles = [GridConstraint(2), WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32), TilingConstraint(T)]
i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)
there = IndexMapping(num_iterators=2, inputs={M: i, N: j}, outputs={M: i + sym.ROW, N: j + sym.COLUMN})

@wave(tiles)
def fill(c: Memory[M, N, G, f32]):
    @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
    def tiles():
        tile = self_index(T)
        set_symbol(sym.ROW, tile // 2 * 64)
        set_symbol(sym.COLUMN, tile % 2 * 64)
        write(Register[M, N, f32](1.0), c, mapping=there)
        set_symbol(T, NEXT)

"""
CASES |= {
    "an order beside a loop that decides it": (
        ConstraintError,
        HEAD
        + PERSISTENT.replace("NEXT", "tile + 2").replace(
            "TilingConstraint(T)]", "TilingConstraint(T), WorkgroupMapping('grouped(2)')]"
        )
        + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        WorkgroupMapping has no effect: the kernel's own while loop decides which tiles it computes
          gemm.py:9
              tiles = [GridConstraint(2), WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32), TilingConstraint(T), WorkgroupMapping('grouped(2)')]
                                                                                                                                                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave it out, or leave out the loop: GridConstraint alone makes the kernel persistent
        """,
    ),
    "a persistent loop that never advances": (
        EndlessLoop,
        HEAD
        + PERSISTENT.replace("        set_symbol(T, NEXT)\n", "")
        + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        T is never set in its loop, which would not end
          gemm.py:15
              @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write set_symbol(T, next) at the end of tiles
        """,
    ),
    "a persistent loop that never ends": (
        EndlessLoop,
        HEAD
        + PERSISTENT.replace("NEXT", "tile + scalar(WORKGROUP_0) * 2")
        + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        the loop never ends for workgroup 0
          gemm.py:15
              @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          let every round bring the loop's symbol closer to its condition's end, with set_symbol
        """,
    ),
    "a persistent loop that goes round for ever": (
        EndlessLoop,
        HEAD + PERSISTENT.replace("NEXT", "(tile + 1) % 3") + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        the loop never ends for workgroup 0
          gemm.py:15
              @iterate(T, start=scalar(WORKGROUP_0), condition=T < 4)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          let every round bring the loop's symbol closer to its condition's end, with set_symbol
        """,
    ),
    "a persistent loop that loses tiles": (
        CoverageError,
        HEAD + PERSISTENT.replace("NEXT", "tile + 3") + "wave_compile(WaveCompileOptions(subs=sizes), fill)",
        """
        tile (1, 0) is computed by none
          gemm.py:20
              write(Register[M, N, f32](1.0), c, mapping=there)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          c has 4 tiles: 1 lost, 0 computed more than once.
          Correct the formula, or name a mapping that is right on every grid, for example
              GridConstraint(n) and WorkgroupMapping(xcd_chunked(8, 2) >> grouped(4)), with no tile loop
        """,
    ),
    "a symbol with a value that the kernel sets": (
        SymbolError,
        HEAD
        + PERSISTENT.replace("NEXT", "tile + 2")
        + "wave_compile(WaveCompileOptions(subs={**sizes, sym.ROW: 0}), fill)",
        """
        set_symbol: ROW has a value already: 0
          gemm.py:18
              set_symbol(sym.ROW, tile // 2 * 64)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave ROW out of subs, or set another symbol
        """,
    ),
}

COMPILE = "wave_compile(WaveCompileOptions(subs=sizes), gemm)"


def replaced(old, new):
    """The GEMM with a piece of it replaced, compiled."""
    return HEAD + GEMM.replace(old, new) + COMPILE


def ending(line):
    """The GEMM with another last line."""
    return replaced("write(total, c)", line)


def ordered(constraint, options="subs=sizes"):
    """The GEMM with a constraint more."""
    return HEAD + f"tiles += [{constraint}]\n" + GEMM + f"wave_compile(WaveCompileOptions({options}), gemm)"


def reading(mapping):
    """The GEMM that reads a through an index mapping."""
    there = f"i, j = IndexMapping.iterator(0), IndexMapping.iterator(1)\nthere = IndexMapping(2, {mapping})\n"
    return HEAD + there + GEMM.replace("read(a)", "read(a, mapping=there)") + COMPILE


CASES |= {
    "a tile indexed": (
        TraceError,
        ending("write(total[0], c)"),
        """
        a tile [M, N] (64x64 f32) is handled as a whole, and cannot be indexed
          gemm.py:17
              write(total[0], c)
                    ^^^^^^^^
          write read(a, mapping=IndexMapping(…)) for other elements, select(self_index(M) == 0, x, y) to mask some
        """,
    ),
    "a tile transposed": (
        NoAttribute,
        ending("write(total.T, c)"),
        """
        a tile [M, N] (64x64 f32) has no .T
          gemm.py:17
              write(total.T, c)
                    ^^^^^^^
          dims have names, and need no turning: declare the memory that it is written to as Memory[N, M, …]
        """,
    ),
    "a tile asked for what arrays have": (
        NoAttribute,
        ending("write(total.astype(f16), c)"),
        """
        a tile [M, N] (64x64 f32) has no .astype
          gemm.py:17
              write(total.astype(f16), c)
                    ^^^^^^^^^^^^
          write tilewave's own: exp(x), sqrt(x), maximum(x, y), cast(x, f16), …; it has .dims and .dtype
        """,
    ),
    "a tile given to numpy": (
        TraceError,
        ending("write(np.exp(total), c)"),
        """
        a tile [M, N] (64x64 f32) cannot go through numpy's exp
          gemm.py:17
              write(np.exp(total), c)
                    ^^^^^^^^^^^^^
          write tilewave's own: exp(x), sqrt(x), maximum(x, y), cast(x, f16), …; it has .dims and .dtype
        """,
    ),
    "an array multiplied by a tile": (
        TraceError,
        ending("write(np.ones(64) * total, c)"),
        """
        a tile [M, N] (64x64 f32) cannot go through numpy's multiply
          gemm.py:17
              write(np.ones(64) * total, c)
                    ^^^^^^^^^^^^^^^^^^^
          arrays are given at the call: make it an argument of the kernel, a: Memory[…], and write read(a)
        """,
    ),
    "a tile multiplied by an array": (
        DTypeError,
        ending("write(total * np.ones(64), c)"),
        """
        an array is neither a tile nor a number
          gemm.py:17
              write(total * np.ones(64), c)
                    ^^^^^^^^^^^^^^^^^^^
          arrays are given at the call: make it an argument of the kernel, a: Memory[…], and write read(a)
        """,
    ),
    "a memory where a tile is due": (
        DTypeError,
        ending("write(total + a, c)"),
        """
        a [M, K] is neither a tile nor a number
          gemm.py:17
              write(total + a, c)
                    ^^^^^^^^^
          arrays are given at the call: make it an argument of the kernel, a: Memory[…], and write read(a)
        """,
    ),
    "a memory that was not read": (
        TraceError,
        ending("write(c * 2.0, c)"),
        """
        c [M, N] is a memory, not a tile
          gemm.py:17
              write(c * 2.0, c)
                    ^^^^^^^
          write read(c)
        """,
    ),
    "a tile made an array": (
        TraceError,
        ending("write(np.where(total > 0.0, total, 0.0), c)"),
        """
        a tile [M, N] (64x64 bool) is no numpy array
          gemm.py:17
              write(np.where(total > 0.0, total, 0.0), c)
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write tilewave's own: exp(x), sqrt(x), maximum(x, y), cast(x, f16), …; it has .dims and .dtype
        """,
    ),
    "a tile made a Python number": (
        TraceError,
        ending("write(float(total), c)"),
        """
        a tile [M, N] (64x64 f32) is no Python number
          gemm.py:17
              write(float(total), c)
                    ^^^^^^^^^^^^
          write tilewave's own: exp(x), sqrt(x), maximum(x, y), cast(x, f16), …; it has .dims and .dtype
        """,
    ),
    "a tile walked": (
        TraceError,
        ending("write(list(total), c)"),
        """
        a tile [M, N] (64x64 f32) cannot be walked in Python while the kernel is being traced
          gemm.py:17
              write(list(total), c)
                    ^^^^^^^^^^^
          `if`, `while`, `for` run in Python, before there is data; write select(condition, a, b) or iterate
        """,
    ),
    "a power that is no small whole number": (
        DTypeError,
        ending("write(total ** 0.5, c)"),
        """
        ** takes whole powers from 1 to 16, not 0.5
          gemm.py:17
              write(total ** 0.5, c)
                    ^^^^^^^^^^^^
          write sqrt(x) for x ** 0.5, 1.0 / x for x ** -1, exp2(power * log2(x)) for the rest
        """,
    ),
    "a tile as a power": (
        DTypeError,
        ending("write(2.0 ** total, c)"),
        """
        2.0 ** x has no op for a tile [M, N] (64x64 f32)
          gemm.py:17
              write(2.0 ** total, c)
                    ^^^^^^^^^^^^
          write exp2(x) for 2 ** x, exp(x) for e ** x, exp2(x * log2(base)) for the rest
        """,
    ),
    "a float tile divided to whole numbers": (
        DTypeError,
        ending("write(total // 2, c)"),
        """
        // is for whole numbers, not a tile [M, N] (64x64 f32)
          gemm.py:17
              write(total // 2, c)
                    ^^^^^^^^^^
          write / for the quotient of floats, or cast(x, i32) first
        """,
    ),
    "the rest of a float tile": (
        DTypeError,
        ending("write(total % 2.0, c)"),
        """
        % is for whole numbers, not a tile [M, N] (64x64 f32)
          gemm.py:17
              write(total % 2.0, c)
                    ^^^^^^^^^^^
          write / for the quotient of floats, or cast(x, i32) first
        """,
    ),
    "a symbol made a Python number": (
        TraceError,
        HEAD + "rows = int(M)",
        """
        M is no Python number: it has its value only when a kernel is compiled
          gemm.py:8
              rows = int(M)
                     ^^^^^^
          where you need it in Python, use the number that you give it in subs; in a kernel, write iterate
        """,
    ),
    "a range over a symbol": (
        TraceError,
        HEAD + "rows = range(M + 1)",
        """
        M + 1 is no Python number: it has its value only when a kernel is compiled
          gemm.py:8
              rows = range(M + 1)
                     ^^^^^^^^^^^^
          where you need it in Python, use the number that you give it in subs; in a kernel, write iterate
        """,
    ),
    "the length of a symbol": (
        TraceError,
        HEAD + "rows = len(M)",
        """
        M has no Python length: it has its value only when a kernel is compiled
          gemm.py:8
              rows = len(M)
                     ^^^^^^
          where you need it in Python, use the number that you give it in subs; in a kernel, write iterate
        """,
    ),
    "a symbol walked": (
        TraceError,
        HEAD + "rows = list(M)",
        """
        M cannot be walked in Python: it has its value only when a kernel is compiled
          gemm.py:8
              rows = list(M)
                     ^^^^^^^
          where you need it in Python, use the number that you give it in subs; in a kernel, write iterate
        """,
    ),
    "a negative power of a symbol": (
        SymbolError,
        HEAD + "area = M ** -1",
        """
        M ** -1 is no index expression
          gemm.py:8
              area = M ** -1
                     ^^^^^^^
          whole powers from 1 to 16 are; else write * yourself
        """,
    ),
    "a symbol as a power": (
        SymbolError,
        HEAD + "area = 2 ** (M + 1)",
        """
        2 ** (M + 1) is no index expression
          gemm.py:8
              area = 2 ** (M + 1)
                     ^^^^^^^^^^^^
          give the power a symbol of its own, with its value in subs
        """,
    ),
    "constraints that are no list": (
        ConstraintError,
        HEAD + "wave(tiles[0])",
        """
        wave takes a list of constraints
          gemm.py:8
              wave(tiles[0])
              ^^^^^^^^^^^^^^
          write @wave([constraint, …])
        """,
    ),
    "a constraint on what is no symbol": (
        ConstraintError,
        HEAD + "WorkgroupConstraint('M', 64, 0)",
        """
        WorkgroupConstraint: 'M' is no symbol
          gemm.py:8
              WorkgroupConstraint('M', 64, 0)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write sym.M, with its size in subs
        """,
    ),
    "a loop's function with too many parameters": (
        TraceError,
        replaced("def total(acc):", "def total(i, acc):"),
        """
        total takes 2 parameters, but init_args has length 1
          gemm.py:13
              @iterate(K, init_args=[zero])
               ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write def total(value), with one parameter for each of init_args
        """,
    ),
    "init_args that are no list": (
        TraceError,
        replaced("init_args=[zero]", "init_args=zero"),
        """
        init_args is a list, not a tile [M, N] (64x64 f32)
          gemm.py:13
              @iterate(K, init_args=zero)
               ^^^^^^^^^^^^^^^^^^^^^^^^^^
          write init_args=[…]
        """,
    ),
    "a dict in place of an index mapping": (
        TraceError,
        replaced("read(a)", "read(a, mapping={M: 0})"),
        """
        read: mapping is an IndexMapping, not {M: 0}
          gemm.py:15
              return mma(read(a, mapping={M: 0}), read(b), acc)
                         ^^^^^^^^^^^^^^^^^^^^^^^
          write mapping=IndexMapping(num_iterators=2, inputs={M: …, N: …}, outputs={M: …, N: …})
        """,
    ),
    "options and kernel swapped": (
        TilewaveError,
        HEAD + GEMM + "wave_compile(gemm, WaveCompileOptions(subs=sizes))",
        """
        wave_compile takes the options first, then the kernel
          gemm.py:19
              wave_compile(gemm, WaveCompileOptions(subs=sizes))
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write wave_compile(options, gemm)
        """,
    ),
    "options that are a dict": (
        TilewaveError,
        HEAD + GEMM + "wave_compile({M: 128}, gemm)",
        """
        wave_compile needs options, not {M: 128}
          gemm.py:19
              wave_compile({M: 128}, gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write wave_compile(WaveCompileOptions(subs={…}), kernel)
        """,
    ),
    "dynamic symbols that are no list": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=sym.W), gemm)",
        """
        dynamic_symbols is a list of symbols, not W
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=sym.W), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write dynamic_symbols=[W]
        """,
    ),
    "a dynamic symbol that is none": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=['W']), gemm)",
        """
        dynamic_symbols: 'W' is no symbol
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=['W']), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write sym.W
        """,
    ),
    "a symbol both open and given": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=[M]), gemm)",
        """
        M is in subs and in dynamic_symbols
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=[M]), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave it out of one of them
        """,
    ),
    "a dynamic symbol called as an argument": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=[sym.a]), gemm)",
        """
        gemm: a is an argument and a symbol that stays open
          gemm.py:9
              @wave(tiles)
          rename one of them
        """,
    ),
    "a tile that stays open": (
        ConstraintError,
        HEAD.replace("K, 32", "K, K // 4") + GEMM + "wave_compile(WaveCompileOptions(subs={M: 128, N: 128}), gemm)",
        """
        K // 4 is a tile, and fixed when a kernel is compiled, but K is known only at the launch
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, K // 4)]
                                                                                     ^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give it a number: subs={K: …}
        """,
    ),
    "subs that go in a circle": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs={M: N * 2, N: K + 1, K: M - 1}), gemm)",
        """
        subs goes in a circle: M needs N needs K needs M
          gemm.py:19
              wave_compile(WaveCompileOptions(subs={M: N * 2, N: K + 1, K: M - 1}), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give one of them a number
        """,
    ),
    "subs that are no dict": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=[128, 128, 96]), gemm)",
        """
        subs is [128, 128, 96]
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=[128, 128, 96]), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write subs={M: 512, …}
        """,
    ),
    "subs made of what has no value": (
        SymbolError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs={M: 128, N: 128, K: 2 * T}), gemm)",
        """
        T has no value
          gemm.py:19
              wave_compile(WaveCompileOptions(subs={M: 128, N: 128, K: 2 * T}), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give it one: WaveCompileOptions(subs={T: …, …})
        """,
    ),
    "a memory without an address space": (
        SymbolError,
        replaced("c: Memory[M, N, G, f32]", "c: Memory[M, N, f32]"),
        """
        c: the address space is missing; N is a size
          gemm.py:10
              def gemm(a: Memory[M, K, G, f16], b: Memory[N, K, G, f16], c: Memory[M, N, f32]):
                                                                            ^^^^^^^^^^^^^^^^^
          write Memory[M, N, GLOBAL_ADDRESS_SPACE, f32]
        """,
    ),
    "an order with a symbol that has no value": (
        SymbolError,
        ordered("WorkgroupMapping(mapping.grouped(sym.WGM))"),
        """
        WGM has no value
          gemm.py:8
              tiles += [WorkgroupMapping(mapping.grouped(sym.WGM))]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give it one: WaveCompileOptions(subs={WGM: …, …})
          or leave it open until the call: dynamic_symbols=[WGM]
        """,
    ),
    "an order with a parameter of zero": (
        ParameterError,
        ordered("WorkgroupMapping(mapping.grouped(sym.WGM))", "subs={**sizes, sym.WGM: 0}"),
        """
        grouped: size is 0, but must be at least 1
          gemm.py:8
              tiles += [WorkgroupMapping(mapping.grouped(sym.WGM))]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        """,
    ),
    "an order that is misspelt": (
        MappingError,
        ordered("WorkgroupMapping('groupd(4)')"),
        """
        there is no mapping `groupd`
              groupd(4)
              ^^^^^^
          did you mean grouped?
          renumberings: xcd_contiguous, xcd_chunked, last_first, folded
          orders: linear, paired, grouped, supertiles, snake, morton, hilbert
          gemm.py:8
              tiles += [WorkgroupMapping('groupd(4)')]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        """,
    ),
    "an order that is no mapping": (
        MappingError,
        ordered("WorkgroupMapping(4)"),
        """
        4 is not a mapping
          gemm.py:8
              tiles += [WorkgroupMapping(4)]
                        ^^^^^^^^^^^^^^^^^^^
          write an order such as grouped(4), or renumberings >> an order
        """,
    ),
    "a formula that branches": (
        TraceError,
        ordered("WorkgroupMapping(lambda w, g: (w % 2, w // 2) if w > 2 else (w // 2, w % 2))"),
        """
        the workgroup's number has no truth value: it is known only when the kernel runs
          gemm.py:8
              tiles += [WorkgroupMapping(lambda w, g: (w % 2, w // 2) if w > 2 else (w // 2, w % 2))]
                                                                         ^^^^^
          write choose(condition, a, b), smaller(a, b), larger(a, b) of tilewave.mapping in place of if, min, max
        """,
    ),
    "a formula that asks Python for the smaller": (
        TraceError,
        ordered("WorkgroupMapping(lambda w, g: (min(w, 1), w // 2))"),
        """
        the workgroup's number has no truth value: it is known only when the kernel runs
          gemm.py:8
              tiles += [WorkgroupMapping(lambda w, g: (min(w, 1), w // 2))]
                                                       ^^^^^^^^^
          write choose(condition, a, b), smaller(a, b), larger(a, b) of tilewave.mapping in place of if, min, max
        """,
    ),
    "a formula that divides to fractions": (
        TraceError,
        ordered("WorkgroupMapping(lambda w, g: (w % 2, w / 2))"),
        """
        the workgroup's number is a whole number, and / may leave a fraction
          gemm.py:8
              tiles += [WorkgroupMapping(lambda w, g: (w % 2, w / 2))]
                                                              ^^^^^
          write //
        """,
    ),
    "a formula that answers with one number": (
        MappingError,
        ordered("WorkgroupMapping(lambda w, g: w)"),
        """
        <lambda> answers with (row, col), not with %workgroup
          gemm.py:8
              tiles += [WorkgroupMapping(lambda w, g: w)]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        """,
    ),
    "a formula with a symbol that has no value": (
        SymbolError,
        ordered("ReorderingConstraint(WORKGROUP_0 + sym.Q, 0)"),
        """
        Q has no value
          gemm.py:8
              tiles += [ReorderingConstraint(WORKGROUP_0 + sym.Q, 0)]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give it one: WaveCompileOptions(subs={Q: …, …})
          or leave it open until the call: dynamic_symbols=[Q]
        """,
    ),
    "a formula with a lane": (
        SymbolError,
        ordered("ReorderingConstraint(THREAD_0, 0)"),
        """
        the order of tiles depends on THREAD_0, but a tile is a whole workgroup's, and no lane is known there
          gemm.py:8
              tiles += [ReorderingConstraint(THREAD_0, 0)]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write it with WORKGROUP_0, WORKGROUP_1, WORKGROUP_2 and sizes
        """,
    ),
    "a formula for a dimension that the grid has not": (
        ConstraintError,
        ordered("ReorderingConstraint(WORKGROUP_0, 5)"),
        """
        the grid has no dimension 5
          gemm.py:8
              tiles += [ReorderingConstraint(WORKGROUP_0, 5)]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          its dimensions are 0 to 2
        """,
    ),
    "a dimension that the grid has not": (
        ConstraintError,
        HEAD.replace("WorkgroupConstraint(N, 64, 1)", "WorkgroupConstraint(N, 64, 5)") + GEMM + COMPILE,
        """
        the grid has no dimension 5
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 5), TilingConstraint(K, 32)]
                                                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          its dimensions are 0 to 4
        """,
    ),
    "a dim that is to go with nobody": (
        ConstraintError,
        ordered("WorkgroupConstraint(K, 64, 2, primary=False)"),
        """
        K is to go with another dim of the grid, but nobody cuts dimension 2
          gemm.py:8
              tiles += [WorkgroupConstraint(K, 64, 2, primary=False)]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave primary=False out
        """,
    ),
    "a dim that is cut and goes with another": (
        ConstraintError,
        ordered("WorkgroupConstraint(N, 64, 0, primary=False)"),
        """
        N is to go with another dim of the grid, but is cut over the grid itself
          gemm.py:8
              tiles += [WorkgroupConstraint(N, 64, 0, primary=False)]
                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave primary=False out
        """,
    ),
    "steps of a dim that has no tiles": (
        ConstraintError,
        ordered("TilingConstraint(T, iters=3)").replace("tiles +=", "T = sym.T; tiles +="),
        """
        iters says how many tiles of T are walked, but it has none
          gemm.py:8
              T = sym.T; tiles += [TilingConstraint(T, iters=3)]
                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write TilingConstraint(T, BLOCK_T, iters=…), or give iterate a condition
        """,
    ),
    "more tiles than a launch can number": (
        ConstraintError,
        HEAD + GEMM + "wave_compile(WaveCompileOptions(subs={M: 2**24, N: 2**24, K: 96}), gemm)",
        """
        a grid of 262144×262144 has 68719476736 tiles; a launch numbers at most 2147483647
          gemm.py:6
              tiles = [WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1), TilingConstraint(K, 32)]
                                                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          cut it into larger tiles
        """,
    ),
    "an order that depends on an open symbol": (
        CallError,
        HEAD
        + "tiles += [WorkgroupMapping(mapping.grouped(sym.WGM))]\n"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=[sym.WGM, sym.W]), gemm).schedule",
        """
        gemm: the order depends on WGM
          gemm.py:20
              wave_compile(WaveCompileOptions(subs=sizes, dynamic_symbols=[sym.WGM, sym.W]), gemm).schedule
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write schedule_for(WGM=…, W=…)
        """,
    ),
    "an index mapping with too few iterators": (
        TraceError,
        HEAD + "IndexMapping(1, inputs={M: IndexMapping.iterator(0), N: IndexMapping.iterator(1)}, outputs={})",
        """
        iterator(1) is not among the 1 iterators
          gemm.py:8
              IndexMapping(1, inputs={M: IndexMapping.iterator(0), N: IndexMapping.iterator(1)}, outputs={})
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write num_iterators=n for IndexMapping.iterator(0) to iterator(n - 1), one for each dim of the tile
        """,
    ),
    "an index mapping with too many iterators": (
        TraceError,
        HEAD + "IndexMapping(2, inputs={M: IndexMapping.iterator(0)}, outputs={M: IndexMapping.iterator(0)})",
        """
        the mapping has 2 iterators, but iterator(1) is nowhere in it
          gemm.py:8
              IndexMapping(2, inputs={M: IndexMapping.iterator(0)}, outputs={M: IndexMapping.iterator(0)})
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write num_iterators=n for IndexMapping.iterator(0) to iterator(n - 1), one for each dim of the tile
        """,
    ),
    "an index mapping of lists": (
        TraceError,
        HEAD + "IndexMapping(1, inputs=[IndexMapping.iterator(0)], outputs={M: IndexMapping.iterator(0)})",
        """
        the mapping's inputs are a dict from dims to places, not [IndexMapping.iterator(0)]
          gemm.py:8
              IndexMapping(1, inputs=[IndexMapping.iterator(0)], outputs={M: IndexMapping.iterator(0)})
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write inputs={M: IndexMapping.iterator(0), …}
        """,
    ),
    "an iterator for two dims of a tile": (
        TraceError,
        reading("inputs={M: i, K: j}, outputs={M: i, K: i}"),
        """
        the mapping's outputs name M and K of the tile by one iterator, iterator(0)
          gemm.py:9
              there = IndexMapping(2, inputs={M: i, K: j}, outputs={M: i, K: i})
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          give each dim of the tile an iterator of its own
        """,
    ),
    "an iterator for no dim of a tile": (
        TraceError,
        reading("inputs={M: i, K: j}, outputs={M: i}"),
        """
        iterator(1) runs over no dim of the tile
          gemm.py:9
              there = IndexMapping(2, inputs={M: i, K: j}, outputs={M: i})
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          name its dim: outputs={…, K: IndexMapping.iterator(1)}
        """,
    ),
    "a dim of a tile by a formula": (
        TraceError,
        reading("inputs={M: i, K: j}, outputs={M: i, K: j + 1}"),
        """
        the mapping's outputs name the tile's dims, each by one iterator; K is iterator(1) + 1
          gemm.py:9
              there = IndexMapping(2, inputs={M: i, K: j}, outputs={M: i, K: j + 1})
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write outputs={K: IndexMapping.iterator(0), …} and shift the other side
        """,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_author_is_told(case, tmp_path, monkeypatch):
    error, source, wanted = CASES[case]
    if sys.version_info < (3, 11) and "      @iterate" in wanted:
        pytest.skip("Python 3.10 gives a decorator's call the line of the function below it")
    found = said(tmp_path, monkeypatch, source, error)
    if os.environ.get("SHOW_MESSAGES"):
        print(f"\n### {case}\n{found}")
    same(found, wanted)


def test_the_authors_line_is_found_behind_a_cached_property():
    ours = {"__name__": "tilewave.made_up"}
    source = """
    from functools import cached_property
    from tilewave.errors import here
    class Lazy:
        @cached_property
        def loc(self):
            return here()
    """
    exec(textwrap.dedent(source), ours)
    assert ours["Lazy"]().loc.file == __file__
