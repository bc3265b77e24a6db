"""Makes assembly as LLVM would emit it around a few instructions, and runs it."""

import re
from pathlib import Path

import numpy as np

from tilewave.emulator import EmulationError, Emulator

DATA = Path(__file__).parent / "emulator" / "data"
FIRST_INPUT, FIRST_RESULT = 10, 100

TEXT = """\
	.amdgcn_target "amdgcn-amd-amdhsa--{chip}"
	.text
k:
{body}
	s_endpgm
	.section .rodata,"a",@progbits
	.amdhsa_kernel k
		.amdhsa_group_segment_fixed_size {shared}
		.amdhsa_private_segment_fixed_size {private}
		.amdhsa_kernarg_size {arguments}
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 0
		.amdhsa_system_sgpr_workgroup_id_z 0
		.amdhsa_next_free_vgpr 128
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
	.end_amdhsa_kernel
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
{metadata}
    .group_segment_fixed_size: {shared}
    .max_flat_workgroup_size: {lanes}
    .name:           k
    .sgpr_count:     32
    .sgpr_spill_count: 0
    .vgpr_count:     128
    .vgpr_spill_count: 0
amdhsa.target:   amdgcn-amd-amdhsa--{chip}
amdhsa.version:
  - 1
  - 2
...

	.end_amdgpu_metadata
"""


def kernel_text(body, *, pointers=("a", "o"), chip="gfx942", shared=0, private=0, lanes=64):
    """A kernel `k` of these lines; s[0:1] points to the pointers, s2 is the workgroup, v0 the lane."""
    metadata = "\n".join(
        f"      - .name:           {name}\n        .offset:         {8 * at}\n        .size:           8\n"
        f"        .value_kind:     global_buffer"
        for at, name in enumerate(pointers)
    )
    return TEXT.format(
        chip=chip,
        body=body,
        shared=shared,
        private=private,
        arguments=8 * len(pointers),
        metadata=metadata,
        lanes=lanes,
    )


def compute(body, *inputs, results=1, chip="gfx942", shared=0, private=0, mode=None):
    """Run a body on 64 lanes: inputs of 32-bit words per lane come in v10, v11, …; what is in v100, … comes back.

    s10 to s19, v3 to v9 and what is above are free.
    """
    words = [np.ascontiguousarray(x).reshape(64, -1).view(np.uint32) for x in inputs]
    given = np.concatenate([np.zeros((64, 0), np.uint32), *words], axis=1)
    count = given.shape[1]
    loads = "\n".join(f"\tglobal_load_dword v{FIRST_INPUT + at}, v1, s[4:5] offset:{4 * at}" for at in range(count))
    stores = "\n".join(
        f"\tglobal_store_dword v2, v{FIRST_RESULT + at}, s[6:7] offset:{4 * at}" for at in range(results)
    )
    text = kernel_text(
        f"\ts_load_dwordx4 s[4:7], s[0:1], 0x0\n\tv_mul_u32_u24_e32 v1, {4 * count}, v0\n"
        f"\tv_mul_u32_u24_e32 v2, {4 * results}, v0\n\ts_waitcnt lgkmcnt(0)\n{loads}\n\ts_waitcnt vmcnt(0)\n{body}\n"
        f"\ts_nop 15\n\ts_nop 15\n{stores}",
        chip=chip,
        shared=shared,
        private=private,
    )
    if mode is not None:
        text = re.sub(r"(\.amdhsa_next_free_vgpr 128)", rf"\1\n\t\t{mode}", text)
    found = np.zeros((64, results), np.uint32)
    Emulator.from_assembly(text).launch("k", (1,), (64,), [given, found])
    return found


def findings_of(text, *arrays, grid=(1,), block=(64,), **options):
    """What is found, with the checks going on after each finding."""
    emulator = Emulator.from_assembly(text)
    try:
        return emulator.launch("k", grid, block, list(arrays), check="warn", **options).findings
    except EmulationError as error:
        return (error.finding,)


class Gemm:
    """A fixture: C = A · Bᵀ, with the tile and the lanes it was made for."""

    def __init__(self, name, rows, columns, lanes):
        self.name, self.rows, self.columns, self.lanes = name, rows, columns, lanes
        self.text = (DATA / f"{name}.s").read_text()

    def __repr__(self):
        return self.name

    def problem(self, m, n, k, seed=0):
        """Random A and B, a poisoned C, the product in float64, and by how much it may be missed."""
        rng = np.random.default_rng(seed)
        a, b = (rng.standard_normal((extent, k)).astype(np.float16) for extent in (m, n))
        exact = a.astype(np.float64) @ b.astype(np.float64).T
        # Every matrix instruction adds 16 or 32 exact products and rounds once.
        bound = (k / 16) * 2.0**-24 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T) * 2
        return a, b, np.full((m, n), np.nan, np.float32), exact, bound

    def run(self, m, n, k, text=None, **options):
        """The report, and whether C is right."""
        a, b, c, exact, bound = self.problem(m, n, k)
        emulator = Emulator.from_assembly(self.text if text is None else text)
        grid = (n // self.columns, m // self.rows)
        report = emulator.launch("gemm", grid, (self.lanes,), [a, b, c, m, n, k], **options)
        return report, bool((np.abs(c - exact) <= bound).all())


SMALL = [
    Gemm("gemm_gfx942", 64, 64, 256),
    Gemm("gemm_gfx950", 64, 64, 256),
    Gemm("pingpong_gfx942", 64, 64, 512),
    Gemm("pingpong_gfx950", 64, 64, 512),
]
LARGE = Gemm("pingpong_128x256_gfx942", 128, 256, 512)
