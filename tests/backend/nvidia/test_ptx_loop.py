"""Instruction counts of the K loop in PTX: of text written for the test, and of kernels that tilewave compiles."""

import json
import re
from pathlib import Path

import pytest

from tilewave import (
    GLOBAL_ADDRESS_SPACE,
    Memory,
    WaveCompileOptions,
    WorkgroupConstraint,
    f16,
    kernels,
    read,
    sym,
    wave,
    wave_compile,
    write,
)
from tilewave.backend.nvidia.ptx_loop import PtxLoop, ptx_loop_statistics, read_ptx
from tilewave.cli.main import main
from tilewave.emulator.findings import UnsupportedCode

EXAMPLES = Path(__file__).parents[3] / "examples"
TEXT = """
.visible .entry k(
	.param .u64 k_param_0 // {
)
.maxntid 384
{
	.reg .pred 	%p<3>;
	mov.b32 	%r1, 0;
$L__outer:
	ld.global.b32 	%r9, [%rd1];
	bra.uni 	$L__middle;
$L__head:
	.loc	1 4 5
	// begin inline asm
	{
 .reg .pred p;
 again_0: mbarrier.try_wait.parity.shared::cta.b64 p, [%r2], %r3;
 @p bra over_0;
 bra again_0;
 over_0:
 }
	// end inline asm
	wgmma.fence.sync.aligned;
	wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%r4, %r5}, da, db, p, 1, 1, 0, 0;
	wgmma.wait_group.sync.aligned 0;
	@!%p1 bra 	$L__skip;
	ld.shared.v4.b32 	{%r4, %r5, %r6, %r7}, [%r2];
	st.shared.b32 	[%r2], %r4;
$L__skip:
	@p mbarrier.arrive.shared::cta.b64 _, [%r28];
$L__middle:
	add.s32 	%r1, %r1, 1;
	setp.ne.b32 	%p2, %r1, 8;
	@%p2 bra 	$L__head;
	@%p1 bra 	$L__outer;
	ret;
$L__copy:
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
	bra 	$L__copy;
}
"""
NAMES = [name for name in PtxLoop.__dataclass_fields__ if name != "instructions"]


def compiled(kernel, subs):
    return wave_compile(WaveCompileOptions(subs=subs, target="sm_90a"), kernel)


def test_the_innermost_loop_around_matrix_instructions_is_counted_wherever_its_blocks_stand():
    counted = ptx_loop_statistics(TEXT, "k", "sm_90a")
    found = {name: number for name in NAMES if (number := getattr(counted, name))}
    assert found == {
        "matrix_instructions": 1,
        "matrix_waits": 2,
        "mbarrier_waits": 1,
        "mbarrier_arrives": 1,
        "shared_reads": 1,
        "shared_writes": 1,
        "branches": 4,
        "alu_instructions": 2,
    }
    assert counted.instructions == sum(found.values())
    assert counted.producer is None, "nothing leads to that loop"


def test_a_loop_that_loads_for_others_is_counted_beside_it():
    counted = ptx_loop_statistics(TEXT.replace("	ret;", "	@%p1 ret;"), "k", "sm_90a")
    assert counted.producer is not None
    assert (counted.producer.instructions, counted.producer.tma_loads, counted.producer.branches) == (2, 1, 1)
    assert counted.rows["producer warp: TMA loads, stores"] == "1, 0"


def test_labels_stand_where_they_lead():
    code, labels = read_ptx(TEXT)
    assert [code[labels[name]].opcode.split(".")[0] for name in ("$L__outer", "again_0", "over_0", "$L__copy")] == [
        "ld", "mbarrier", "wgmma", "cp",
    ]  # fmt: skip


def test_the_loop_of_a_gemm():
    made = kernels.gemm((1024, 1024, 512), f16, tile=(128, 256, 64))
    kernel = compiled(made.kernel, made.subs)
    counted = kernel.loop_statistics
    steps_of_16 = 64 // 16
    assert (counted.matrix_instructions, counted.mbarrier_waits, counted.mbarrier_arrives) == (steps_of_16, 1, 1)
    assert (counted.tma_loads, counted.producer.tma_loads, counted.producer.mbarrier_waits) == (0, 2, 1), "A and B"
    first = kernel.asm.index("wgmma.mma_async")
    head = [m for m in re.finditer(r"^(\$L__BB\w+):", kernel.asm, re.MULTILINE) if m.start() < first][-1]
    body = kernel.asm[head.end() : kernel.asm.index(f"bra \t{head[1]};") + 1]
    assert counted.instructions == sum(";" in x and not x.strip().startswith(".") for x in body.splitlines()) + 1
    assert counted.instructions_per_matrix == counted.instructions / steps_of_16


def test_lanes_that_load_are_seen_to():
    made = kernels.gemm((1024, 1024, 512), f16, tile=(128, 256, 64))
    counted = compiled(made.kernel, made.subs).build.plain.loop
    assert counted.producer is None
    assert (counted.tma_loads, counted.mbarrier_waits) == (0, 0)
    assert counted.global_loads == counted.shared_writes > 0, "what is loaded is stored for the others"


def test_the_loop_of_an_attention_kernel_for_people_and_programs(capsys, monkeypatch):
    words = ["tilewave", "compile", str(EXAMPLES / "attention.py"), "--target", "sm_90a", "--kernel", "attention"]
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.argv", [*words, "--stats", "--json"])
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    loop = next(iter(json.loads(capsys.readouterr().out).values()))["loop"]
    assert loop["producer"]["tma_loads"] == 2, "K and V"
    assert (loop["mbarrier_waits"], loop["matrix_instructions"] > 4) == (2, True)
    assert loop["alu_instructions"] > 100, "the softmax"
    assert loop["instructions"] == sum(loop[name] for name in NAMES)
    monkeypatch.setattr("sys.argv", [*words, "--stats"])
    with pytest.raises(SystemExit):
        main()
    table = capsys.readouterr().out
    assert "Per warp and step, in PTX" in table
    assert re.search(rf"instructions, of them matrix +│ +{loop['instructions']}, {loop['matrix_instructions']} ", table)


M, N = sym.M, sym.N


@wave([WorkgroupConstraint(M, 64, 0), WorkgroupConstraint(N, 64, 1)])
def copied(a: Memory[M, N, GLOBAL_ADDRESS_SPACE, f16], c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f16]):
    write(read(a), c)


def test_a_kernel_without_a_loop_says_so():
    kernel = compiled(copied, {M: 128, N: 128})
    with pytest.raises(UnsupportedCode, match=r"^copied has no loop with matrix instructions$"):
        kernel.loop_statistics  # noqa: B018
