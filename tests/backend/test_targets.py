"""A target has one home: its line in the table is all that the rest of the house needs to know of it."""

import ast
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import fake_target
import numpy as np
import pytest
from fake_target import ToyBackend
from kernels import G, M, N, check_product, compiled, gemm, poisoned, random_array, sizes

import tilewave
from tilewave import *
from tilewave.backend import names
from tilewave.backend.names import DEFAULT_TARGET
from tilewave.backend.targets import TARGETS, VENDORS, targets_on
from tilewave.errors import SavedKernelError, TargetError
from tilewave.machine.chips import CHIPS
from tilewave.pipeline.runner import pass_name

PACKAGE = Path(tilewave.__file__).parent
SIZES = sizes(40, 24, 16, 16, 16, 16)


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """A table with one target more, an empty cache, and an empty directory."""
    monkeypatch.setitem(TARGETS, "toy_1", ToyBackend())
    monkeypatch.setenv("TILEWAVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    fake_target.MADE.clear()
    return TARGETS["toy_1"]


def made_for(target, **options):
    return compiled(gemm(f32), target=target, subs=SIZES, **options)


def arrays():
    rng = np.random.default_rng(0)
    return random_array(rng, (40, 16), f32), random_array(rng, (24, 16), f32), poisoned((40, 24), f32)


def refused(call):
    with pytest.raises(TilewaveError) as caught:
        call()
    return caught.value


# -- the table -------------------------------------------------------------------------------------------------------


def test_targets_stand_under_their_names_in_the_order_in_which_they_are_listed():
    assert list(TARGETS) == ["cpu", "gfx942", "gfx950", "sm_90a", "numpy"]
    assert [target.name for target in TARGETS.values()] == list(TARGETS)
    assert DEFAULT_TARGET in TARGETS


def test_the_names_are_those_of_the_table():
    assert tuple(TARGETS) == names.TARGET_NAMES
    assert tuple(name for name, target in TARGETS.items() if target.counts_loops) == names.COUNTED_TARGETS
    assert tuple(name for name, target in TARGETS.items() if target.models_cycles) == names.MODELLED_TARGETS
    assert targets_on("cuda")[0].name == names.CUDA_TARGET


def test_every_chip_of_the_table_is_a_record_of_the_machines():
    assert [target.name for target in TARGETS.values() if target.has_lanes] == list(CHIPS)


@pytest.mark.parametrize("target", TARGETS)
def test_a_build_has_what_its_target_says(target):
    build = compiled(gemm(f16), target=target, subs=sizes(128, 128, 512)).build  # short loops are unrolled
    backend = TARGETS[target]
    assert (build.lanes is not None, build.emulated is not None) == (backend.has_lanes, backend.is_emulated)
    assert (build.loop is not None) == backend.counts_loops
    assert (build.cycles(None, None) is not None) == backend.models_cycles
    assert {step.name for step in build.steps} <= {pass_name(p) for p in backend.passes()}


def test_the_table_is_read_without_llvm_passes_or_drivers():
    passes = "tilewave.pipeline.lists", "tilewave.pipeline.cpu_lists"
    heavy = "llvmlite", "zipfile", *passes, "tilewave.emulator", "tilewave.runtime.cuda_driver"
    script = f"import sys, tilewave.backend.targets; print({{*{heavy}}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_kernel_for_a_cpu_waits_for_no_pass_of_gpus():
    lines = (
        "import sys, numpy as np",
        "from tilewave import ops",
        "ops.matmul(np.ones((3, 4), np.float32), np.ones((4, 5), np.float32))",
        "print('tilewave.pipeline.lists' in sys.modules, 'tilewave.pipeline.cpu_lists' in sys.modules)",
    )
    environment = {**os.environ, "TILEWAVE_CACHE_DIR": "off"}
    asked = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "False True\n"


@pytest.mark.parametrize(("chip", "like"), [("gfx90a", "gfx942"), ("sm_90", "sm_90a")])
def test_a_new_chip_of_a_known_vendor_is_a_record(chip, like, monkeypatch, tmp_path):
    record = replace(CHIPS[like], name=chip, cpu=chip)
    monkeypatch.setitem(TARGETS, chip, VENDORS[record.vendor](chip, record))

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 32, 1)])
    def double(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) * 2.0, c)

    kernel = compiled(double, target=chip, subs={M: 40, N: 64})
    a, c = np.ones((40, 64), np.float32), poisoned((40, 64), f32)
    kernel.interpret(a, c, level="lane")
    assert (c == 2).all()
    assert re.search(rf"\.(amdgcn_)?target \S*\b{chip}\b", kernel.asm)
    assert kernel.asm != compiled(double, target=like, subs={M: 40, N: 64}).asm
    if TARGETS[chip].is_emulated:
        return  # registers are counted by the emulator, which learns of chips by itself
    assert kernel.resources.machine == chip
    kernel.save(tmp_path / "double.tilewave")
    assert (
        load(tmp_path / "double.tilewave").asm == kernel.asm != compiled(double, target=like, subs={M: 40, N: 64}).asm
    )


