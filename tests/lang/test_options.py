# ruff: noqa: E501  (the messages are as a terminal shows them)
"""No option is taken and ignored: it has its effect, is refused with a remedy, or the compiled kernel says what was taken."""

import json
import sys
import zipfile

import numpy as np
import pytest
from kernels import *
from messages import GEMM, HEAD, said, same

from tilewave.cli.main import main
from tilewave.errors import CallError, ConstraintError, SavedKernelError, TilewaveError, TraceError
from tilewave.sim import Gemm, simulate
from tilewave.sim.dispatch import Residency

COMPILE = HEAD + GEMM + "wave_compile(WaveCompileOptions(subs=sizes, OPTIONS), gemm)"
HARDWARE = HEAD + "hardware = HardwareConstraint(OPTIONS)"
READ = (
    HEAD
    + GEMM.replace("read(a)", "read(a, elements_per_thread=OPTIONS)")
    + "wave_compile(WaveCompileOptions(subs=sizes), gemm)"
)

CASES = {
    "a schedule by its name": (
        TilewaveError,
        COMPILE,
        "schedule='prefetch'",
        """
        schedule is 'prefetch', no SchedulingType
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, schedule='prefetch'), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write schedule=SchedulingType.PREFETCH
        """,
    ),
    "a schedule by its other name": (
        TilewaveError,
        COMPILE,
        "schedule='NONE'",
        """
        schedule is 'NONE', no SchedulingType
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, schedule='NONE'), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write schedule=SchedulingType.NONE
        """,
    ),
    "stages that nothing fills": (
        TilewaveError,
        COMPILE,
        "target='gfx942', num_stages=2, schedule=SchedulingType.NONE",
        """
        num_stages is 2, but with SchedulingType.NONE a loop on gfx942 has one stage
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, target='gfx942', num_stages=2, schedule=SchedulingType.NONE), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave schedule out, or leave num_stages out
        """,
    ),
    "no stages, whatever the target": (
        TilewaveError,
        COMPILE,
        "target='numpy', num_stages=0",
        """
        num_stages is 0
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, target='numpy', num_stages=0), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          a loop needs one stage at least
        """,
    ),
    "an instruction set of another machine": (
        TilewaveError,
        COMPILE,
        "target='gfx942', instruction_set='avx2'",
        """
        instruction_set is 'avx2', but the target is gfx942
          gemm.py:19
              wave_compile(WaveCompileOptions(subs=sizes, target='gfx942', instruction_set='avx2'), gemm)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          instruction sets are those of the CPU: write target="cpu", or leave instruction_set out
        """,
    ),
    "a wave of 33 lanes": (
        ConstraintError,
        HARDWARE,
        "threads_per_wave=33",
        """
        a wave of 33 lanes does not exist
          gemm.py:8
              hardware = HardwareConstraint(threads_per_wave=33)
                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write threads_per_wave=64 (AMD) or 32 (NVIDIA); a target whose waves differ takes its own
        """,
    ),
    "an instruction by its name": (
        ConstraintError,
        HARDWARE,
        "mma_type='f32_16x16x16_f16'",
        """
        mma_type is 'f32_16x16x16_f16', no MMAType
          gemm.py:8
              hardware = HardwareConstraint(mma_type='f32_16x16x16_f16')
                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write mma_type=MMAType.F32_16x16x16_F16, or leave it out
        """,
    ),
    "vector shapes that are none": (
        ConstraintError,
        HARDWARE,
        "vector_shapes=16",
        """
        vector_shapes is 16, no dict
          gemm.py:8
              hardware = HardwareConstraint(vector_shapes=16)
                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          leave it out: it has no effect
        """,
    ),
    "a dimension walked twice": (
        ConstraintError,
        HEAD + "tiles += [TilingConstraint(K, 16)]" + GEMM + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        "",
        """
        K is tiled for iterate twice
          gemm.py:8
              tiles += [TilingConstraint(K, 16)]
                        ^^^^^^^^^^^^^^^^^^^^^^^
          the first is at gemm.py:6; keep one of them
        """,
    ),
    "a dimension cut twice among waves": (
        ConstraintError,
        HEAD
        + "tiles += [WaveConstraint(M, 32), WaveConstraint(M, 16)]"
        + GEMM
        + "wave_compile(WaveCompileOptions(subs=sizes), gemm)",
        "",
        """
        M is cut among waves twice
          gemm.py:8
              tiles += [WaveConstraint(M, 32), WaveConstraint(M, 16)]
                                               ^^^^^^^^^^^^^^^^^^^^^
          the first is at gemm.py:8; keep one of them
        """,
    ),
    "elements that are no number": (
        TraceError,
        READ,
        "-8",
        """
        read: elements_per_thread is -8, no number of elements
          gemm.py:15
              return mma(read(a, elements_per_thread=-8), read(b), acc)
                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          write elements_per_thread=8, say, or leave it out
        """,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_would_change_nothing_is_refused(case, tmp_path, monkeypatch):
    error, source, options, wanted = CASES[case]
    same(said(tmp_path, monkeypatch, source.replace("OPTIONS", options), error), wanted)


@pytest.mark.parametrize("lanes", [True, 0, 63, 128, 64.5, "64"])
def test_other_numbers_of_lanes(lanes):
    with pytest.raises(ConstraintError, match="lanes does not exist"):
        HardwareConstraint(threads_per_wave=lanes)
    assert [HardwareConstraint(threads_per_wave=n).threads_per_wave for n in (32, 64)] == [32, 64]


def test_elements_per_thread_may_be_a_symbol():
    @wave(tiling())
    def copy(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a, elements_per_thread=sym.WIDTH), c, elements_per_thread=sym.WIDTH)

    assert str(compiled(copy, subs=sizes(64, 64, 32, WIDTH=4)).kernel).count("per_lane = 4") == 2


# -- what was taken instead --------------------------------------------------------------------------------------------


def cut(m, n, *more):
    return gemm(constraints=[WaveConstraint(M, m), WaveConstraint(N, n), *more])


def test_a_compiled_kernel_says_which_waves_were_taken_and_why():
    resources = compiled(cut(32, 64), subs=sizes(512, 512, 256, 128, 256, 64), target="sm_90a").resources
    assert resources.waves == (12, 1)
    assert resources.not_as_asked == (
        "waves: 4x4 were asked for, 12x1 were taken: f32_64xNx16_f16 is computed by warpgroups, stacked along the "
        "rows, and 4 more load the tiles",
    )


def test_a_compiled_kernel_says_which_instruction_was_taken_and_why():
    wish = HardwareConstraint(mma_type=MMAType.F32_16x16x16_F16)
    subs = sizes(64, 64, 32)
    taken = {t: compiled(gemm(constraints=[wish]), subs=subs, target=t).resources for t in ("sm_90a", "gfx942")}
    assert taken["sm_90a"].not_as_asked == (
        "mma_type: f32_16x16x16_f16 was asked for, f32_64xNx16_f16 was taken: sm_90a multiplies these dtypes so",
    )
    assert taken["gfx942"].not_as_asked == ()


@pytest.mark.parametrize("target", ["gfx942", "gfx950", "sm_90a"])
def test_what_nobody_asked_for_is_not_told(target):
    assert compiled(gemm(), subs=sizes(64, 64, 32), target=target).resources.not_as_asked == ()


# -- the commands ------------------------------------------------------------------------------------------------------

FILE = (
    HEAD
    + GEMM.replace("@wave(tiles)", "@wave([*tiles, WaveConstraint(M, 32), WaveConstraint(N, 16)])")
    + "subs = lambda *_: sizes\n"
)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "gemm.py").write_text(FILE)
    (tmp_path / "itself.py").write_text(FILE + "compiled = wave_compile(WaveCompileOptions(subs=sizes), gemm)\n")

    def run(words):
        monkeypatch.setattr(sys, "argv", ["tilewave", *words.split()])
        try:
            main()
            code = 0
        except SystemExit as leave:
            code = leave.code or 0
        return code, *capsys.readouterr()

    return run


