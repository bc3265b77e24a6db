"""Functions as they are spelled for machines on which LLVM has no words for them, run on this one."""

import ctypes

import llvmlite.binding as llvm
import numpy as np

from tilewave.ir.core import Value
from tilewave.ir.types import F32, Vector
from tilewave.lower.elements import literal
from tilewave.lower.gpu.functions import function
from tilewave.lower.llvm import LlvmFunction, Module


def run_spelled(spell, x, lanes=1, more=""):
    """`spell(f, x, lanes)` of f32 numbers, so many at a time; `more` is LLVM IR that it calls."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    to = llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=1)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(looped(spell, lanes)), to)
    if more:
        engine.add_module(llvm.parse_assembly(more))
    engine.finalize_object()
    y = np.full_like(x, 77)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    kind(engine.get_function_address("spelled"))(x.ctypes.data, y.ctypes.data, len(x) // lanes)
    return y


def looped(spell, lanes):
    """A loop that computes a function of `lanes` numbers at a time."""
    module = Module()
    f = LlvmFunction(module, "spelled", [("ptr", "%x"), ("ptr", "%y"), ("i64", "%n")])
    kind = f"<{lanes} x float>" if lanes > 1 else "float"

    def step(i, carried):
        given, found = (f.value(f"getelementptr {kind}, ptr {base}, i64 {i}") for base in ("%x", "%y"))
        x = f.value(f"load {kind}, ptr {given}, align 4")
        f.do(f"store {kind} {spell(f, x, lanes)}, ptr {found}, align 4")
        return []

    f.loop("%n", [], step)
    module.functions.append(f.finish())
    return str(module)


POWER = "power_of_two"


def power_off_by(units):
    """exp2 of one f32, off by so many units in the last place where it is neither a whole power nor about denormal."""
    return f"""
declare float @llvm.exp2.f32(float)
declare float @llvm.floor.f32(float)
define float @{POWER}(float %x) {{
  %exact = call float @llvm.exp2.f32(float %x)
  %floor = call float @llvm.floor.f32(float %x)
  %power = call float @llvm.exp2.f32(float %floor)
  %error = fmul float %power, {literal(units * 2.0**-23, F32)}
  %off = fadd float %exact, %error
  %whole = fcmp ueq float %floor, %x
  %low = fcmp olt float %x, -100.0
  %high = fcmp oge float %x, 128.0
  %end = or i1 %low, %high
  %kept = or i1 %whole, %end
  %result = select i1 %kept, float %exact, float %off
  ret float %result
}}
"""


def as_on_hopper(op):
    """A function as it is spelled for sm_90a, but that its powers of two are ours."""

    def spell(f, x, lanes):
        vector = Vector((lanes,), F32)
        made = op(results=(Value("y", vector),), x=Value("x", vector))
        return function(f, made, x, F32, lanes, {"exp2": POWER})

    return spell
