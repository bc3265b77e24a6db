"""`ops.moe` and `ops.counting_sort` as they are called."""

from __future__ import annotations

from typing import Any

from tilewave.errors import CallError, here
from tilewave.kernels.activations import activation_named
from tilewave.kernels.numbers import checked_k, checked_length
from tilewave.kernels.selections import routing_named
from tilewave.lang.kernel import WaveKernel
from tilewave.ops import experts, sorts
from tilewave.ops.arrays import Array, are_torchs, taken, torch_operators
from tilewave.ops.operation import Operation


def _moe(
    x: Array,
    router_logits: Array,
    w1: Array,
    w2: Array,
    top_k: int,
    *,
    scoring: str = "softmax",
    renormalize: bool = True,
    activation: str = "silu",
    out: Array | None = None,
) -> Array:
    """Σ weight[t, e] · w2[e] · (activation(gate) · up) over the top_k experts e of each token t of x [T, H].

    gate and up are the first and the last F rows of w1[e] · x[t], of w1 [E, 2F, H]; w2 is [E, H, F]. The experts of a
    token are those of its largest logits, of router_logits [T, E], and the first of equal ones. Their weights are
    scores of all logits (softmax) or of each alone (sigmoid), divided by their sum if they are renormalized. A token's
    result has the same bits whatever the other tokens are.
    """
    asked = checked_k("moe", top_k), routing_named("moe", scoring, renormalize), activation
    activation_named("moe", activation)
    if are_torchs(x, router_logits, w1, w2):
        return torch_operators().moe(x, router_logits, w1, w2, *asked, out)
    lib, arrays = taken(experts.moe.arguments, x, router_logits, w1, w2, out)
    found, *_ = experts.moe(lib, tuple(arrays), *asked)
    return found if out is None else out


def _moe_kernel(x: Array, router_logits: Array, w1: Array, w2: Array, top_k: int, **options: Any) -> WaveKernel:
    """Return the kernel of the first product, which takes most of the time."""
    arrays: tuple[Array, ...] = (x, router_logits, w1, w2)
    if are_torchs(*arrays):
        torch_operators().want_tensors(experts.moe.arguments, (*arrays, None))
        lib: Any = torch_operators().LIBRARY
    else:
        lib, taken_arrays = taken(experts.moe.arguments, *arrays, None)
        arrays = tuple(taken_arrays[:-1])
    routing = routing_named("moe", options.get("scoring", "softmax"), options.get("renormalize", True))
    activation = options.get("activation", "silu")
    launches = experts.moe.work(lib, *arrays, None, top_k, routing, activation).launches
    kernels = [launch.kernel for launch in launches if launch.kernel.name == "gated_product"]
    if not kernels:
        raise CallError("moe: there is nothing to compute", loc=here(), remedy="pass arrays with elements")
    return kernels[0]


def _counting_sort(x: Array, length: int) -> Any:
    """The place of each number of x when they are sorted, and where those of each value from 0 up to a length end.

    Equal numbers keep their order. A number that is no such value has the place -1.
    """
    length = checked_length("counting_sort", length)
    if are_torchs(x):
        return torch_operators().counting_sort(x, length)
    lib, (given,) = taken(sorts.counting_sort.arguments, x)
    return sorts.counting_sort(lib, (given,), length)


def _counting_sort_kernel(x: Array, length: int) -> WaveKernel:
    """Return the kernel that places numbers, the last of a sort."""
    if are_torchs(x):
        torch_operators().want_tensors(sorts.counting_sort.arguments, (x,))
        lib: Any = torch_operators().LIBRARY
    else:
        lib, (x,) = taken(sorts.counting_sort.arguments, x)
    return sorts.counting_sort.work(lib, x, length).launches[-1].kernel


moe = Operation("moe", _moe, _moe_kernel)
counting_sort = Operation("counting_sort", _counting_sort, _counting_sort_kernel)
