"""`compiled.save` and `tilewave.load`: what is loaded is what was saved, and whatever is wrong with a file is said."""

import errno
import hashlib
import io
import json
import os
import random
import stat
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fake_array_libraries import forget_guests, install_torch
from fake_cuda import FakeCuda, Gpu
from kernels import G, M, N, check_product, compiled, gemm, poisoned, random_array, sizes

import tilewave
from tilewave import *
from tilewave import kernels as shipped
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, host_instruction_set, runs_here
from tilewave.errors import CoverageError, SavedKernelError, TargetError
from tilewave.mapping import grouped
from tilewave.runtime import cuda_driver, driver, hip, saved_file
from tilewave.runtime.arrays import view

AGAIN = "copy it again, or compile the kernel and save it again: compiled.save(path)"
WGM = sym.WGM
DATA = Path(__file__).parents[1] / "data" / "saved"


def cpu_gemm(**options):
    return compiled(gemm(f32), target="cpu", subs=sizes(77, 93, 45), **options)


@pytest.fixture(scope="module")
def cpu():
    return cpu_gemm()


@pytest.fixture(scope="module")
def amd():
    made = shipped.gemm((40, 50, 24), f16, tile=(32, 32, 16), mapping="grouped(2)")
    kept = SchedulingType.NONE  # other schedules unroll a loop of two steps, and it has no statistics then
    return compiled(made.kernel, target="gfx942", subs=made.subs, schedule=kept)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty directory, in which relative names are short."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def file(here, cpu):
    cpu.save("gemm.tilewave")
    return here / "gemm.tilewave"


@pytest.fixture
def amd_file(here, amd):
    amd.save("gemm.tilewave")
    return here / "gemm.tilewave"


def operands(kernel, seed=0):
    rng = np.random.default_rng(seed)
    return [poisoned(p.shape, p.dtype) if p.written else random_array(rng, p.shape, p.dtype) for p in kernel.parameters]


def said(call):
    """What an error says, without the author's line."""
    with pytest.raises(TilewaveError) as caught:
        call()
    assert caught.value.loc.file == __file__
    return "\n".join([caught.value.what, *caught.value.remedy.splitlines()])


# There and back -----------------------------------------------------------------------------------------------------

RUNS = """
import sys
import numpy as np
import tilewave
import tilewave.backend.amd.compiler, tilewave.backend.cpu.build, tilewave.backend.assembler
import tilewave.lang.kernel, tilewave.pipeline.runner


def forbidden(*given):
    raise AssertionError("something was compiled")


tilewave.lang.kernel.trace_kernel = tilewave.compile.trace_kernel = tilewave.compile.run = forbidden
tilewave.backend.cpu.build.run = tilewave.backend.cpu.build.lower = tilewave.backend.cpu.build.assembled = forbidden
tilewave.backend.amd.compiler.lower_lanes = tilewave.backend.amd.compiler.assembled = forbidden

path, how, symbols = sys.argv[1], sys.argv[2], dict(x.split("=") for x in sys.argv[3:])
with np.load("in.npz") as given:
    arrays = [given[name] for name in given]
kernel = tilewave.load(path)
getattr(kernel, how)(*arrays, **{name: int(value) for name, value in symbols.items()})
np.save("out.npy", arrays[-1])
print(kernel)
"""


