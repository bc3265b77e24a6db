"""Names of version 0.1 still work, and warn with the new name at the author's line."""

import contextlib
import importlib
import json
import re
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from kernels import *

import tilewave
from tilewave import kernels
from tilewave.bench.ablation import checked_ablation
from tilewave.cli.main import main
from tilewave.ir.ops import VOCABULARY
from tilewave.ir.parse import HELD, ParseError, parse
from tilewave.kernels import gemm
from tilewave.lang.symbols import Symbol
from tilewave.renamed import IR, KERNELS, OPTIONS, PASSES, current_pass
from tilewave.tune.records import TileRecord
from tilewave.tune.space import KNOBS

PACKAGE = Path(tilewave.__file__).parent
VALUES = {"buffers": 3, "longest": {Symbol("N"): 4096}}
"""A value for each old option."""
MADE = gemm((256, 256, 128), f16, f32, tile=(64, 64, 32))


def line_here():
    """Return the line of the caller."""
    return sys._getframe(1).f_lineno


def warned(caught, line):
    """Return the message of the only warning, which points at a line of this file."""
    (one,) = {(str(w.message), w.category, w.filename, w.lineno) for w in caught}
    assert one[1:] == (FutureWarning, __file__, line)
    return one[0]


@cache
def compiled(target):
    schedule = SchedulingType.PREFETCH if target.startswith("gfx") else SchedulingType.NONE
    options = WaveCompileOptions(subs=MADE.subs, target=target, schedule=schedule)
    return wave_compile(options, MADE.kernel)


# -- options ----------------------------------------------------------------------------------------------------------


def test_every_old_option_has_a_value_here():
    assert VALUES.keys() == OPTIONS.keys()


@pytest.mark.parametrize("old", OPTIONS)
def test_wave_compile_options_take_an_old_name(old):
    with pytest.warns(FutureWarning) as caught:
        found, line = WaveCompileOptions(target="sm_90a", **{old: VALUES[old]}), line_here()
    assert warned(caught, line) == f"WaveCompileOptions: {old} is called {OPTIONS[old]} now"
    assert found == WaveCompileOptions(target="sm_90a", **{OPTIONS[old]: VALUES[old]})


@pytest.mark.parametrize("old", OPTIONS)
def test_replaced_options_take_an_old_name(old):
    with pytest.warns(FutureWarning) as caught:
        found, line = replace(WaveCompileOptions(target="sm_90a"), **{old: VALUES[old]}), line_here()
    assert warned(caught, line) == f"WaveCompileOptions: {old} is called {OPTIONS[old]} now"
    assert getattr(found, OPTIONS[old]) == VALUES[old]


def test_two_old_options_are_two_warnings():
    with pytest.warns(FutureWarning) as caught:
        found = WaveCompileOptions(**VALUES)
    assert sorted(str(w.message).partition(": ")[2] for w in caught) == [
        "buffers is called num_stages now",
        "longest is called max_sizes now",
    ]
    assert found == WaveCompileOptions(num_stages=3, max_sizes={Symbol("N"): 4096})


def test_compile_takes_buffers():
    with pytest.warns(FutureWarning) as caught:
        found, line = MADE.kernel.compile("sm_90a", MADE.subs, buffers=2), line_here()
    assert warned(caught, line) == f"{MADE.kernel.name}.compile: buffers is called num_stages now"
    assert found.ir() == MADE.kernel.compile("sm_90a", MADE.subs, num_stages=2).ir() != compiled("sm_90a").ir()


@wave([WorkgroupConstraint(sym.M, 1, 0)])
def total(x: Memory[sym.M, sym.N, GLOBAL_ADDRESS_SPACE, f32], y: Memory[sym.M, GLOBAL_ADDRESS_SPACE, f32]):
    write(read(x).sum(dim=sym.N), y)


def test_compile_takes_longest():
    with pytest.warns(FutureWarning) as caught:
        found, line = total.compile("cpu", longest={sym.N: 100}), line_here()
    assert warned(caught, line) == "total.compile: longest is called max_sizes now"
    assert found.ir() == total.compile("cpu", max_sizes={sym.N: 100}).ir()


@pytest.mark.parametrize("old", OPTIONS)
def test_with_options_takes_an_old_name(old):
    with pytest.warns(FutureWarning) as caught:
        found, line = MADE.kernel.with_options(**{old: VALUES[old]}), line_here()
    assert warned(caught, line) == f"{MADE.kernel.name}.with_options: {old} is called {OPTIONS[old]} now"
    assert found.options == MADE.kernel.with_options(**{OPTIONS[old]: VALUES[old]}).options


def test_tune_takes_buffers():
    with pytest.warns(FutureWarning) as caught:
        found, line = Tune(BLOCK_M=64, buffers=(2, 3)), line_here()
    assert warned(caught, line) == "Tune: buffers is called num_stages now"
    assert found.values == (("BLOCK_M", (64,)), ("num_stages", (2, 3)))


def test_new_options_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        WaveCompileOptions(num_stages=2, max_sizes={})
        Tune(num_stages=2)
        MADE.kernel.with_options(num_stages=2)
        compiled("sm_90a").ir("use_tma")


# -- passes -----------------------------------------------------------------------------------------------------------


