"""Lane-level ops as machine code of gfx942 and gfx950: emulated with every check on, against numpy and float64."""

import math

import ml_dtypes
import numpy as np
import pytest
from function_values import NAMES, check
from machine_code import MachineCode, kernel_of

from tilewave.emulator.findings import EmulationError
from tilewave.errors import TargetError
from tilewave.interp.lanes import interpret_lanes
from tilewave.ir.types import DTYPES
from tilewave.machine.chips import CHIPS
from tilewave.machine.matrix import INSTRUCTIONS, NAMED

pytestmark = pytest.mark.share(8)

AMD = ("gfx942", "gfx950")
UNIT = 2.0**-24
FLOATS = ("f16", "bf16", "f32", "f64", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")


def poisoned(shape, dtype):
    """What no kernel computes by chance."""
    return np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else 77, dtype)


def wave_kernel(arguments, body, waves=1, workgroups=1):
    head = f"kernel @k {{workgroups = {workgroups}, level = lane, waves = [1, {waves}], lanes = 64}} ({arguments})"
    return kernel_of(f"{head} {{\n  %lane = lane() : index\n  %c0 = const() {{value = 0}} : index\n{body}\n}}")


def rows_of_16(body, *dtypes, out):
    """Each lane takes a row of 16 from every input, %x0, %x1, …, and stores %y."""
    inputs = [f"%a{i}: memory<64x16x{d}, global>" for i, d in enumerate(dtypes)]
    steps = "{steps = [[0, 1]]}"
    loads = [f"%x{i} = load(%a{i}, [%lane, %c0], []) {steps} : vector<16x{d}>" for i, d in enumerate(dtypes)]
    text = "\n".join([*loads, body, f"store(%y, %out, [%lane, %c0], []) {steps}"])
    return wave_kernel(", ".join([*inputs, f"%out: memory<64x16x{out}, global>"]), text)


def random_of(dtype, shape=(64, 16), scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_int:
        return rng.integers(-100, 100, shape).astype(dtype.numpy)
    return (rng.standard_normal(shape) * scale).astype(np.float32).astype(dtype.numpy)


def assert_same(found, wanted):
    """Bit for bit, but for the payload of what is not a number."""
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def agrees_with_the_interpreter(kernel, *arrays, chip="gfx942", any_strides=(), **symbols):
    """Assert that all arrays are bit-equal after the machine code and after the interpreter."""
    meant = [a.copy() for a in arrays]
    interpret_lanes(kernel, meant, symbols)
    MachineCode(kernel, chip, any_strides).run(*arrays, **symbols)
    for found, wanted in zip(arrays, meant, strict=True):
        assert_same(found, wanted)


# -- numbers --------------------------------------------------------------------------------------------------------


def test_functions_are_as_near_as_the_documents_say():
    x = random_of(DTYPES["f32"], scale=3.0)
    positive, angle = np.abs(x) + np.float32(2.0**-10), x * np.float32(70.0)
    names = [name for name in NAMES if name != "reciprocal"]  # which is a quotient
    of = {name: 1 if "log" in name or "sqrt" in name else 2 if name in ("sin", "cos") else 0 for name in names}
    ops = {name: {"round": "round_away", "roundeven": "round_even"}.get(name, name) for name in names}
    bodies = [f"%y{i} = {ops[name]}(%x{of[name]}) : vector<16xf32>" for i, name in enumerate(names)]
    outputs = [poisoned(x.shape, np.float32) for _ in names]
    kernel = all_at_once(bodies, "f32", "f32", "f32", outputs=["f32"] * len(names))
    MachineCode(kernel).run(x, positive, angle, *outputs)
    for name, y in zip(names, outputs, strict=True):
        check("gfx942, gfx950", name, "f32", (x, positive, angle)[of[name]].ravel(), y.ravel())


def test_functions_at_their_ends():
    x = np.zeros((64, 16), np.float32)
    x[0, :6] = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-20]
    ends = {
        "tanh": [0.0, -0.0, 1.0, -1.0, np.nan, np.float32(1e-20)],
        "erf": [0.0, -0.0, 1.0, -1.0, np.nan, np.float32(1e-20) * 2 / math.sqrt(math.pi)],
        "exp": [1.0, 1.0, np.inf, 0.0, np.nan, 1.0],
    }
    bodies = [f"%y{i} = {name}(%x0) : vector<16xf32>" for i, name in enumerate(ends)]
    outputs = [poisoned(x.shape, np.float32) for _ in ends]
    MachineCode(all_at_once(bodies, "f32", outputs=["f32"] * 3)).run(x, *outputs)
    for y, wanted in zip(outputs, ends.values(), strict=True):
        np.testing.assert_allclose(y[0, :6], wanted, rtol=2 * UNIT)
        assert np.signbit(y[0, 1]) == np.signbit(wanted[1])


