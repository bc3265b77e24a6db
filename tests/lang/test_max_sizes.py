"""Untiled dimensions whose size only the arrays of a call determine."""

import numpy as np
import pytest
from kernels import G, K, M, N
from messages import HEAD, said, same

import tilewave.call
from tilewave import *
from tilewave.call import room_for
from tilewave.errors import CallError, DimensionError, SymbolError
from tilewave.ir.launch import MOST_OPEN, bind
from tilewave.ir.parse import parse
from tilewave.ir.verify import VerifyError, verify


def twice_kernel(constraints=(), subs=None):
    @wave([WorkgroupConstraint(M, 2, 0), *constraints], subs=subs)
    def twice(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
        write(read(x) * 2.0, y)

    return twice


def rows_kernel():
    @wave([WorkgroupConstraint(M, 2, 0)])
    def rows(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], total: Memory[M, G, f32]):
        row = read(x)
        write(row - row.max(dim=N), y)
        write(row.sum(dim=N), total)

    return rows


def arrays(rows, length):
    x = np.random.default_rng(length).integers(-9, 9, (rows, length)).astype(np.float32)
    return x, np.full_like(x, np.nan)


@pytest.fixture
def rooms(monkeypatch):
    """How long the dims are at most that calls compile for."""
    seen = []

    def counted(kernel, target, subs, longest, sizes):
        seen.append({s.name: most for s, most in longest.items()})
        return compiled_for(kernel, target, subs, longest, sizes)

    compiled_for = tilewave.call.compiled_for
    monkeypatch.setattr(tilewave.call, "compiled_for", counted)
    return seen


def test_room_is_the_next_power_of_two_and_beyond_64_the_next_quarter():
    assert [room_for(n) for n in (0, 1, 16, 17, 32, 33, 65, 1000, 1024)] == [16, 16, 16, 32, 32, 64, 128, 1024, 1024]
    assert sorted({room_for(n) for n in range(129, 2049)}) == [
        *(192, 256, 320, 384, 448, 512),
        *(640, 768, 896, 1024, 1280, 1536, 1792, 2048),
    ]
    assert sorted({room_for(n) for n in range(2049, 16385)}) == [
        *(3072, 4096, 5120, 6144, 7168, 8192),
        *(10240, 12288, 14336, 16384),
    ]
    assert all(n <= room_for(n) < 1.5 * n for n in range(129, 20000))
    assert room_for(65537) == 81920 and room_for(1 << 40) == 1 << 40


def test_a_call_takes_rows_of_any_length_with_one_kernel_for_each_size_bucket(rooms):
    twice = twice_kernel()
    for length in (0, 1, 5, 16, 17, 32, 33, 100, 1000, 17, 3, 128):
        x, y = arrays(5, length)
        twice(x, y)
        np.testing.assert_array_equal(y, 2 * x)
    assert rooms == [{"N": most} for most in (16, 32, 64, 128, 1024)]


@pytest.mark.parametrize("target", ["cpu", "sm_90a", "gfx942"])
@pytest.mark.parametrize("size", [{"max_sizes": {N: 1}}, {"max_sizes": {N: 2}}, {"subs": {N: 0}}], ids=str)
def test_no_lane_reads_a_row_without_elements(target, size):
    @wave([WorkgroupConstraint(M, 2, 0)])
    def rows(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32], total: Memory[M, G, f32]):
        row = read(x)
        write(row * 2.0, y)
        write(row.sum(dim=N), total)

    compiled = rows.compile(target=target, **size)
    for length in range(max(size.get("max_sizes", size.get("subs")).values()) + 1):
        x, y = arrays(5, length)
        total = np.full(5, np.nan, np.float32)
        compiled.interpret(x, y, total, level="tile" if target == "cpu" else "lane")
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_array_equal(total, x.sum(1))


def test_reductions_of_a_call_s_rows(rooms):
    rows = rows_kernel()
    for count, length in ((1, 1), (5, 16), (5, 37), (7, 37), (3, 64), (2, 300)):
        x, y = arrays(count, length)
        total = np.full(count, np.nan, np.float32)
        rows(x, y, total)
        np.testing.assert_array_equal(y, x - x.max(1, keepdims=True))
        np.testing.assert_array_equal(total, x.sum(1))
    assert rooms == [{"N": most} for most in (16, 64, 320)]
    with pytest.raises(CallError, match="rows: N is 0, and of no elements there is no largest or smallest one"):
        rows(*arrays(3, 0), np.empty(3, np.float32))