# -- one more --------------------------------------------------------------------------------------------------------


def test_a_new_target_compiles_and_runs(toy):
    kernel = made_for("toy_1")
    a, b, c = arrays()
    kernel(a, b, c)
    check_product(c, a, b)
    assert repr(kernel) == "<compiled gemm for toy_1: 6 workgroups, 3x2 tiles>"
    assert (kernel.steps[-1].name, kernel.ir("fold_toys")) == ("fold_toys", kernel.ir())
    assert kernel.code_object == str(kernel.kernel).encode()[::-1]
    assert kernel.resources.bricks == 8
    assert refused(lambda: kernel.asm).what == "gemm: there is no assembly for toy_1"


def test_open_symbols_reach_a_new_target(toy):
    factor = sym.FACTOR
    scaled = gemm(f32, epilogue=lambda total: total * cast(scalar(factor), f32))
    kernel = compiled(scaled, target="toy_1", subs=SIZES, dynamic_symbols=[factor])
    a, b, c = arrays()
    kernel(a, b, c, FACTOR=1)
    check_product(c, a, b)
    assert refused(lambda: kernel(a, b, c)).what == "gemm needs a value for FACTOR"


def test_the_cache_keeps_what_a_new_target_makes_apart_from_the_others(toy):
    first = made_for("toy_1")
    assert fake_target.MADE == ["gemm"]
    made_for(DEFAULT_TARGET)
    again = made_for("toy_1")
    assert fake_target.MADE == ["gemm"], "the second comes from the cache"
    assert again.code_object == first.code_object != made_for(DEFAULT_TARGET).code_object


def test_a_new_target_is_saved_and_loaded(toy):
    kernel = made_for("toy_1")
    kernel.save("gemm.tilewave")
    loaded = load("gemm.tilewave")
    a, b, c = arrays()
    loaded(a, b, c)
    check_product(c, a, b)
    assert (loaded.code_object, loaded.target, repr(loaded)) == (kernel.code_object, "toy_1", repr(kernel))
    loaded.save("again.tilewave")
    assert Path("again.tilewave").read_bytes() == Path("gemm.tilewave").read_bytes()
    gives = "what wave_compile(…) returns has every step"
    error = refused(lambda: loaded.asm)
    assert isinstance(error, SavedKernelError)
    assert (error.what, error.remedy) == (
        "gemm was loaded from gemm.tilewave, which has no assembly",
        f"code_object is the machine code; {gives}",
    )


def test_a_file_for_a_target_that_is_gone_says_so(toy, monkeypatch):
    made_for("toy_1").save("gemm.tilewave")
    monkeypatch.delitem(TARGETS, "toy_1")
    error = refused(lambda: load("gemm.tilewave"))
    assert error.what == "gemm.tilewave is for toy_1, for which this tilewave loads nothing"


# -- what is said to the author --------------------------------------------------------------------------------------


def test_a_target_that_is_misspelt_is_told_with_all_that_there_are(toy):
    error = refused(lambda: made_for("toy1"))
    assert isinstance(error, TargetError)
    assert error.what == "unknown target 'toy1'; did you mean 'toy_1'?"
    assert error.remedy == "The targets are cpu, gfx942, gfx950, sm_90a, numpy, toy_1."


