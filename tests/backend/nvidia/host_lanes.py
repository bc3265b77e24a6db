"""LLVM IR of lanes, as it is given to LLVM for sm_90a, run on this machine: lane by lane, without meetings."""

import ctypes
import re
from functools import cache

import llvmlite.binding as llvm
import numpy as np

from tilewave.backend.nvidia.code import ALIGNED
from tilewave.backend.nvidia.compiler import lowered_for
from tilewave.backend.targets import target_named
from tilewave.ir.launch import HostLaunch, numbers_of

HERE = """
@here.thread = global i32 0
@here.workgroup = global i32 0
@here.looked = global i64 0
@here.log = global ptr null
define i32 @own.thread() {
  %x = load i32, ptr @here.thread
  ret i32 %x
}
define i32 @own.workgroup() {
  %x = load i32, ptr @here.workgroup
  ret i32 %x
}
define i32 @own.shuffle(i32 %all, i32 %x, i32 %lane, i32 %last) {
  ret i32 %x
}
define void @own.note(ptr addrspace(1) %p) {
  %n = load i64, ptr @here.looked
  %log = load ptr, ptr @here.log
  %at = getelementptr i64, ptr %log, i64 %n
  %address = ptrtoint ptr addrspace(1) %p to i64
  store i64 %address, ptr %at
  %next = add i64 %n, 1
  store i64 %next, ptr @here.looked
  ret void
}
"""
BLOCK = """
define { i32, i32, i32, i32 } @own.block(ptr addrspace(1) %p, i32 %truth) {
  %has = icmp ne i32 %truth, 0
  br i1 %has, label %look, label %leave
look:
  call void @own.note(ptr addrspace(1) %p)
  %x = load { i32, i32, i32, i32 }, ptr addrspace(1) %p, align 16
  ret { i32, i32, i32, i32 } %x
leave:
  ret { i32, i32, i32, i32 } zeroinitializer
}
"""
"""A load that a lane predicates, which is no word of LLVM's."""
SHARED = "[65536 x i8] zeroinitializer"
"""The memory of a workgroup, whose lanes run one after the other."""
NAMES = {
    "llvm.nvvm.read.ptx.sreg.tid.x": "own.thread",
    "llvm.nvvm.read.ptx.sreg.ctaid.x": "own.workgroup",
    "llvm.nvvm.shfl.sync.idx.i32": "own.shuffle",
    "llvm.nvvm.mulhi.ui": "own.upper",
}
UPPER = """
define i32 @own.upper(i32 %a, i32 %b) {
  %x = zext i32 %a to i64
  %y = zext i32 %b to i64
  %p = mul i64 %x, %y
  %h = lshr i64 %p, 32
  %r = trunc i64 %h to i32
  ret i32 %r
}
"""


def host_text(kernel, key=ALIGNED):
    """The kernel for this machine; every load from an array is noted."""
    text = lowered_for(kernel, target_named("sm_90a").chip, key).llvm_ir
    for theirs, ours in NAMES.items():
        text = re.sub(rf"declare [^\n]*@{re.escape(theirs)}\([^\n]*\n", "", text).replace(theirs, ours)
    text = re.sub(r"define ptx_kernel void (@[^\n]*?\)) nounwind[^\n]*\{", r"define void \1 {", text)
    text = re.sub(r", !dbg !\d+", "", text)
    text = text.replace("= external addrspace(3) global [0 x i8]", f"= internal addrspace(3) global {SHARED}")
    predicated = (
        r"asm sideeffect \"[^\n\"]*@p ld\.global[^\n\"]*\", \"[^\"]*\"\((?:i32 0, )+([^\n]*?)\) nounwind convergent"
    )
    text = re.sub(predicated, r"@own.block(\1)", text)
    noted = r"call void @own.note(ptr addrspace(1) \2)\n  \1"
    text = re.sub(r"(%\S+ = load [^\n]*?ptr addrspace\(1\) (%[\w.]+)[^\n]*)", noted, text)
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("!", "attributes", "target")))
    return text + HERE + UPPER + BLOCK


def rounds_addresses(text):
    """Whether addresses are rounded down to aligned blocks."""
    return re.search(r"and i64 %\S+, 15\b|ptrmask", text) is not None


@cache
def engine_of(kernel, key):
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    to = llvm.Target.from_default_triple().create_target_machine(opt=1)
    module = llvm.parse_assembly(host_text(kernel, key))
    builder = llvm.create_pass_builder(to, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)  # as for the card: some mistakes are those of the optimizer
    engine = llvm.create_mcjit_compiler(module, to)
    engine.finalize_object()
    return engine


def run_on_host(kernel, arrays, numbers, key=ALIGNED):
    """Every lane of every workgroup in turn; the addresses that were loaded from."""
    host = HostLaunch(kernel)(numbers)
    words = []
    for x in arrays:
        words += [x.ctypes.data, *(s // x.itemsize for s in x.strides)]
    passed = dict(zip(HostLaunch(kernel).names, host.numbers, strict=True))
    words += passed.values()
    assert list(passed)[: len(numbers)] == [v.name for v in numbers_of(kernel)]
    engine = engine_of(kernel, key)
    threads = kernel.lanes * np.prod(kernel.waves)
    log = np.zeros(host.workgroups * threads * 64, np.int64)

    def cell(name, kind):
        return kind.from_address(engine.get_global_value_address(name))

    cell("here.log", ctypes.c_uint64).value = log.ctypes.data
    cell("here.looked", ctypes.c_int64).value = 0
    run = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))(engine.get_function_address(kernel.name))
    for workgroup in range(host.workgroups):
        cell("here.workgroup", ctypes.c_int32).value = workgroup
        for thread in range(threads):
            cell("here.thread", ctypes.c_int32).value = thread
            run(*words)
    return log[: cell("here.looked", ctypes.c_int64).value]