def run_elsewhere(path, arrays, how="__call__", *symbols):
    """The last array, and what is printed, after another process loaded the file and ran it, with an empty cache."""
    np.savez("in.npz", *arrays)
    cache = path.parent / "empty cache"
    env = {**os.environ, "TILEWAVE_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", RUNS, path.name, how, *symbols]
    done = subprocess.run(command, env=env, cwd=path.parent, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert not cache.exists(), "something was compiled and kept"
    return np.load("out.npy"), done.stdout


def test_a_kernel_saved_here_runs_in_another_process_without_compiling(file, cpu):
    a, b, c = operands(cpu)
    found, printed = run_elsewhere(file, [a, b, c])
    check_product(found, a, b)
    assert printed == f"{cpu!r}\n"
    cpu(a, b, c)
    np.testing.assert_array_equal(found, c)


def test_symbols_that_stay_open_stay_open_in_the_file(here):
    order = WorkgroupMapping(grouped(WGM))
    kernel = cpu_gemm_of([order], [WGM])
    kernel.save("open.tilewave")
    loaded = load("open.tilewave")
    assert loaded.dynamic_symbols == ("WGM",)
    assert loaded.schedule_for(WGM=3) == kernel.schedule_for(WGM=3) != kernel.schedule_for(WGM=1)
    for wgm in (1, 2, 5):
        a, b, c = operands(loaded, wgm)
        loaded(a, b, c, WGM=wgm)
        check_product(c, a, b)
    found, _ = run_elsewhere(here / "open.tilewave", [a, b, poisoned(c.shape, f32)], "__call__", "WGM=2")
    np.testing.assert_array_equal(found, c)
    assert said(lambda: loaded(a, b, c)) == "gemm needs a value for WGM\nwrite gemm(…, WGM=4)"


def cpu_gemm_of(constraints, symbols):
    subs = sizes(330, 200, 40)
    return compiled(gemm(f32, constraints=constraints), target="cpu", subs=subs, dynamic_symbols=symbols)


def test_several_symbols_keep_their_order(here):
    scale, shift = sym.SCALE, sym.SHIFT

    @wave([WorkgroupConstraint(M, 16, 0), WorkgroupConstraint(N, 16, 1)])
    def affine(a: Memory[M, N, G, f32], c: Memory[M, N, G, f32]):
        write(read(a) * cast(scalar(scale), f32) + cast(scalar(shift), f32), c)

    kernel = compiled(affine, target="cpu", subs={M: 19, N: 35}, dynamic_symbols=[shift, scale])
    kernel.save("affine.tilewave")
    a = np.arange(19 * 35, dtype=np.float32).reshape(19, 35)
    c = poisoned(a.shape, f32)
    load("affine.tilewave")(a, c, SCALE=3, SHIFT=7)
    np.testing.assert_array_equal(c, a * 3 + 7)


def test_a_loaded_order_that_loses_tiles_is_refused_and_its_op_shown(here):
    kernel = cpu_gemm_of([ReorderingConstraint(WORKGROUP_0 % WGM, 0)], [WGM])
    kernel.save("open.tilewave")
    a, b, c = operands(kernel)
    with pytest.raises(CoverageError) as caught:
        load("open.tilewave")(a, b, c, WGM=2)
    lines = str(kernel.kernel).splitlines()
    (at,) = [n for n, line in enumerate(lines, 1) if "write(" in line]
    assert np.isnan(c).all()
    assert str(caught.value).splitlines()[1:4] == [
        f"  open.tilewave/kernel.ir:{at}",
        f"      {lines[at - 1].strip()}",
        "      ^",
    ]
    assert "WorkgroupMapping(xcd_contiguous(8) >> grouped(4))" in caught.value.remedy


@pytest.mark.parametrize("dtype", [f16, bf16, i8, f64], ids=str)
def test_other_dtypes_strides_and_persistent_kernels_run_after_loading(here, dtype):
    made = shipped.gemm((70, 50, 33), dtype, tile=(32, 16, 16), mapping="grouped(2)", workgroups=3)
    kernel = compiled(made.kernel, target="cpu", subs=made.subs)
    kernel.save(here / "gemm.tilewave")
    loaded = load(here / "gemm.tilewave")
    a, b, c = operands(loaded)
    a, b, c = a[::-1], np.asfortranarray(b), c.T.copy().T
    loaded(a, b, c)
    check_product(c, a, b, kernel.parameters[2].dtype)


def test_amd_code_is_emulated_in_another_process_without_compiling(amd_file, amd):
    a, b, c = operands(amd)
    found, printed = run_elsewhere(amd_file, [a, b, c], "emulate")
    check_product(found, a, b)
    assert printed == "<compiled gemm for gfx942: 4 workgroups, 2x2 tiles>\n"


def test_a_file_for_an_amd_chip_has_code_for_arrays_however_they_lie(amd_file, amd, monkeypatch):
    monkeypatch.setattr("tilewave.backend.amd.compiler.lower_lanes", None)
    loaded = load(amd_file)
    for lay in (np.asfortranarray, lambda x: x[::-1], lambda x: np.repeat(x, 2, 1)[:, ::2]):
        a, b, c = operands(amd)
        a, c = lay(a), lay(c)
        loaded.emulate(a, b, c)
        check_product(c, a, b)
    assert loaded.code_object == amd.code_object, "arrays in rows get the code for arrays in rows"


def test_amd_kernels_are_interpreted_after_loading(amd_file):
    loaded = load(amd_file)
    for level in ("tile", "lane"):
        a, b, c = operands(loaded)
        loaded.interpret(a, b, c, level=level)
        check_product(c, a, b)


def test_kernels_of_the_interpreter_are_saved_too(here):
    kernel = compiled(gemm(f16), target="numpy", subs=sizes(77, 93, 45))
    kernel.save("gemm.tilewave")
    loaded = load("gemm.tilewave")
    a, b, c = operands(loaded)
    loaded(a, b, c)
    check_product(c, a, b)
    assert sorted(zipfile.ZipFile("gemm.tilewave").namelist()) == ["kernel.ir", "kernel.json"]


def test_a_loaded_kernel_answers_as_the_compiled_one(here, cpu, amd):
    for kernel in (cpu, amd):
        kernel.save("gemm.tilewave")
        loaded = load("gemm.tilewave")
        assert isinstance(loaded, Compiled)
        assert repr(loaded) == repr(kernel)
        for name in ("name", "target", "parameters", "dynamic_symbols", "kernel", "code_object", "schedule"):
            assert getattr(loaded, name) == getattr(kernel, name), name
    assert (loaded.asm, loaded.resources) == (amd.asm, amd.resources)
    assert loaded.loop_statistics == amd.loop_statistics
    assert loaded.ir() == amd.ir() == amd.build.lanes


def test_the_same_kernel_gives_the_same_bytes_also_when_it_was_loaded(here, cpu, amd):
    for kernel in (cpu, amd):
        kernel.save("first")
        kernel.save("second")
        load("first").save("third")
        load("third").save("third")
        assert Path("first").read_bytes() == Path("second").read_bytes() == Path("third").read_bytes()


def test_what_a_file_does_not_hold_is_said(file, amd, here):
    loaded = load(file)
    gives = "what wave_compile(…) returns has every step"
    told = "gemm was loaded from gemm.tilewave, which has no"
    code = "code_object is the machine code; "
    assert said(lambda: loaded.steps) == f"{told} steps\n{gives}"
    assert said(lambda: loaded.llvm_ir) == f"{told} LLVM IR\n{gives}"
    assert said(lambda: loaded.asm) == f"{told} assembly\n{code}{gives}"
    assert said(lambda: loaded.ir("trace")) == f"{told} kernel after 'trace'\nir() is the kernel that it has; {gives}"
    assert loaded.ir() == loaded.kernel
    compiled(gemm(f16), target="numpy", subs=sizes(64, 64, 32)).save("gemm.tilewave")
    assert said(lambda: load("gemm.tilewave").asm) == f"{told} assembly\n{gives}"


def test_a_file_can_be_read_with_any_unzip_and_json_reader(file, cpu):
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        about = json.loads(archive.read("kernel.json"))
        assert archive.read("kernel.ir").decode() == str(cpu.kernel)
        assert archive.read("code.o") == cpu.code_object
    host = host_instruction_set(cpu.kernel)
    assert (about["format"], about["tilewave"], about["name"]) == (1, tilewave.__version__, "gemm")
    assert (about["target"], about["instruction_set"], tuple(about["needs"])) == ("cpu", host.name, host.needs)
    assert about["parameters"][2] == {"name": "c", "shape": [77, 93], "dtype": "f32", "written": True}


def test_importing_tilewave_waits_for_none_of_it():
    script = (
        "import sys, tilewave; tilewave.load; "
        "print({'zipfile', 'llvmlite.binding', 'tilewave.saved.kernel'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("name", ["neon", "x86-64"])
def test_files_of_this_format_written_earlier_still_run(name, request):
    """Where machine code is called otherwise than before, FORMAT must change; --update-golden then writes new files."""
    path = DATA / f"gemm_{name}.tilewave"
    if request.config.getoption("--update-golden") and not os.environ.get("CI"):
        cpu_gemm(instruction_set=name).save(path)
    loaded = load(path)
    a, b, c = operands(loaded)
    run = loaded if runs_here(INSTRUCTION_SETS[name]) else loaded.interpret
    run(a, b, c)
    check_product(c, a, b)


# Other machines -----------------------------------------------------------------------------------------------------


def test_code_for_another_machine_loads_and_says_at_the_call_what_is_missing(here):
    ours = host_instruction_set()
    other = "avx512" if ours.triple.startswith("aarch64") else "neon"
    arch, theirs = (INSTRUCTION_SETS[x].triple.partition("-")[0] for x in (ours.name, other))
    cpu_gemm(instruction_set=other).save("gemm.tilewave")
    loaded = load("gemm.tilewave")
    a, b, c = operands(loaded)
    assert said(lambda: loaded(a, b, c)) == (
        f"gemm: gemm.tilewave holds code for {other}, but that is {theirs}, and this machine is {arch}\n"
        f'save it from WaveCompileOptions(instruction_set="{ours.name}"), or run it in numpy: gemm.interpret(…)'
    )
    loaded.interpret(a, b, c)
    check_product(c, a, b)


def test_the_features_that_a_machine_lacks_are_named(here):
    """The file's own words count, not those of the instruction set of the same name here."""
    cpu_gemm().save("gemm.tilewave")
    resealed(here / "gemm.tilewave", needs=["flying", *host_instruction_set().needs, "swimming"])
    loaded = load("gemm.tilewave")
    told = f"gemm: gemm.tilewave holds code for {host_instruction_set().name}, but"
    assert said(lambda: loaded(*operands(loaded))).splitlines()[0] == f"{told} this machine has no flying, swimming"
    resealed(here / "gemm.tilewave", triple="riscv64-unknown-linux-gnu", needs=[])
    loaded = load("gemm.tilewave")
    assert said(lambda: loaded(*operands(loaded))).startswith(f"{told} that is riscv64, and this machine is ")


def test_an_amd_kernel_without_an_amd_card_says_so(amd_file, monkeypatch):
    monkeypatch.setattr(hip, "_opened", failing(TargetError("no HIP here", remedy="find a card")))
    with pytest.raises(TargetError, match="gemm: no HIP here"):
        load(amd_file)(*operands(load(amd_file)))


def failing(error):
    def fail(*given, **named):
        raise error

    return fail


# NVIDIA -------------------------------------------------------------------------------------------------------------


def hopper_gemm(k):
    made = shipped.gemm((128, 128, k), f16, tile=(64, 64, 32))
    return compiled(made.kernel, target="sm_90a", subs=made.subs)


@pytest.fixture
def card(monkeypatch):
    """Install a fake H200 on a machine without a compiler."""
    fake = FakeCuda(Gpu())
    cuda_driver._opened.cache_clear()
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda file: fake)
    yield fake
    cuda_driver._opened.cache_clear()
    forget_guests()
    assert fake.faults == []


def tensors(torch, k, a_strides=None):
    f16_, f32_ = "torch.float16", "torch.float32"
    a = torch.Tensor(0x10000, (128, k), dtype=f16_, strides=a_strides or (k, 1))
    b = torch.Tensor(0x40000, (128, k), dtype=f16_, strides=(k, 1))
    return [a, b, torch.Tensor(0x90000, (128, 128), dtype=f32_, strides=(128, 1))]


@pytest.mark.parametrize(
    ("k", "strides", "member"),
    [
        (64, None, "code"),
        (64, (1, 128), "code_any_strides"),
        (70, None, "code_rows"),
        (70, (80, 1), "code_any_strides"),
    ],
)
def test_ptx_is_launched_without_compiling(here, card, monkeypatch, k, strides, member):
    torch = install_torch(monkeypatch)
    kernel = hopper_gemm(k)
    kernel.save("gemm.tilewave")
    for name in ("lower_lanes", "assembled"):
        monkeypatch.setattr(f"tilewave.backend.nvidia.compiler.{name}", None)
    monkeypatch.setattr("tilewave.backend.nvidia.build.run", None)
    loaded = load("gemm.tilewave")
    loaded(*tensors(torch, k, strides))
    (seen,) = card.launches
    assert seen.words[:3] == (0x10000, *(strides or (k, 1)))
    about = json.loads(members_of("gemm.tilewave")["kernel.json"])
    (code,) = [code for code in about["codes"] if code["member"] == member]
    variant = loaded.build.program.plans.key_for([view(t) for t in tensors(torch, k, strides)])
    assert (list(variant.any_strides), dict(variant.narrow)) == (
        code["variant"]["any_strides"],
        code["variant"]["narrow"],
    )
    assert loaded.build.program.code_for(variant).ptx.encode() == members_of("gemm.tilewave")[f"{member}.ptx"]


def test_a_loaded_hopper_kernel_answers_as_the_compiled_one(here):
    kernel = hopper_gemm(64)
    kernel.save("first")
    loaded = load("first")
    for name in ("kernel", "asm", "code_object", "resources", "schedule", "parameters"):
        assert getattr(loaded, name) == getattr(kernel, name), name
    assert loaded.ir() == kernel.ir() == loaded.build.lanes
    found, wanted = (k.resources.assembled for k in (loaded, kernel))  # None where this machine has no assembler
    assert (found and found.registers) == (wanted and wanted.registers)
    a, b, c = operands(loaded)
    loaded.interpret(a, b, c, level="lane")
    check_product(c, a, b)
    loaded.save("second")
    assert Path("first").read_bytes() == Path("second").read_bytes()
    codes = json.loads(members_of("first")["kernel.json"])["codes"]
    for left in (codes[:1], codes[1:]):
        resealed("second", codes=left)
        assert refused("second") == f"second: kernel.json describes another kernel than lanes.ir\n{AGAIN}"


def test_a_wish_for_less_exact_products_is_kept(here):
    made = shipped.gemm((128, 128, 64), f32, tile=(64, 64, 32), mma_type=MMAType.F32_64xNx8_TF32)
    kernel = compiled(made.kernel, target="sm_90a", subs=made.subs)
    kernel.save("tf32")
    loaded = load("tf32")
    assert loaded.ir() == kernel.ir() and "ignored_bits = 13" in str(loaded.ir())
    assert loaded.asm == kernel.asm and "k8.f32.tf32.tf32" in loaded.asm


# Files that are wrong -----------------------------------------------------------------------------------------------


def members_of(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archived(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def resealed(path, members=(), **about):
    """The file with other members or other facts, and digests that fit."""
    found = {**members_of(path), **dict(members)}
    head = {**json.loads(found.pop("kernel.json")), **about}
    head["members"] = {name: hashlib.sha256(data).hexdigest() for name, data in found.items()}
    archived(path, {"kernel.json": json.dumps(head), **found})


def refused(path):
    with pytest.raises(SavedKernelError) as caught:
        load(path)
    assert caught.value.loc.file == __file__
    return "\n".join([caught.value.what, *caught.value.remedy.splitlines()])


def test_a_name_that_leads_nowhere_is_said(here, monkeypatch):
    assert refused("gemm.tilewave") == "there is no file gemm.tilewave\ncompiled.save(path) writes one"
    assert refused(here) == f"{tilewave.errors.short_path(str(here))} is not a plain file\n{AGAIN}"
    os.mkfifo("pipe")
    assert refused("pipe") == f"pipe is not a plain file\n{AGAIN}"
    Path("file").write_bytes(b"")
    monkeypatch.setattr(os, "open", failing(PermissionError(errno.EACCES, "Permission denied")))
    assert refused("file") == "file cannot be read: Permission denied"


@pytest.mark.parametrize("data", [b"", b"#!/bin/sh\n", bytes(5000), b"PK"], ids=["empty", "text", "zeros", "PK"])
def test_a_file_of_something_else_is_said(here, data):
    Path("x").write_bytes(data)
    assert refused("x") == f"x is no saved kernel\n{AGAIN}"


def test_an_archive_of_something_else_is_said(here):
    archived("x", {"readme": b"hello"})
    assert refused("x") == (
        "x is no saved kernel: it holds no kernel.json\ngive the name of a file that compiled.save(path) wrote"
    )


def test_a_file_too_large_for_a_kernel_is_not_read(here, monkeypatch):
    with open("x", "wb") as large:
        large.truncate(1 << 40)
    assert refused("x") == ("x is no saved kernel: it has 1,099,511,627,776 bytes\na kernel has at most 67,108,864")


def test_a_file_cut_off_anywhere_is_incomplete(file):
    whole = file.read_bytes()
    for size in {4, len(whole) // 2, len(whole) - 1, *range(5, len(whole), 97)}:
        file.write_bytes(whole[:size])
        assert refused(file) == f"gemm.tilewave is incomplete\n{AGAIN}", size


@pytest.mark.parametrize("member", ["kernel.json", "kernel.ir", "code.o"])
def test_a_damaged_member_is_named(file, member):
    whole = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        entry = archive.getinfo(member)
    whole[entry.header_offset + 30 + len(member) + entry.compress_size // 2] ^= 0x10
    file.write_bytes(whole)
    assert refused(file) == f"gemm.tilewave: {member} is damaged\n{AGAIN}"


@pytest.mark.parametrize("member", ["kernel.ir", "code.o"])
def test_a_member_that_was_exchanged_is_named(file, member):
    """The archive is in order, but the member is not the one that was saved."""
    found = members_of(file)
    archived(file, {**found, member: found[member].replace(b"77", b"78") + b" "})
    assert refused(file) == f"gemm.tilewave: {member} is damaged\n{AGAIN}"


@pytest.mark.parametrize("member", ["kernel.ir", "lanes.ir", "code.s", "code_any_strides.hsaco"])
def test_a_missing_member_is_named(amd_file, member):
    found = members_of(amd_file)
    del found[member]
    archived(amd_file, found)
    assert refused(amd_file) == f"gemm.tilewave holds no {member}\n{AGAIN}"
    resealed(amd_file)
    assert refused(amd_file) == f"gemm.tilewave holds no {member}\n{AGAIN}"


def test_flipped_bits_are_found_or_do_no_harm(file, cpu):
    whole = file.read_bytes()
    choose = random.Random(0)
    harmless = 0
    for at in choose.sample(range(len(whole)), 400):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << choose.randrange(8)
        file.write_bytes(damaged)
        try:
            loaded = load(file)
        except SavedKernelError:
            continue
        harmless += 1
        assert (loaded.kernel, loaded.code_object, loaded.parameters) == (cpu.kernel, cpu.code_object, cpu.parameters)
        assert (loaded.build.launch, loaded.build.instruction_set) == (cpu.build.launch, cpu.build.instruction_set)
    assert harmless < 100


@pytest.mark.parametrize("version", [0, 2, 17])
def test_another_format_is_said(file, version):
    resealed(file, format=version, tilewave="7.8.9")
    assert refused(file) == (
        f"gemm.tilewave has format {version}, written by tilewave 7.8.9; "
        f"this is tilewave {tilewave.__version__}, which reads format 1\n"
        "compile the kernel with this tilewave and save it again, or load it with the one that wrote it"
    )


def test_another_tilewave_of_the_same_format_is_no_fault(file, cpu):
    resealed(file, tilewave="7.8.9")
    a, b, c = operands(cpu)
    load(file)(a, b, c)
    check_product(c, a, b)


def test_a_target_from_the_future_is_said(file):
    resealed(file, target="gfx1300", tilewave="7.8.9")
    assert refused(file) == (
        "gemm.tilewave is for gfx1300, for which this tilewave loads nothing\n"
        "load it with the tilewave that wrote it, 7.8.9"
    )
    resealed(file, target="cpu", instruction_set="avx1024")
    assert refused(file) == (
        "gemm.tilewave holds code for avx1024, an instruction set that this tilewave does not know\n"
        "load it with the tilewave that wrote it, 7.8.9"
    )


NESTED = "loop(%x, []) do () {" * 5000


def test_a_text_that_is_no_kernel_is_said(file):
    resealed(file, {"kernel.ir": b"kernel @gemm {workgroups = 4} (%a: tile<4xf99>) {}"})
    assert refused(file).splitlines()[:4] == [
        "gemm.tilewave: kernel.ir is no kernel: no dtype is called 'f99'; the dtypes are "
        + ", ".join(tilewave.ir.types.DTYPES),
        "  gemm.tilewave/kernel.ir:1",
        "      kernel @gemm {workgroups = 4} (%a: tile<4xf99>) {}",
        "                                         ^",
    ]
    resealed(file, {"kernel.ir": b"kernel @gemm {workgroups = 0} () {}"})
    told = "gemm.tilewave: kernel.ir is no kernel:"
    assert refused(file) == f"{told} gemm: 0 workgroups compute nothing\n{AGAIN}"
    for text in ("kernel @gemm {workgroups = x} () {}", "kernel @gemm {workgroups = 1} (%x: index) {" + NESTED):
        resealed(file, {"kernel.ir": text.encode()})
        assert refused(file).startswith(told)
    resealed(file, {"kernel.ir": b"\xff\xfe"})
    assert refused(file) == f"gemm.tilewave: kernel.ir is no text\n{AGAIN}"


def test_texts_that_no_compiler_wrote_are_refused_or_verified(amd_file):
    """Words taken out, doubled and exchanged: never an error of Python's."""
    choose = random.Random(0)
    whole = members_of(amd_file)
    refusals = 0
    for n in range(150):
        member = ("kernel.ir", "lanes.ir")[n % 2]
        words = whole[member].decode().split(" ")
        at, other = choose.randrange(len(words)), choose.randrange(len(words))
        words[at] = choose.choice(["", words[other], f"{words[at]} {words[at]}", "(" * 3000, "-1", "x"])
        resealed(amd_file, {**whole, member: " ".join(words).encode()})
        try:
            load(amd_file)
        except SavedKernelError:
            refusals += 1
    assert refusals > 100


def test_facts_and_text_must_be_of_one_kernel(file, amd_file, cpu, here):
    other = compiled(gemm(f32), target="cpu", subs=sizes(77, 93, 46))
    cpu.save(file)
    resealed(file, {"kernel.ir": str(other.kernel).encode()})
    told = f"gemm.tilewave: kernel.json describes another kernel than kernel.ir\n{AGAIN}"
    assert refused(file) == told
    for about in ({"name": "mmeg"}, {"workgroups": 5}, {"dynamic_symbols": ["WGM"]}, {"parameters": []}):
        cpu.save(file)
        resealed(file, **about)
        assert refused(file) == told, about


def test_machine_code_for_arrays_however_they_lie_must_be_there(amd_file):
    codes = json.loads(members_of(amd_file)["kernel.json"])["codes"]
    for left in (codes[:1], codes[1:], []):
        resealed(amd_file, codes=left)
        assert refused(amd_file) == f"gemm.tilewave: kernel.json describes another kernel than lanes.ir\n{AGAIN}"


WRONG = {
    "target": [1],
    "workgroups": "6",
    "parameters": [1],
    "dynamic_symbols": [2],
    "remedy": None,
    "instruction_set": {},
    "needs": "neon",
    "launch": [],
    "format": True,
}


@pytest.mark.parametrize(("name", "value"), WRONG.items(), ids=WRONG)
def test_a_fact_of_the_wrong_kind_is_named(file, name, value):
    resealed(file, **{name: value})
    assert refused(file) == f"gemm.tilewave: kernel.json has no valid {name}\n{AGAIN}"


def test_an_axis_of_an_argument_is_a_number(amd_file):
    codes = json.loads(members_of(amd_file)["kernel.json"])["codes"]
    codes[0]["arguments"][0]["axis"] = True
    resealed(amd_file, codes=codes)
    assert refused(amd_file) == f"gemm.tilewave: kernel.json has no valid axis\n{AGAIN}"


@pytest.mark.parametrize("value", [-1, 1 << 63, 1.5, True, None, "8", [8]])
def test_a_number_of_a_launch_is_a_natural_one(file, value):
    launch = json.loads(members_of(file)["kernel.json"])["launch"]
    resealed(file, launch={**launch, "scratch_bytes": value})
    assert refused(file) == f"gemm.tilewave: kernel.json has no valid scratch_bytes\n{AGAIN}"
    resealed(file, launch={**launch, "packed_bytes": [value]})
    assert refused(file) == f"gemm.tilewave: kernel.json has no valid packed_bytes\n{AGAIN}"


@pytest.mark.parametrize("text", ["[]", "3", "{", "[" * 100_000, "1" * 10_000, "\xff"], ids=range(6))
def test_facts_that_are_no_json_object_are_said(file, text):
    archived(file, {**members_of(file), "kernel.json": text.encode("latin-1")})
    said = refused(file)
    assert said.startswith("gemm.tilewave: kernel.json is no JSON object") and said.endswith(f"\n{AGAIN}")


def test_object_code_that_cannot_be_linked_is_said(file, cpu):
    resealed(file, {"code.o": b"no object code"})
    loaded = load(file)
    assert said(lambda: loaded(*operands(cpu))).startswith("gemm: gemm.tilewave: code.o cannot be linked: ")


# Hostile archives ---------------------------------------------------------------------------------------------------


def test_members_that_nobody_asked_for_are_left_alone(file, cpu, here):
    found = members_of(file)
    strange = ["/etc/passwd", "../outside", "kernel.ir/../x", "code.o/", "C:\\x", "a" * 60_000]
    archived(file, {**found, **dict.fromkeys(strange, b"evil")})
    before = sorted(os.listdir())
    assert load(file).code_object == cpu.code_object
    assert sorted(os.listdir()) == before
    assert not (here.parent / "outside").exists()


def test_members_with_strange_names_are_refused(file):
    found = members_of(file)
    head = json.loads(found["kernel.json"])
    head["members"]["../outside"] = hashlib.sha256(b"evil").hexdigest()
    archived(file, {**found, "kernel.json": json.dumps(head), "../outside": b"evil"})
    assert refused(file) == f"gemm.tilewave: no member may be called '../outside'\n{AGAIN}"


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_member_that_is_there_twice_is_refused(file):
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("code.o", b"other code")
    assert refused(file) == f"gemm.tilewave holds more than one code.o\n{AGAIN}"


def test_a_member_that_would_fill_memory_is_not_unpacked(file, monkeypatch):
    """What the members before it took counts too."""
    monkeypatch.setattr(saved_file, "LARGEST_BYTES", 1 << 20)
    size = (1 << 20) - 10
    found = members_of(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**found, "code.o": bytes(size)}.items():
            archive.writestr(name, data)
    assert refused(file) == (
        f"gemm.tilewave: code.o unpacks to {size:,} bytes\na kernel takes at most {1 << 20:,} in all"
    )


def test_a_member_that_says_less_than_it_unpacks_to_is_unpacked_no_further(file):
    """A quarter of a megabyte that says it is 100 bytes, and is 256 MB."""
    found = members_of(file)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**found, "code.o": bytes(1 << 28)}.items():
            archive.writestr(name, data)
    data = bytearray(Path(file).read_bytes())
    listed = data.rfind(b"code.o") - 46
    data[listed + 24 : listed + 28] = (100).to_bytes(4, "little")
    Path(file).write_bytes(data)
    tracemalloc.start()
    try:
        assert refused(file) == f"gemm.tilewave: code.o is damaged\n{AGAIN}"
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_more_members_than_a_kernel_has_are_not_listed(file):
    archived(file, {**members_of(file), **{f"x{i}.o": b"" for i in range(100)}})
    assert refused(file) == f"gemm.tilewave is no saved kernel: it has too many members\n{AGAIN}"


def test_a_text_that_no_parser_should_wait_for_is_refused(file):
    resealed(file, {"kernel.ir": members_of(file)["kernel.ir"] + b"/" * 100_000 + b"\n?"})
    assert refused(file).startswith("gemm.tilewave: kernel.ir is no kernel: ")


def test_a_member_that_lies_about_its_size_is_damaged(file):
    found = members_of(file)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**found, "code.o": bytes(1 << 22)}.items():
            archive.writestr(name, data)
    file.write_bytes(packed.getvalue().replace((1 << 22).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    assert refused(file) == f"gemm.tilewave: code.o is damaged\n{AGAIN}"


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_ways_of_packing_are_refused(file, method):
    found = members_of(file)
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in found.items():
            archive.writestr(name, data)
    assert refused(file) == f"gemm.tilewave: kernel.json is damaged\n{AGAIN}"


def test_an_encrypted_member_is_refused(file):
    whole = bytearray(file.read_bytes())
    at = whole.index(b"PK\x01\x02", whole.index(b"PK\x01\x02") + 1)
    whole[at + 8] |= 1
    file.write_bytes(whole)
    assert refused(file) == f"gemm.tilewave: kernel.ir is damaged\n{AGAIN}"


# Writing ------------------------------------------------------------------------------------------------------------

PLAIN = "give the name of a plain file, in a directory that exists and can be written"


def test_places_where_nothing_can_be_written_are_said(here, cpu):
    assert said(lambda: cpu.save("no/x")) == f"no/x cannot be written: No such file or directory\n{PLAIN}"
    Path("directory").mkdir()
    os.mkfifo("pipe")
    for name in ("directory", "pipe", "/dev/null"):
        assert said(lambda name=name: cpu.save(name)) == f"{name} cannot be written: it is not a plain file\n{PLAIN}"
    assert sorted(os.listdir()) == ["directory", "pipe"]
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_file_that_may_not_be_written_stays(file, cpu, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    before = file.stat().st_ino
    assert said(lambda: cpu.save(file)) == f"gemm.tilewave cannot be written: Permission denied\n{PLAIN}"
    assert file.stat().st_ino == before


@pytest.mark.parametrize("function", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(file, cpu, monkeypatch, function):
    file.write_bytes(b"before")
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing(OSError(errno.ENOSPC, "No space left on device")))
        assert said(lambda: cpu.save(file)) == f"gemm.tilewave cannot be written: No space left on device\n{PLAIN}"
    assert os.listdir() == ["gemm.tilewave"]
    assert file.read_bytes() == b"before"


def test_a_real_limit_of_the_system_leaves_nothing(here, file):
    script = (
        "import resource, tilewave; kernel = tilewave.load('gemm.tilewave');"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); kernel.save('new')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[0] == "error: new cannot be written: File too large"
    assert os.listdir() == ["gemm.tilewave"]


def test_an_interrupted_save_leaves_nothing(file, cpu, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        cpu.save("new")
    assert os.listdir() == ["gemm.tilewave"]


def test_short_writes_are_continued(here, cpu, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:101]))
    cpu.save("x")
    assert load("x").code_object == cpu.code_object


def test_modes_are_those_of_the_old_file_or_of_any_new_one(file, cpu):
    file.chmod(0o640)
    cpu.save(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    mask = os.umask(0o027)
    try:
        cpu.save("new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat("new").st_mode) == 0o640


def test_a_link_is_followed(file, cpu):
    Path("link").symlink_to("gemm.tilewave")
    file.write_bytes(b"before")
    cpu.save("link")
    assert Path("link").is_symlink()
    assert load(file).code_object == cpu.code_object


SAVES = """
import sys, time, tilewave
kernels = [tilewave.load(name) for name in sys.argv[1:]]
end = time.monotonic() + 1
count = 0
while time.monotonic() < end or count < 20:
    kernels[count % 2].save("both")
    tilewave.load("both")
    count += 1
print(count)
"""


def test_processes_that_save_to_one_name_leave_a_whole_file(file, cpu):
    compiled(gemm(f32), target="cpu", subs=sizes(40, 30, 20)).save("other")
    command = [sys.executable, "-c", SAVES]
    names = [["gemm.tilewave", "other"], ["other", "gemm.tilewave"]]
    processes = [
        subprocess.Popen([*command, *order], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for order in names
    ]
    sizes_seen = set()
    while any(process.poll() is None for process in processes):
        time.sleep(0.002)
        if os.path.exists("both"):
            sizes_seen.add(load("both").parameters[2].shape)
    for process in processes:
        printed, errors = process.communicate()
        assert (process.returncode, errors) == (0, b"")
        assert int(printed) >= 20
    assert sizes_seen == {(77, 93), (40, 30)}
    assert sorted(os.listdir()) == ["both", "gemm.tilewave", "other"]
    assert Path("both").read_bytes() in (file.read_bytes(), Path("other").read_bytes())