ITS_OWN = "the kernel's constraints and --set decide it; leave it out"
SEARCHED = "the search tries every order with one workgroup per CU or SM, and the closed form; leave it out"
REFUSED = {
    **{f"sim gemm.py {option}": (f"{option.split()[0]} has no effect on a kernel from a file", ITS_OWN) for option in
       ("--shape 64x64x64", "--tile 64x64x64", "--dtype f16", "--out f32", "--workgroups 4")},
    **{f"sim --best {option}": (f"{option.split()[0]} has no effect on --best", SEARCHED) for option in
       ("--map linear()", "--engine closed", "--occupancy 1", "--skew 0")},
    "sim --best --set M=4": ("--set cannot be used with a GEMM", "leave one of the two out"),
    "sim --top 3": ("--top has no effect without --best", "add --best, or leave it out"),
    "map 8x8 --xcd 3": ("--xcd has no effect without --svg", "add --svg FILE, or leave it out"),
    "compile itself.py --target cpu": ("itself.py compiles its kernels itself", "leave --target out: it would change nothing"),
    "compile itself.py --schedule none": ("itself.py compiles its kernels itself", "leave --schedule out: it would change nothing"),
    "diff itself.py --target gfx942": ("itself.py compiles its kernels itself", "leave --target out: it would change nothing"),
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_commands_refuse_what_would_change_nothing(call, words):
    what, remedy = REFUSED[words]
    assert call(words) == (2, "", f"error: {what}\n  {remedy}\n")


def test_the_same_commands_without_it(call):
    for words in ("sim gemm.py --json", "map 8x8 --xcd 3 --svg map.svg", "compile itself.py --json", "diff itself.py"):
        assert call(words)[0] == 0


@pytest.mark.parametrize(("tile", "marks"), [("256..64x128x64", "^^^^^^^"), ("64x256..128x64", "   ^^^^^^^^")])
def test_a_range_that_goes_down_is_refused(call, tile, marks):
    part = next(p for p in tile.split("x") if ".." in p)
    first, last = part.split("..")
    code, out, error = call(f"sim --best --tile {tile}")
    what = f"error: `{part}` goes down; a range goes up, by doubling\n      {tile}\n      {marks}\n  write {last}..{first}\n"
    assert (code, out, error) == (2, "", what)


TOO_LARGE = (
    "a workgroup with a tile of 512×512×512 f16 would need 1,048,576 bytes of shared memory for one step, "
    "but a CU or SM of MI300X has 65,536"
)


def test_a_tile_that_does_not_fit_is_told(call):
    small = "sim --shape 2048x2048x2048 --machine MI300X"
    assert f"\nwarning: {TOO_LARGE}\n" in call(f"{small} --tile 512x512x512")[1]
    assert f"\nwarning: {TOO_LARGE}\n" in call(f"{small} --tile 512x512x512 --compare grouped(2)")[1]
    assert json.loads(call(f"{small} --tile 512x512x512 --json")[1])[0]["warnings"] == [TOO_LARGE]
    assert "warning" not in call(small)[1]
    assert json.loads(call(f"{small} --json")[1])[0]["warnings"] == []


def test_workgroups_that_do_not_fit_together_are_told():
    problem = Gemm(2048, 2048, 2048, (128, 256, 64))
    assert simulate(problem, "MI300X").warnings == ()
    (told,) = simulate(problem, "MI300X", residency=Residency(2, 0.0)).warnings
    assert told.startswith("2 workgroups with tiles of 128×256×64 f16 would need 98,304 bytes")


def test_the_compile_command_says_what_was_taken(call, tmp_path):
    _, out, _ = call("compile gemm.py --target sm_90a --out build")
    assert "waves: 2x4 were asked for, 8x1 were taken: f32_64xNx16_f16 is computed by warpgroups" in out
    assert "function" not in out
    assert sorted(p.name for p in (tmp_path / "build").iterdir()) == ["gemm.ll", "gemm.ptx"]
    record = json.loads(call("compile gemm.py --target sm_90a --json")[1])["gemm"]
    assert record["not_as_asked"][0].startswith("waves: 2x4 were asked for")
    assert "not as asked" not in call("compile gemm.py --target gfx942")[1]


def test_waves_per_block_says_what_wave_constraints_say():
    both = [gemm(constraints=[HardwareConstraint(waves_per_block=(2, 4, 1))]), cut(BLOCK_M / 2, BLOCK_N / 4)]
    asked = [compiled(kernel, subs=sizes(128, 128, 64, 128, 128, 32)).kernel for kernel in both]
    assert asked[0] == asked[1] and asked[0].waves == (2, 4)
    agreeing = cut(BLOCK_M / 2, BLOCK_N / 4, HardwareConstraint(waves_per_block=[2, 4, 1]))
    assert compiled(agreeing, subs=sizes(128, 128, 64, 128, 128, 32)).kernel.waves == (2, 4)


@pytest.mark.parametrize("target", ["numpy", "cpu", "gfx942", "sm_90a"])
@pytest.mark.parametrize(
    ("schedule", "taken"),
    [("MODULO", "PREFETCH"), ("FOUR_STAGE", "PREFETCH"), ("PREFETCH_ATTENTION", "PREFETCH"), ("MANUAL", "NONE")],
)
def test_a_schedule_that_is_none_of_ours_is_taken_as_one_that_is_and_why_says_so(schedule, taken, target):
    made = {
        name: compiled(gemm(), subs=sizes(64, 64, 96), target=target, schedule=SchedulingType[name])
        for name in (schedule, taken)
    }
    assert made[schedule].ir() == made[taken].ir()
    first, *rest = made[schedule].why()
    assert first.record == {
        "pass": "options",
        "line": "",
        "what": f"SchedulingType.{schedule} is taken as SchedulingType.{taken}: no pass orders a loop in that way",
        "remedy": f"write SchedulingType.{taken}, which is the same here",
    }
    assert [row.record for row in rest] == [row.record for row in made[taken].why()]
    assert not any(row.step == "options" for row in made[taken].why())


# -- assumptions -------------------------------------------------------------------------------------------------------


def called_with(made, k, way="call"):
    a, b, c = np.ones((70, k), np.float16), np.ones((90, k), np.float16), np.full((70, 90), np.nan, np.float32)
    {"call": made, "interpret": made.interpret}[way](a, b, c)
    return c


def assuming(*conditions):
    return gemm(constraints=[Assumption(condition) for condition in conditions])


def test_an_assumption_changes_nothing_where_it_holds():
    held = assuming(K > 2 * BLOCK_K, Eq(M % 10, 0), Ne(N, 3), Max(M, N) <= 90, ceiling(K / BLOCK_K) >= 3)
    for target in ("cpu", "gfx942", "sm_90a"):
        made, plain = (compiled(one, subs=sizes(70, 90, 96), target=target) for one in (held, gemm()))
        assert made.ir() == plain.ir()
        assert not made.assumed


def row_sums(*constraints):
    @wave([WorkgroupConstraint(M, 16, 0), TilingConstraint(N, 64), *constraints])
    def summed(a: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32], c: Memory[M, GLOBAL_ADDRESS_SPACE, f32]):
        @iterate(N, init_args=[Register[M, f32](0.0)])
        def total(acc):
            return acc + cast(self_index(N), f32).sum(dim=N) + read(a).sum(dim=N)

        write(total, c)

    return summed