def test_a_call_that_names_its_arrays_or_a_size_finds_the_same_kernel(rooms):
    twice = twice_kernel()
    x, y = arrays(5, 20)
    twice(y=y, x=x)
    twice(x, y, N=20)
    twice(x=x, y=y, subs={N: 20})
    assert rooms == [{"N": 32}]
    with pytest.raises(CallError, match="N is 21, but x is 5x20, which makes it 20"):
        twice(x, y, N=21)
    with pytest.raises(CallError, match="N is 20 by x, but 40 by y"):
        twice(x, arrays(5, 40)[1])
    with pytest.raises(CallError, match=r"x has 1 axis \(shape \(20,\)\), but the kernel takes"):
        twice(x[0], y)


def test_a_size_that_subs_fixes_is_a_number(rooms):
    twice = twice_kernel(subs={N: 20})
    x, y = arrays(5, 20)
    twice(x, y)
    assert (y == 2 * x).all() and rooms == [{}]


def test_a_dim_that_no_constraint_cuts_and_nobody_takes_whole_has_one_kernel(rooms):
    i = IndexMapping.iterator(0)
    first = IndexMapping(1, inputs={M: i, K: 0}, outputs={M: i})

    @wave([WorkgroupConstraint(M, 2, 0)])
    def first_column(x: Memory[M, K, G, f32], y: Memory[M, G, f32]):
        write(read(x, mapping=first), y)

    for length in (1, 20, 40, 80):
        x, y = arrays(5, length)[0], np.full(5, np.nan, np.float32)
        first_column(x, y)
        assert (y == x[:, 0]).all()
    assert rooms == [{"K": 16}]


def test_several_whole_dims_have_room_each(rooms):
    @wave([])
    def turned(x: Memory[M, N, G, f32], y: Memory[N, M, G, f32]):
        write(read(x), y)

    for shape in ((3, 5), (20, 5), (5, 20), (17, 9)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        y = np.full(shape[::-1], np.nan, np.float32)
        turned(x, y)
        assert (y == x.T).all()
    assert rooms == [{"M": 16, "N": 16}, {"M": 32, "N": 16}, {"M": 16, "N": 32}]


@pytest.mark.parametrize("target", ["cpu", "numpy", "gfx942", "gfx950", "sm_90a"])
def test_longest_on_every_target(target):
    compiled = wave_compile(WaveCompileOptions(target=target, max_sizes={N: 48}), rows_kernel())
    assert repr(compiled) == f"<compiled rows for {target}: any M, N up to 48, right for every size>"
    for length in (1, 37, 48):
        x, y = arrays(5, length)
        total = np.full(5, np.nan, np.float32)
        if target in ("cpu", "numpy"):
            compiled(x, y, total)
        else:
            compiled.interpret(x, y, total, level="lane")
        np.testing.assert_array_equal(y, x - x.max(1, keepdims=True))
        np.testing.assert_array_equal(total, x.sum(1))
    with pytest.raises(CallError, match="N is 49, and it was compiled to take N whole up to 48"):
        compiled.interpret(*arrays(5, 49), np.empty(5, np.float32))
    with pytest.raises(CallError, match="N is 49, and it was compiled to take N whole up to 48"):
        compiled.bound(M=5, N=49)


@pytest.mark.parametrize("target", ["cpu", "numpy", "gfx942", "sm_90a"])
def test_a_file_keeps_it(target, tmp_path):
    wave_compile(WaveCompileOptions(target=target, max_sizes={N: 48}), rows_kernel()).save(tmp_path / "rows.tilewave")
    again = load(tmp_path / "rows.tilewave")
    assert repr(again) == f"<compiled rows for {target}: any M, N up to 48, right for every size>"
    assert again.kernel.limits == (("N", 1, 48),)
    (x, y), total = arrays(5, 48), np.empty(5, np.float32)
    again.interpret(x, y, total)
    np.testing.assert_array_equal(total, x.sum(1))
    for length in (0, 49):
        with pytest.raises(CallError):
            again.interpret(*arrays(5, length), total)


def test_other_room_is_other_code():
    texts = {
        str(wave_compile(WaveCompileOptions(target="numpy", max_sizes={N: n}), rows_kernel()).kernel) for n in (32, 64)
    }
    assert len(texts) == 2


def test_a_bound_kernel_has_no_limits():
    compiled = wave_compile(WaveCompileOptions(target="numpy", max_sizes={N: 32}), rows_kernel())
    assert bind(compiled.kernel, {"M": 3, "N": 20}).limits == ()
    assert parse(str(compiled.kernel)) == compiled.kernel


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ("[[N, 0]]", "limits are [name, least, most] of a size each, not (('N', 0),)"),
        ("[[N, 5, 4]]", "limits are [name, least, most] of a size each"),
        (f"[[N, 0, {MOST_OPEN + 1}]]", "limits are [name, least, most] of a size each"),
        ("[[0, 0, 4]]", "limits are [name, least, most] of a size each"),
        ("[[N, 0, 4], [N, 0, 5]]", "limits name a size twice: N, N"),
        ("[[P, 0, 4]]", "limits name %P, which is not a dynamic size"),
        ("N", "limits are [name, least, most] of a size each, not 'N'"),
    ],
)
def test_a_text_whose_limits_say_nothing_is_refused(limits, why):
    text = (
        f"kernel @k {{workgroups = 1, limits = {limits}}} (%a: memory<{{N}}xf32, global>, %N: index, %P: index) {{\n}}"
    )
    with pytest.raises(VerifyError) as raised:
        verify(parse(text))
    assert why in str(raised.value)