def test_what_cannot_be_emulated_names_what_can(toy):
    kernel = made_for(DEFAULT_TARGET)
    assert refused(lambda: kernel.emulate(*arrays())).remedy == 'compile it with target="gfx942" or "gfx950" or "toy_1"'
    counted = refused(lambda: kernel.loop_statistics).remedy
    assert counted == 'compile it with target="gfx942" or "gfx950" or "sm_90a" or "toy_1"'
    assert refused(lambda: kernel.loop_cycles()).remedy == 'compile it with target="gfx942" or "gfx950"'


def test_what_has_no_lanes_names_the_first_that_has(toy, monkeypatch):
    kernel = made_for(DEFAULT_TARGET)

    def remedy():
        return refused(lambda: kernel.interpret(*arrays(), level="lane")).remedy

    assert remedy() == 'compile it with target="gfx942"; no GPU is needed'
    monkeypatch.setattr(ToyBackend, "has_lanes", True)
    fewer = {name: target for name, target in TARGETS.items() if name not in CHIPS}
    monkeypatch.setattr("tilewave.interpreted.TARGETS", fewer)
    assert remedy() == 'compile it with target="toy_1"; no GPU is needed'


def test_an_option_that_a_target_does_not_take_names_those_that_do(toy):
    error = refused(lambda: made_for("sm_90a", instruction_set="avx2"))
    assert error.remedy == (
        'instruction sets are those of the CPU and a toy: write target="cpu" or "toy_1", or leave instruction_set out'
    )


# -- no other room names a target -------------------------------------------------------------------------------------

ROOMS = ("backend", "machine")
JUDGE = "emulator"
"""The emulator does not know the compiler that it checks: it reads the chip from a code object, and has separate facts
about each chip."""

WORDS = {
    "analysis/contracts.py": "torch's method cpu",
    "bench/baselines.py": "numpy, the library, beside us",
    "cli/doctor.py": "numpy, the package",
    "cli/declared/run.py": "numpy, the library, beside us",
    "ops/preload.py": "what a build of torch is for",
    "runtime/array_view.py": "DLPack's device cpu; numpy, the attribute",
    "runtime/arrays.py": "numpy, the attribute",
    "runtime/call_checks.py": "DLPack's device cpu; numpy, the attribute",
    "runtime/dlpack.py": "DLPack's device cpu",
    "runtime/foreign_arrays.py": "DLPack's device cpu; numpy, the module",
    "runtime/remedies.py": "DLPack's device cpu; numpy, the module",
    "torch/attention_calls.py": "torch's device cpu",
    "torch/autocast.py": "torch's device cpu",
    "torch/signatures.py": "the interpreter, which shows what a kernel reads and writes on every target",
}
"""Where a string that is also a target's name means something else."""


def files_of_others():
    for path in sorted(PACKAGE.rglob("*.py")):
        room = path.relative_to(PACKAGE)
        if room.parts[0] not in ROOMS:
            yield room.as_posix(), path.read_text()


def test_no_chip_is_named_outside_of_backends_and_machines():
    chips = [name for name in TARGETS if TARGETS[name].has_lanes]
    assert len(chips) == 3
    named = [
        (file, chip)
        for file, text in files_of_others()
        for chip in chips
        if chip in text.lower() and not file.startswith(f"{JUDGE}/")
    ]
    assert named == []


def test_no_other_target_is_named_where_its_word_means_the_target():
    words = {name for name in TARGETS if not TARGETS[name].has_lanes}
    found = {
        file
        for file, text in files_of_others()
        if any(word in text for word in words)  # others need no parsing
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value in words
    }
    assert found == {*WORDS}


def test_the_judge_knows_neither_the_table_nor_the_chips_records():
    texts = [text for file, text in files_of_others() if file.startswith(f"{JUDGE}/")]
    assert texts
    assert not [
        text for text in texts if re.search(r"^\s*(from|import) tilewave\.(backend|machine)", text, re.MULTILINE)
    ]