def test_every_pass_has_a_module_under_its_new_name_alone():
    modules = {file.stem for file in PACKAGE.glob("passes/*/*.py")}
    assert set(PASSES.values()) <= modules
    assert not PASSES.keys() & modules


@pytest.mark.parametrize("target", ["cpu", "gfx942", "sm_90a"])
def test_ir_takes_the_old_name_of_every_pass(target):
    steps = {step.name: step for step in compiled(target).steps}
    old_names = [old for old, new in PASSES.items() if new in steps]
    assert len(old_names) > 3
    for old in old_names:
        with pytest.warns(FutureWarning) as caught:
            found, line = compiled(target).ir(old), line_here()
        assert warned(caught, line) == f"{MADE.kernel.name}.ir: {old} is called {PASSES[old]} now"
        assert found is compiled(target).ir(PASSES[old])


def test_ir_takes_the_old_name_of_a_repeated_pass():
    with pytest.warns(FutureWarning, match="compute_at_launch_2 is called hoist_to_launch_2 now"):
        found = compiled("gfx942").ir("compute_at_launch_2")
    assert found is compiled("gfx942").ir("hoist_to_launch_2")


@pytest.mark.parametrize("name", ["", "trace", "simplify", "simplify_2", "fly", "_2", "2"])
def test_other_names_of_passes_stay(name):
    assert current_pass(name) == name


def test_diff_takes_the_old_name_of_a_pass(tmp_path, monkeypatch, capsys):
    (tmp_path / "made.py").write_text(
        "from tilewave import *\nfrom tilewave.kernels import gemm\n"
        "made = gemm((256, 256, 128), f16, f32, tile=(64, 64, 32))\n"
        "kernel = wave_compile(WaveCompileOptions(subs=made.subs, target='sm_90a'), made.kernel)\n"
    )
    monkeypatch.chdir(tmp_path)
    shown = []
    for name in ("use_copy_engine", "use_tma"):
        monkeypatch.setattr(sys, "argv", ["tilewave", "diff", "made.py", "--only", name])
        with contextlib.suppress(SystemExit):
            main()
        shown.append(re.sub(r"[\d.]+ ms", "", capsys.readouterr().out))
    assert shown[0] == shown[1]
    assert "use_tma" in shown[0]


def test_bench_leaves_out_a_pass_by_its_old_name():
    assert checked_ablation("share_copies").name == "without multicast_loads"


# -- IR ---------------------------------------------------------------------------------------------------------------


def test_every_word_of_the_ir_exists_under_its_new_name_alone():
    words = VOCABULARY.keys() | HELD.keys()
    assert set(IR.values()) <= words
    assert not IR.keys() & words


@pytest.mark.parametrize("old", [old for old, new in IR.items() if new in VOCABULARY])
def test_the_parser_knows_the_old_word_of_an_op(old):
    assert outcome(old) == outcome(IR[old])
    assert outcome(old).startswith(IR[old])
    assert outcome("fly").startswith("no op is called")


def outcome(word):
    """Return the text of a kernel's only op, without operands and attributes, or the error that they are missing."""
    try:
        return parse(f"kernel @k {{workgroups = 1}}() {{\n  {word}()\n}}\n").body.ops[0].word()
    except ParseError as error:
        return str(error).splitlines()[0]


def test_a_kernel_in_old_words_is_the_same_kernel():
    new, found = str(compiled("sm_90a").ir()), set()
    old = new
    for before, after in IR.items():
        old, count = re.subn(rf"(?<![%\w]){after}(?=[(<])", before, old)
        found |= {before} if count else set()
    assert {"make_signals", "signals", "copy_async_signal", "await", "matrix_shared"} <= found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(parse(old)) == new


# -- kernels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("old", KERNELS)
def test_a_kernel_function_is_found_under_its_old_name(old):
    with pytest.warns(FutureWarning) as caught:
        found, line = getattr(kernels, old), line_here()
    assert warned(caught, line) == f"tilewave.kernels: {old} is called {KERNELS[old]} now"
    assert found is getattr(kernels, KERNELS[old])


def test_kernel_functions_are_imported_under_their_old_names():
    line = line_here() + 2
    with pytest.warns(FutureWarning) as caught:
        from tilewave.kernels import join_parts_kernel
    assert warned(caught, line) == "tilewave.kernels: join_parts_kernel is called join_splits_kernel now"
    assert join_parts_kernel is kernels.join_splits_kernel


def test_other_names_of_kernels_are_unknown():
    with pytest.raises(AttributeError, match="has no attribute 'fly'"):
        importlib.import_module("tilewave.kernels").fly  # noqa: B018


# -- tuning records ---------------------------------------------------------------------------------------------------


def test_a_record_with_buffers_chooses_num_stages():
    facts = {
        "at": "gemm 0123456789abcdef sm_90a M=256,N=256",
        "baseline": None,
        "choice": {"BLOCK_M": 64, "buffers": 3},
        "considered": 5,
        "format": 1,
        "how": "model",
        "illegal": 0,
        "measured": None,
        "notes": "",
        "order": "",
        "predicted": 1e-6,
        "rounds": 0,
        "spread": None,
        "tried": 0,
        "version": "0.1",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        record = TileRecord.parse(json.dumps(facts))
    assert record.choice == {"BLOCK_M": 64, "num_stages": 3}
    assert "num_stages" in KNOBS.values()
    assert TileRecord.parse(record.line) == record