OPTIONS = {
    "no mapping": (SymbolError, "max_sizes=[N]", "max_sizes is [N]", "write max_sizes={N: 4096, …}"),
    "a size of no array": (
        SymbolError,
        "max_sizes={K: 64, N: 64}",
        "max_sizes: K is no dynamic size of rows",
        "leave it out; the dynamic sizes are M, N",
    ),
    "a size that subs fixes": (
        SymbolError,
        "subs={N: 5}, max_sizes={N: 64}",
        "max_sizes: N is no dynamic size of rows",
        "leave it out; the dynamic sizes are M",
    ),
    "no number": (
        SymbolError,
        "max_sizes={N: 2.5}",
        "max_sizes: N is 2.5, no number from 1 to 1,073,741,824",
        "write max_sizes={N: 4096}",
    ),
    "nothing": (
        SymbolError,
        "max_sizes={N: 0}",
        "max_sizes: N is 0, no number from 1 to 1,073,741,824",
        "write max_sizes={N: 4096}",
    ),
}
ROWS = """
@wave([WorkgroupConstraint(M, 4, 0)])
def rows(x: Memory[M, N, G, f32], y: Memory[M, N, G, f32]):
    write(read(x), y)

"""


@pytest.mark.parametrize("case", OPTIONS)
def test_what_longest_says_is_checked(case, tmp_path, monkeypatch):
    error, given, what, remedy = OPTIONS[case]
    line = f'wave_compile(WaveCompileOptions(target="numpy", {given}), rows)'
    expected = f"{what}\n  gemm.py:13\n      {line}\n      {'^' * len(line)}\n  {remedy}"
    same(said(tmp_path, monkeypatch, HEAD + ROWS + line, error), expected)


@pytest.mark.parametrize(("target", "held"), [("gfx942", 524_288), ("gfx950", 524_288), ("sm_90a", 262_144)])
def test_more_than_a_workgroup_holds_is_to_be_taken_in_parts(target, held, tmp_path, monkeypatch):
    fits = held // 4 // 4  # rows of 4, elements of 4 bytes
    line = f'wave_compile(WaveCompileOptions(target="{target}", subs={{M: 8, N: {fits + 1}}}), rows)'
    tile = f"a tile of 4x{fits + 1} f32 is {held + 16:,} bytes"
    expected = f"""
        read: x [M, N] takes N whole: {tile}, and the registers of a workgroup on {target} hold {held:,}
          gemm.py:11
              write(read(x), y)
                    ^^^^^^^
          take it in tiles: add TilingConstraint(N, BLOCK_N), and do this inside an iterate over N
        """
    same(said(tmp_path, monkeypatch, HEAD + ROWS + line, DimensionError), expected)


def test_a_register_tile_needs_room_too():
    @wave([WorkgroupConstraint(M, 4, 0)])
    def zeros(y: Memory[M, N, G, f32]):
        write(Register[M, N, f32](0.0), y)

    with pytest.raises(DimensionError, match="a register tile takes N whole"):
        wave_compile(WaveCompileOptions(target="gfx942", max_sizes={N: 1 << 20}), zeros)