def test_a_function_of_f64_is_an_error_that_names_the_line():
    kernel = rows_of_16("%y = tanh(%x0) : vector<16xf64>", "f64", out="f64")
    with pytest.raises(TargetError, match="computes it in f32, not in f64"):
        MachineCode(kernel)


def all_at_once(bodies, *inputs, outputs):
    """Return one kernel that stores %y0, %y1, … of the bodies, each to a separate output."""
    steps = "{steps = [[0, 1]]}"
    arguments = [f"%a{i}: memory<64x16x{d}, global>" for i, d in enumerate(inputs)]
    arguments += [f"%out{i}: memory<64x16x{d}, global>" for i, d in enumerate(outputs)]
    loads = [f"%x{i} = load(%a{i}, [%lane, %c0], []) {steps} : vector<16x{d}>" for i, d in enumerate(inputs)]
    stores = [f"store(%y{i}, %out{i}, [%lane, %c0], []) {steps}" for i in range(len(outputs))]
    return wave_kernel(", ".join(arguments), "\n".join([*loads, *bodies, *stores]))


@pytest.mark.parametrize("old", [*FLOATS, "i8", "i32", "i64", "bool"])
def test_every_cast_means_what_the_interpreter_says(old):
    x = random_of(DTYPES[old], scale=30.0)
    news = [*FLOATS, *([] if DTYPES[old].is_float else ["i8", "i32", "i64"])]
    if DTYPES[old].is_float:
        x[0, :8] = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-3, 448.0, 2.0**-9]).astype(x.dtype)
    bodies = [f"%y{i} = cast(%x0) : vector<16x{new}>" for i, new in enumerate(news)]
    outputs = [np.zeros(x.shape, DTYPES[new].numpy) for new in news]
    agrees_with_the_interpreter(all_at_once(bodies, old, outputs=news), x, *outputs)


@pytest.mark.parametrize("old", ["f16", "f32", "f64"])
def test_floats_become_integers_towards_zero(old):
    x, news = random_of(DTYPES[old], scale=30.0), ["i8", "i32", "i64"]
    bodies = [f"%y{i} = cast(%x0) : vector<16x{new}>" for i, new in enumerate(news)]
    outputs = [np.zeros(x.shape, DTYPES[new].numpy) for new in news]
    agrees_with_the_interpreter(all_at_once(bodies, old, outputs=news), x, *outputs)


@pytest.mark.parametrize("dtype", ["f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"])
def test_every_8_bit_float_is_read_and_every_f32_near_one_rounded(dtype):
    codes = np.resize(np.arange(256, dtype=np.uint8), (64, 16)).view(DTYPES[dtype].numpy)
    y = np.zeros((64, 16), np.float32)
    agrees_with_the_interpreter(rows_of_16("%y = cast(%x0) : vector<16xf32>", dtype, out="f32"), codes, y)
    values = np.unique(codes.astype(np.float32)[np.isfinite(codes.astype(np.float32))])
    ties = (values[1:] + values[:-1]) / 2
    x = np.concatenate([ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf)), values])
    x = np.resize(x, (64, 16)).astype(np.float32)
    agrees_with_the_interpreter(
        rows_of_16(f"%y = cast(%x0) : vector<16x{dtype}>", "f32", out=dtype), x, np.zeros(x.shape, DTYPES[dtype].numpy)
    )


