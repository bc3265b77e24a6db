"""activation(gate) · up of arrays of any shape, and its gradients."""

from __future__ import annotations

from math import prod

from tilewave.errors import CallError, here
from tilewave.kernels.activations import activation_named
from tilewave.kernels.gated import gated_gradients_kernel, gated_kernel, gated_tile_for
from tilewave.kernels.indexed import RowTile
from tilewave.ops.arrays import Array, ArrayLibrary, folded, spelled, target_of
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.results import prepared, written


def _gated(lib: ArrayLibrary, gate: Array, up: Array, out: Array | None, activation: str) -> CallWork:
    _check(gate, up, activation)
    gate_dtype, up_dtype = lib.dtype("gated", "gate", gate), lib.dtype("gated", "up", up)
    found = prepared("gated", lib, out, tuple(gate.shape), gate_dtype, {"gate": gate, "up": up})
    if not prod(gate.shape):
        return CallWork({"out": found})
    to, after = written(lib, found)
    kernel = gated_kernel(_tile(lib, gate), activation, gate_dtype, up_dtype, lib.dtype("gated", "out", to))
    return CallWork(
        {"out": found}, KernelLaunch(kernel, {"gate": folded(gate), "up": folded(up), "out": to}), after=after
    )


gated = Operated("gated", ("gate", "up", "out?"), _gated)
"""activation(gate) · up; a further argument is the activation."""


def _gated_gradients(lib: ArrayLibrary, gate: Array, up: Array, grad: Array, activation: str) -> CallWork:
    _check(gate, up, activation)
    dtypes = [lib.dtype("gated", name, array) for name, array in (("gate", gate), ("up", up), ("grad", grad))]
    found = {
        name: lib.empty(tuple(gate.shape), dtype, gate)
        for name, dtype in zip(("grad_gate", "grad_up"), dtypes, strict=False)
    }
    if not prod(gate.shape):
        return CallWork(found)
    kernel = gated_gradients_kernel(_tile(lib, gate), activation, *dtypes)
    arrays = {"gate": gate, "up": up, "grad": grad, **found}
    return CallWork(found, KernelLaunch(kernel, {name: folded(array) for name, array in arrays.items()}))


gated_gradients = Operated("gated_gradients", ("gate", "up", "grad"), _gated_gradients)
"""The gradients of gate and up; a further argument is the activation."""


def _tile(lib: ArrayLibrary, gate: Array) -> RowTile:
    return gated_tile_for(target_of("gated", lib.device(gate)), gate.shape[-1], lib.dtype("gated", "gate", gate))


def _check(gate: Array, up: Array, activation: str) -> None:
    activation_named("gated", activation)
    if not len(gate.shape):
        raise CallError("gated: gate is a single number", loc=here(), remedy="pass an array with one axis at least")
    if tuple(gate.shape) != tuple(up.shape):
        what = f"gated: gate is {spelled(gate.shape)}, but up is {spelled(up.shape)}"
        raise CallError(what, loc=here(), remedy="they have one shape")