def test_a_dim_that_is_a_multiple_of_its_tile_is_not_masked():
    """Of the indices along N only those of elements are added."""
    masked, whole, other = (
        str(row_sums(*each).compile(target="numpy").kernel)
        for each in ((), (Assumption(Eq(N % 128, 0)),), (Assumption(Eq(N % 32, 0)),))
    )
    assert "select(" in masked and other == masked
    assert "select(" not in whole
    made = row_sums(Assumption(Eq(N % 128, 0))).compile(target="numpy")
    found = np.full(20, np.nan, np.float32)
    made.interpret(np.ones((20, 256), np.float32), found)
    assert (found == 255 * 128 + 256).all()
    with pytest.raises(CallError, match="it is assumed that"):
        made.interpret(np.ones((20, 192), np.float32), found)


@pytest.mark.parametrize("way", ["call", "interpret"])
def test_an_assumption_on_open_sizes_is_checked_at_every_call(way, tmp_path):
    subs = {s: n for s, n in sizes(70, 90, 96).items() if s not in (M, N, K)}
    made = compiled(assuming(K > 2 * BLOCK_K, M * N < 70 * 90 + 1), subs=subs, target="cpu")
    made.save(tmp_path / "kernel")
    for one in (made, load(tmp_path / "kernel")):
        for k in (96, 65, 96):
            assert (called_with(one, k, way) == k).all()
        for k in (64, 10, 64):  # also when it was called with them before
            with pytest.raises(CallError, match=f"gemm: it is assumed that 64 < K, but K is {k}\n"):
                called_with(one, k, way)
        assert (called_with(one, 96, way) == 96).all()