CONVERTED = [(chip, dtype) for chip in ("gfx942", "gfx950") for dtype in CHIPS[chip].converts]


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 7, 16])
@pytest.mark.parametrize(("chip", "dtype"), CONVERTED)
def test_8_bit_floats_that_a_chip_converts_itself_in_vectors_of_any_width(chip, dtype, width):
    """Every code, every tie and its neighbours, and what is too large, infinite or no number."""
    codes = np.arange(256, dtype=np.uint8).view(DTYPES[dtype].numpy)
    known = np.unique(codes.astype(np.float32)[np.isfinite(codes.astype(np.float32))])
    ties = (known[1:] + known[:-1]) / 2
    near = [np.nextafter(ties, np.float32(to)) for to in (-np.inf, np.inf)]
    beyond = known.max() * np.array([1.01, 1.04, 1.07, 2, 1e30, np.inf, np.nan])
    x = np.concatenate([ties, *near, beyond, -beyond, [0.0, -0.0, 1e-45, -1e-45]]).astype(np.float32)
    steps, shape = "{steps = [[0, 1]]}", (64, width)
    text = f"""
      %x = load(%a, [%lane, %c0], []) {steps} : vector<{width}x{dtype}>
      %wide = cast(%x) : vector<{width}xf32>
      store(%wide, %as_f32, [%lane, %c0], []) {steps}
      %y = load(%b, [%lane, %c0], []) {steps} : vector<{width}xf32>
      %narrow = cast(%y) : vector<{width}x{dtype}>
      store(%narrow, %as_f8, [%lane, %c0], []) {steps}"""
    kinds = {"a": dtype, "b": "f32", "as_f32": "f32", "as_f8": dtype}
    arguments = ", ".join(f"%{name}: memory<64x{width}x{kind}, global>" for name, kind in kinds.items())
    kernel = wave_kernel(arguments, text)
    for first in range(0, len(x), 64 * width):  # all of them, in as many launches as that takes
        part = np.resize(x[first : first + 64 * width], shape)
        outputs = np.zeros(shape, np.float32), np.zeros(shape, codes.dtype)
        agrees_with_the_interpreter(kernel, np.resize(np.roll(codes, -first), shape), part, *outputs, chip=chip)
    assert "v_cvt_pk_f32_" in MachineCode(kernel, chip).asm or width == 1


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "i32", "i64", "f8e4m3fn"])
def test_arithmetic_of_every_dtype(dtype):
    a, b = (random_of(DTYPES[dtype], seed=seed) for seed in (1, 2))
    words = ("add", "sub", "mul", "min", "max")
    bodies = [f"%y{i} = {word}(%x0, %x1) : vector<16x{dtype}>" for i, word in enumerate(words)]
    outputs = [np.zeros(a.shape, a.dtype) for _ in words]
    agrees_with_the_interpreter(all_at_once(bodies, dtype, dtype, outputs=[dtype] * 5), a, b, *outputs)


@pytest.mark.parametrize("dtype", ["f16", "f32", "i32"])
def test_comparisons_choose(dtype):
    a, b = (random_of(DTYPES[dtype], seed=seed) for seed in (1, 2))
    b[:, ::3] = a[:, ::3]
    bodies = []
    for i, word in enumerate(("less", "less_equal", "equal", "not_equal")):
        bodies.append(f"%t{i} = {word}(%x0, %x1) : vector<16xbool>\n%u{i} = not(%t{i}) : vector<16xbool>")
        bodies.append(f"%v{i} = or(%u{i}, %u{i}) : vector<16xbool>\n%w{i} = and(%u{i}, %v{i}) : vector<16xbool>")
        bodies.append(f"%y{i} = select(%w{i}, %x0, %x1) : vector<16x{dtype}>")
    outputs = [np.zeros(a.shape, a.dtype) for _ in range(4)]
    agrees_with_the_interpreter(all_at_once(bodies, dtype, dtype, outputs=[dtype] * 4), a, b, *outputs)


def test_division_of_integers_rounds_down():
    a, b = (random_of(DTYPES["i32"], seed=seed) for seed in (1, 2))
    b[b == 0] = 3
    bodies = [f"%y{i} = {word}(%x0, %x1) : vector<16xi32>" for i, word in enumerate(("floor_div", "mod"))]
    outputs = [np.zeros(a.shape, np.int32) for _ in range(2)]
    agrees_with_the_interpreter(all_at_once(bodies, "i32", "i32", outputs=["i32"] * 2), a, b, *outputs)


