"""Small loops of machine code whose cycles are known by hand."""

from emulated_code import kernel_text

from tilewave.cycles import loop_cycles
from tilewave.emulator.assembly import read_assembly

PRODUCTS = [f"v_mfma_f32_16x16x16_f16 v[{at}:{at + 3}], v[8:9], v[10:11], v[{at}:{at + 3}]" for at in range(16, 48, 4)]
"""Eight products of 4 passes each, which do not depend on each other."""
LOAD = "global_load_dwordx4 v[64:67], v[2:3], off"
STORE = "global_store_dwordx4 v[2:3], v[64:67], off"
DIRECT = "global_load_lds_dwordx4 v[2:3], off"
READS = [f"ds_read_b128 v[{at}:{at + 3}], v4" for at in range(64, 96, 4)]
ENDING = ["s_add_i32 s6, s6, 1", "s_cmp_lt_u32 s6, 4", "s_cbranch_scc1 .L1"]
"""Three slots, and three more until the loop begins again."""


def loop_text(body, *, lanes=256, chip="gfx942"):
    """A kernel whose loop has these instructions, and a counter."""
    lines = "".join(f"\t{line}\n" for line in [*body, *ENDING])
    return kernel_text(f"\ts_mov_b32 s6, 0\n.L1:\n{lines}", lanes=lanes, chip=chip, shared=4096)


def cycles_of(body, *, lanes=256, chip="gfx942", **options):
    """The model's result for a loop with these instructions."""
    return loop_cycles(read_assembly(loop_text(body, lanes=lanes, chip=chip)), **options)