def test_an_assumption_on_a_symbol_of_the_call():
    made = compiled(assuming(sym.GROUP < 4), subs=sizes(70, 90, 96), target="numpy", dynamic_symbols=[sym.GROUP])
    arrays = np.ones((70, 96), np.float16), np.ones((90, 96), np.float16), np.empty((70, 90), np.float32)
    made(*arrays, GROUP=3)
    with pytest.raises(CallError, match="it is assumed that GROUP < 4, but GROUP is 5"):
        made(*arrays, GROUP=5)


@pytest.mark.parametrize("damage", [["<", 64], [["<", 64, "Z"], "x", 1], [["@", 1, 2], "x", 1], 7, [[True], "x", 1]])
def test_an_assumption_in_a_damaged_file_is_refused(damage, tmp_path):
    subs = {s: n for s, n in sizes(70, 90, 96).items() if s not in (M, N, K)}
    compiled(assuming(K > 2 * BLOCK_K), subs=subs, target="cpu").save(tmp_path / "kernel")
    with zipfile.ZipFile(tmp_path / "kernel") as old:
        members = {name: old.read(name) for name in old.namelist()}
    about = json.loads(members["kernel.json"])
    assert about["assumed"][0][0] == ["<", 64, "K"]
    members["kernel.json"] = json.dumps({**about, "assumed": [damage]}).encode()
    with zipfile.ZipFile(tmp_path / "kernel", "w") as new:
        for name, content in members.items():
            new.writestr(name, content)
    with pytest.raises(SavedKernelError):
        load(tmp_path / "kernel")