def test_indices_beyond_32_bits():
    body = """
  %big = const() {value = 5000000000} : index
  %far = add(%big, %lane) : index
  %seven = const() {value = 7} : index
  %q = floor_div(%far, %seven) : index
  %r = mod(%far, %seven) : index
  %m = mul(%q, %seven) : index
  %s = add(%m, %r) : index
  %t = add(%s, %q) : index
  %v = broadcast(%t) : vector<1xindex>
  %y = cast(%v) : vector<1xi64>
  store(%y, %out, [%lane], []) {steps = [[1]]}"""
    out = np.zeros(64, np.int64)
    MachineCode(wave_kernel("%out: memory<64xi64, global>", body)).run(out)
    far = 5_000_000_000 + np.arange(64)
    np.testing.assert_array_equal(out, far + far // 7)


def test_a_symbol_given_at_the_call():
    body = """
  %m = mul(%n, %lane) : index
  %three = const() {value = 3} : index
  %q = floor_div(%m, %three) : index
  %v = broadcast(%q) : vector<1xindex>
  %y = cast(%v) : vector<1xi64>
  store(%y, %out, [%lane], []) {steps = [[1]]}"""
    code = MachineCode(wave_kernel("%out: memory<64xi64, global>, %n: index", body))
    for n in (7, -7):
        out = np.zeros(64, np.int64)
        code.run(out, n=n)
        np.testing.assert_array_equal(out, n * np.arange(64) // 3)


# -- vectors --------------------------------------------------------------------------------------------------------


def test_ramps_broadcasts_and_permutations():
    body = """
  %r = ramp() {steps = [100, 10, 1]} : vector<2x3x4xindex>
  %l = broadcast(%lane) : vector<2x3x4xindex>
  %s = add(%r, %l) : vector<2x3x4xindex>
  %p = permute(%s) {axes = [2, 0, 1]} : vector<4x2x3xindex>
  %row = ramp() {steps = [1000]} : vector<3xindex>
  %b = broadcast(%row) {axes = [2]} : vector<4x2x3xindex>
  %t = add(%p, %b) : vector<4x2x3xindex>
  %y = cast(%t) : vector<4x2x3xi32>
  store(%y, %out, [%lane, %c0], []) {steps = [[0, 6], [0, 3], [0, 1]]}"""
    out = np.zeros((64, 24), np.int32)
    agrees_with_the_interpreter(wave_kernel("%out: memory<64x24xi32, global>", body), out)
    assert len(np.unique(out)) > 24


# -- memory ---------------------------------------------------------------------------------------------------------


def copy_kernel(shape, dtype, at, steps, registers, guard="[0, 1]", mask=""):
    m, n = shape
    arguments = f"%a: memory<{m}x{n}x{dtype}, global>, %out: memory<{m}x{n}x{dtype}, global>"
    access = f"{{steps = {steps}, guard = {guard}}}"
    return wave_kernel(
        arguments,
        f"""
  %c4 = const() {{value = 4}} : index
  %c8 = const() {{value = 8}} : index
  %c16 = const() {{value = 16}} : index
  %c50 = const() {{value = 50}} : index
  %row = floor_div(%lane, %c4) : index
  %chunk = mod(%lane, %c4) : index
  %col = mul(%chunk, %c8) : index
  %few = less(%lane, %c50) : bool
  %x = load(%a, {at}, [{mask}]) {access} : vector<{registers}x{dtype}>
  store(%x, %out, {at}, [{mask}]) {access}""",
    )


SHAPES = [(32, 32), (29, 32), (32, 28), (17, 25), (1, 1)]
COPIES = [*((shape, "f16") for shape in SHAPES), *(((17, 26), d) for d in ("f32", "f8e4m3fn", "i8", "f64", "bool"))]


@pytest.mark.parametrize(("shape", "dtype"), COPIES, ids=str)
def test_nothing_outside_is_loaded_or_stored(shape, dtype):
    a = random_of(DTYPES[dtype], shape)
    kernel = copy_kernel(shape, dtype, "[%row, %col]", "[[16, 0], [0, 1]]", "2x8")
    agrees_with_the_interpreter(kernel, a, np.zeros(shape, DTYPES[dtype].numpy))


def test_a_wrong_guard_is_found_by_the_emulator():
    a, out = random_of(DTYPES["f16"], (29, 32)), np.zeros((29, 32), np.float16)
    kernel = copy_kernel((29, 32), "f16", "[%row, %col]", "[[16, 0], [0, 1]]", "2x8", guard="[1]")
    code = MachineCode(kernel, any_strides=["a", "out"])
    with pytest.raises(EmulationError, match="out of bounds"):
        code.run(a, out)


def test_windows_end_where_the_array_ends():
    """Rows beyond the last are not touched even where no guard says so."""
    a, out = random_of(DTYPES["f16"], (29, 32)), np.zeros((29, 32), np.float16)
    kernel = copy_kernel((29, 32), "f16", "[%row, %col]", "[[16, 0], [0, 1]]", "2x8", guard="[1]")
    MachineCode(kernel).run(a, out)
    np.testing.assert_array_equal(out, a)


def test_masked_lanes_touch_nothing():
    a = random_of(DTYPES["f16"], (32, 32))
    kernel = copy_kernel((32, 32), "f16", "[%row, %col]", "[[16, 0], [0, 1]]", "2x8", guard="[]", mask="%few")
    out = np.zeros((32, 32), np.float16)
    agrees_with_the_interpreter(kernel, a, out)
    assert (out == 0).sum() >= 14 * 16


def test_strides_of_rows_are_known_at_the_call():
    whole, out = random_of(DTYPES["f16"], (32, 100)), np.zeros((32, 32), np.float16)
    kernel = copy_kernel((32, 32), "f16", "[%row, %col]", "[[16, 0], [0, 1]]", "2x8", guard="[]")
    code = MachineCode(kernel)
    arguments = code.arguments([whole, out], {})
    assert arguments[1] == 100
    MachineCode(kernel).run(whole, out)
    np.testing.assert_array_equal(out, whole[:, :32])


@pytest.mark.parametrize("guard", ["[]", "[0, 1]"])
def test_arrays_that_lie_with_any_strides(guard):
    shape = (32, 32) if guard == "[]" else (29, 31)
    a = np.zeros(shape[::-1], np.float16)
    a[...] = random_of(DTYPES["f16"], a.shape)
    kernel = copy_kernel(shape, "f16", "[%row, %col]", "[[16, 0], [0, 1]]", "2x8", guard=guard)
    code = MachineCode(kernel, any_strides=["a"])
    out = np.zeros(shape, np.float16)

    def turned(arrays, symbols):
        found = MachineCode.arguments(code, arrays, symbols)
        found[1:3] = [1, a.shape[1]]
        return found

    code.arguments = turned
    code.run(a, out)
    np.testing.assert_array_equal(out, a.T)


def test_rows_across_registers_make_wide_accesses():
    a, out = random_of(DTYPES["f16"], (32, 32)), np.zeros((32, 32), np.float16)
    kernel = copy_kernel((32, 32), "f16", "[%row, %col]", "[[16, 0], [0, 4], [0, 1]]", "2x2x4", guard="[]")
    agrees_with_the_interpreter(kernel, a, out)
    asm = MachineCode(kernel).asm
    assert asm.count("buffer_load_dwordx4") == 2 and asm.count("buffer_store_dwordx4") == 2


def test_an_array_of_more_than_four_gigabytes_is_reached_in_64_bits():
    """The rows overlap, so that the array is small in memory: row r begins at element r."""
    body = """
  %c4 = const() {value = 4} : index
  %c12000 = const() {value = 12000} : index
  %c51000 = const() {value = 51000} : index
  loop(%c4, []) do (%i: index) {
    %r = mul(%i, %c12000) : index
    %row = add(%r, %lane) : index
    %x = load(%a, [%row, %c51000], []) {steps = [[64, 0], [0, 1]]} : vector<2x8xf16>
    store(%x, %out, [%i, %c0, %lane, %c0], []) {steps = [[0, 1, 0, 0], [0, 0, 0, 1]]}
    yield([])
  }"""
    arguments = "%a: memory<50000x60000xf16, global>, %out: memory<4x2x64x8xf16, global>"
    a, out = random_of(DTYPES["f16"], (110_000,)), np.zeros((4, 2, 64, 8), np.float16)
    code = MachineCode(wave_kernel(arguments, body))
    code.arguments = lambda arrays, symbols: [a, 1, 1, arrays[1], 1024, 512, 8, 1]
    code.run(a, out)
    rows = 12000 * np.arange(4)[:, None, None] + 64 * np.arange(2)[:, None] + np.arange(64)
    np.testing.assert_array_equal(out, a[rows[..., None] + 51000 + np.arange(8)])


def test_which_strides_a_build_is_for():
    kernel = copy_kernel((32, 32), "f16", "[%row, %col]", "[[16, 0], [0, 1]]", "2x8", guard="[]")
    (reach, _) = MachineCode(kernel).lowered.reaches
    assert (reach.name, reach.steps) == ("a", (31, 31))
    assert reach.allows((32, 1)) and reach.allows((0, 1)) and reach.allows((1 << 24, 1))
    assert not reach.allows((1, 32)) and not reach.allows((-32, 1)) and not reach.allows((1 << 26, 1))


def test_positions_of_their_own():
    body = """
  %r = ramp() {steps = [17]} : vector<4xindex>
  %l = broadcast(%lane) : vector<4xindex>
  %s = add(%r, %l) : vector<4xindex>
  %c9 = const() {value = 9} : vector<4xindex>
  %row = floor_div(%s, %c9) : vector<4xindex>
  %col = mod(%s, %c9) : vector<4xindex>
  %x = load_each(%a, [%row, %col], []) : vector<4xf16>
  %y = add(%x, %x) : vector<4xf16>
  %three = const() {value = 3} : vector<4xindex>
  %up = add(%col, %three) : vector<4xindex>
  store_each(%y, %out, [%row, %up], [])"""
    kernel = wave_kernel("%a: memory<11x9xf16, global>, %out: memory<11x9xf16, global>", body)
    agrees_with_the_interpreter(kernel, random_of(DTYPES["f16"], (11, 9)), np.zeros((11, 9), np.float16))


PLACED = [
    ("f16", ""),
    ("f16", ", pad(8)"),
    ("f16", ", pad(2)"),
    ("f16", ", xor(8, 8, 1)"),
    ("f16", ", xor(8, 4, 2)"),
    ("i8", ", pad(4)"),
    ("i8", ", xor(16, 4, 1)"),
    ("f32", ", xor(4, 8, 1)"),
]


@pytest.mark.parametrize(("dtype", "placement"), PLACED)
def test_what_goes_through_shared_memory_comes_back_turned(dtype, placement):
    body = f"""
  %wave = wave() : index
  %s = allocate() : memory<2x64x64x{dtype}, shared{placement}>
  %c1 = const() {{value = 1}} : index
  %c8 = const() {{value = 8}} : index
  %c16 = const() {{value = 16}} : index
  %c64 = const() {{value = 64}} : index
  %w = mul(%wave, %c64) : index
  %t = add(%w, %lane) : index
  %row = floor_div(%t, %c8) : index
  %m = mod(%t, %c8) : index
  %col = mul(%m, %c8) : index
  %x = load(%a, [%row, %col], []) {{steps = [[16, 0], [0, 1]]}} : vector<4x8x{dtype}>
  store(%x, %s, [%c1, %row, %col], []) {{steps = [[0, 16, 0], [0, 0, 1]]}}
  barrier()
  %l16 = mod(%lane, %c16) : index
  %h = floor_div(%lane, %c16) : index
  %h8 = mul(%h, %c8) : index
  %y = load(%s, [%c1, %l16, %h8], []) {{steps = [[0, 16, 0], [0, 0, 32], [0, 0, 1]]}} : vector<4x2x8x{dtype}>
  store(%y, %out, [%wave, %l16, %h8], []) {{steps = [[0, 16, 0], [0, 0, 32], [0, 0, 1]]}}
  %z = load(%s, [%c1, %h8, %l16], []) {{steps = [[0, 1, 0], [0, 0, 16]]}} : vector<8x4x{dtype}>
  store(%z, %turned, [%wave, %l16, %h8], []) {{steps = [[0, 0, 1], [0, 16, 0]]}}
  %u = load(%s, [%c1, %l16, %h8], []) {{steps = [[0, 3, 0], [0, 0, 1]]}} : vector<2x8x{dtype}>
  store(%u, %skew, [%wave, %c0, %l16, %h8], []) {{steps = [[0, 1, 0, 0], [0, 0, 0, 1]]}}"""
    arguments = (
        f"%a: memory<64x64x{dtype}, global>, %out: memory<2x64x64x{dtype}, global>, "
        f"%turned: memory<2x64x32x{dtype}, global>, %skew: memory<2x2x16x32x{dtype}, global>"
    )
    kernel = wave_kernel(arguments, body, waves=2)
    a, kind = random_of(DTYPES[dtype], (64, 64)), DTYPES[dtype].numpy
    out, turned, skew = np.zeros((2, 64, 64), kind), np.zeros((2, 64, 32), kind), np.zeros((2, 2, 16, 32), kind)
    MachineCode(kernel).run(a, out, turned, skew)
    np.testing.assert_array_equal(out[1], a)
    np.testing.assert_array_equal(turned, [a[:32].T] * 2)
    np.testing.assert_array_equal(skew, [[a[:16, :32], a[3:19, :32]]] * 2)


def test_masked_lanes_leave_shared_memory_alone():
    body = """
  %s = allocate() : memory<64xi32, shared>
  %c20 = const() {value = 20} : index
  %few = less(%lane, %c20) : bool
  %nine = const() {value = 9} : vector<1xi32>
  %v = broadcast(%lane) : vector<1xindex>
  %i = cast(%v) : vector<1xi32>
  store(%nine, %s, [%lane], []) {steps = [[1]]}
  store(%i, %s, [%lane], [%few]) {steps = [[1]]}
  barrier()
  %y = load(%s, [%lane], []) {steps = [[1]]} : vector<1xi32>
  %z = load(%s, [%lane], [%few]) {steps = [[1]]} : vector<1xi32>
  store(%y, %out, [%c0, %lane], []) {steps = [[0, 1]]}
  %c1 = const() {value = 1} : index
  store(%z, %out, [%c1, %lane], []) {steps = [[0, 1]]}"""
    out = np.zeros((2, 64), np.int32)
    MachineCode(wave_kernel("%out: memory<2x64xi32, global>", body)).run(out)
    lanes = np.arange(64)
    np.testing.assert_array_equal(out, [np.where(lanes < 20, lanes, 9), np.where(lanes < 20, lanes, 0)])


# -- products -------------------------------------------------------------------------------------------------------


def product_kernel(instruction, chip, repeat, blocks=(2, 3, 2)):
    """One wave multiplies row blocks x column blocks, `repeat` instructions deep in a block, two blocks deep."""
    a_dtype, b_dtype, acc = instruction.dtypes(chip)
    fragment = instruction.fragment(instruction.depth * repeat)
    rows, cols, depths = blocks
    m, n, k = rows * fragment.rows, cols * fragment.rows, depths * fragment.depth
    r, w, group = fragment.rows, fragment.per_lane, 256 // fragment.rows
    operand = f"{{steps = [[{r}, 0], [0, {fragment.depth}], [0, 1]]}} : vector"
    sums = f"vector<{rows}x{cols}x{r * r // 256}x4x{acc}>"
    taken = f"shape = [{r}, {r}, {fragment.depth}], instruction = {instruction.name}"
    body = f"""
  %r = const() {{value = {r}}} : index
  %w = const() {{value = {w}}} : index
  %c4 = const() {{value = 4}} : index
  %in = mod(%lane, %r) : index
  %over = floor_div(%lane, %r) : index
  %deep = mul(%over, %w) : index
  %four = mul(%over, %c4) : index
  %x = load(%a, [%in, %deep], []) {operand}<{rows}x{depths}x{w}x{a_dtype}>
  %y = load(%b, [%in, %deep], []) {operand}<{cols}x{depths}x{w}x{b_dtype}>
  %acc = const() {{value = 2}} : {sums}
  %z = matrix(%x, %y, %acc) {{{taken}, transposed = true}} : {sums}
  store(%z, %c, [%in, %four], []) {{steps = [[{r}, 0], [0, {r}], [0, {group}], [0, 1]]}}
  %s = matrix(%x, %y, %acc) {{{taken}}} : {sums}
  store(%s, %d, [%four, %in], []) {{steps = [[{r}, 0], [0, {r}], [{group}, 0], [1, 0]]}}"""
    arguments = f"%a: memory<{m}x{k}x{a_dtype}, global>, %b: memory<{n}x{k}x{b_dtype}, global>, "
    arguments += f"%c: memory<{m}x{n}x{acc}, global>, %d: memory<{m}x{n}x{acc}, global>"
    return wave_kernel(arguments, body), (m, n, k)


CASES = [(i.name, chip) for i in INSTRUCTIONS for chip in i.chips]


@pytest.mark.parametrize(("name", "chip"), CASES, ids=lambda x: x)
def test_every_matrix_instruction(name, chip):
    instruction = NAMED[name]
    repeat = 2 if instruction.depth * instruction.rows // 64 * DTYPES[instruction.dtypes(chip)[0]].bytes <= 8 else 1
    kernel, (m, n, k) = product_kernel(instruction, chip, repeat)
    a_dtype, b_dtype, acc = (DTYPES[d] for d in instruction.dtypes(chip))
    a, b = random_of(a_dtype, (m, k), seed=1), random_of(b_dtype, (n, k), seed=2)
    c, d = poisoned((m, n), acc.numpy), poisoned((m, n), acc.numpy)
    code = MachineCode(kernel, chip)
    code.run(a, b, c, d)
    wanted = a.astype(np.float64) @ b.astype(np.float64).T + 2
    magnitude = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64).T + 2
    bound = 0.0 if acc.is_int else (k + 1) * UNIT * magnitude
    assert np.all(np.abs(c - wanted) <= bound) and np.all(np.abs(d - wanted) <= bound)
    assert code.asm.count("v_mfma") == 2 * (2 * 3 * 2 * repeat)


# -- control --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loops_carry_vectors_and_numbers(trips):
    body = f"""
  %trips = const() {{value = {trips}}} : index
  %one = const() {{value = 1}} : vector<2x4xf32>
  %two = const() {{value = 2.0}} : vector<2x4xf32>
  %z, %n = loop(%trips, [%one, %lane]) : vector<2x4xf32>, index do (%i: index, %v: vector<2x4xf32>, %m: index) {{
    %d = mul(%v, %two) : vector<2x4xf32>
    %f = add(%m, %i) : index
    yield([%d, %f])
  }}
  %w = broadcast(%n) : vector<2x4xindex>
  %g = cast(%w) : vector<2x4xf32>
  %y = add(%z, %g) : vector<2x4xf32>
  store(%y, %out, [%lane, %c0], []) {{steps = [[0, 4], [0, 1]]}}"""
    out = poisoned((64, 8), np.float32)
    agrees_with_the_interpreter(wave_kernel("%out: memory<64x8xf32, global>", body), out)
    np.testing.assert_array_equal(out, np.arange(64)[:, None] + 2.0**trips + sum(range(trips)) + np.zeros((64, 8)))


def test_a_workgroup_takes_tile_after_tile():
    body = """
  %first = workgroup() : index
  %tiles = const() {value = 11} : index
  %step = const() {value = 3} : index
  %c4 = const() {value = 4} : index
  %end = while([%first]) : index do (%t: index) {
    %more = less(%t, %tiles) : bool
    yield([%more])
  } do (%tile: index) {
    %row = floor_div(%tile, %c4) : index
    %col = mod(%tile, %c4) : index
    %sum = loop(%c4, [%tile]) : index do (%i: index, %s: index) {
      %n = add(%s, %i) : index
      yield([%n])
    }
    %v = broadcast(%sum) : vector<1xindex>
    %y = cast(%v) : vector<1xi32>
    store(%y, %out, [%row, %col, %lane], []) {steps = [[0, 0, 1]]}
    %next = add(%tile, %step) : index
    yield([%next])
  }"""
    out = np.full((3, 4, 64), -1, np.int32)
    kernel = wave_kernel("%out: memory<3x4x64xi32, global>", body, workgroups=3)
    agrees_with_the_interpreter(kernel, out)
    tiles = np.where(np.arange(12) < 11, np.arange(12) + 6, -1).reshape(3, 4)
    np.testing.assert_array_equal(out, np.broadcast_to(tiles[..., None], (3, 4, 64)))
    assert "v_rcp" not in MachineCode(kernel).asm


def test_some_waves_run_what_others_skip():
    body = """
  %wave = wave() : index
  %two = const() {value = 2} : vector<1xi32>
  %one = const() {value = 1} : vector<1xi32>
  store(%one, %out, [%wave, %lane], []) {steps = [[0, 1]]}
  role() {first = 1, last = 3} do () {
    store(%two, %out, [%wave, %lane], []) {steps = [[0, 1]]}
  }"""
    out = np.zeros((4, 64), np.int32)
    MachineCode(wave_kernel("%out: memory<4x64xi32, global>", body, waves=4)).run(out)
    np.testing.assert_array_equal(out, np.broadcast_to([[1], [2], [2], [1]], (4, 64)))


def test_results_are_stored_in_any_dtype():
    x = random_of(DTYPES["f32"])
    body = "%c = const() {value = 0.5} : vector<16xf32>\n%m = mul(%x0, %c) : vector<16xf32>\n"
    for dtype in ("f16", "bf16"):
        y = np.zeros(x.shape, DTYPES[dtype].numpy)
        kernel = rows_of_16(body + f"%y = cast(%m) : vector<16x{dtype}>", "f32", out=dtype)
        for chip in AMD:
            agrees_with_the_interpreter(kernel, x, y, chip=chip)
    assert ml_dtypes.bfloat16 == y.dtype


# -- registers that change places

EVERY_DTYPE = ("f16", "f32", "f64", "f8e5m2", "i8", "i32", "i64", "bool")
MOVES = {
    "neighbours stay": ([1, 2, 8, 4], [0, 0, 0, 0, 4, 0], [0, 0, 16, 1]),
    "pairs part": ([2, 1, 8, 4], [1, 0, 6, 0, 0, 0], [3, 0, 16, 32]),
}


@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("dtype", EVERY_DTYPE)
@pytest.mark.parametrize("chip", AMD)
def test_registers_change_places_within_lanes_and_between_them(moves, dtype, chip):
    of_register, of_lane, far = MOVES[moves]
    body = (
        f"%r = rearrange(%x0) {{of_register = {of_register}, of_lane = {of_lane}}} : vector<16x{dtype}>\n"
        f"%y = shuffle(%r) {{of_register = {far}, of_lane = [1, 2, 4, 32, 8, 17]}} : vector<16x{dtype}>"
    )
    x = random_of(DTYPES[dtype])
    agrees_with_the_interpreter(rows_of_16(body, dtype, out=dtype), x, poisoned(x.shape, x.dtype), chip=chip)
