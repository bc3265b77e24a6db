"""A mixture of experts: each token is multiplied by the matrices of its experts, and their results are added up.

A call routes tokens, sorts them by expert, copies them there, multiplies twice, and combines. The counts of the experts
stay on the device, no row is padded, and every sum has one order, whatever the other tokens are.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewave.errors import CallError, DTypeError, here
from tilewave.ir.types import F32, F64, I32, DType
from tilewave.kernels.grouped import GroupedForm, gated_product_kernel, grouped_tile_for, invariant_product_kernel
from tilewave.kernels.indexed import scatter_tile_for
from tilewave.kernels.products import K, N
from tilewave.kernels.ragged import permute_rows_kernel, unpermute_rows_kernel, unpermute_tile_for
from tilewave.kernels.rows import kernel_for
from tilewave.kernels.selections import Routing, checked_count, route_tokens_kernel, rows_together
from tilewave.ops.arrays import Array, ArrayLibrary, spelled, target_of
from tilewave.ops.plans import CallWork, KernelLaunch, Operated
from tilewave.ops.products import laid
from tilewave.ops.results import prepared, written
from tilewave.ops.sorts import counting_sort_of

SHAPES = "x [T, H], router_logits [T, E], w1 [E, 2F, H] with the rows of the gate first, w2 [E, H, F]"


def want_experts(x: Array, logits: Array, w1: Array, w2: Array) -> None:
    """Raise an error unless tokens, logits and matrices have the shapes of one mixture."""
    arrays = {"x": x, "router_logits": logits, "w1": w1, "w2": w2}
    if [len(array.shape) for array in arrays.values()] != [2, 2, 3, 3]:
        raise CallError(f"moe: {_shapes(arrays)}", loc=here(), remedy=f"pass {SHAPES}")
    (tokens, hidden), (rows, experts), (first, wide, depth), (second, out, narrow) = (a.shape for a in arrays.values())
    if (rows, first, second) != (tokens, experts, experts) or (depth, out, wide) != (hidden, hidden, 2 * narrow):
        raise CallError(f"moe: {_shapes(arrays)}, which do not go together", loc=here(), remedy=f"pass {SHAPES}")
    if not narrow or not hidden:
        raise CallError(f"moe: {_shapes(arrays)}: there is nothing to multiply", loc=here(), remedy=f"pass {SHAPES}")


def _shapes(arrays: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} is {spelled(array.shape)}" for name, array in arrays.items())


def token_dtype(lib: ArrayLibrary, x: Array, logits: Array, w1: Array, w2: Array) -> DType:
    """Return the dtype of tokens and matrices, which are equal floats; logits are any floats."""
    arrays = {"x": x, "w1": w1, "w2": w2}
    dtypes = {name: lib.dtype("moe", name, array) for name, array in arrays.items()}
    for name, dtype in {**dtypes, "router_logits": lib.dtype("moe", "router_logits", logits)}.items():
        if not dtype.is_float or dtype.bytes < 2:
            what = f"moe: {name} is {dtype}, but it takes floats of 16 bits or more"
            raise DTypeError(what, loc=here(), remedy=f"cast {name} to bf16")
        if name in dtypes and dtype != dtypes["x"]:
            what = f"moe: {name} is {dtype}, but x is {dtypes['x']}"
            raise DTypeError(what, loc=here(), remedy="all have one dtype; cast one of them")
    return dtypes["x"]


# where tokens go --------------------------------------------------------------------------------------------------


def _route(lib: ArrayLibrary, logits: Array, weights: Array, experts: Array, routing: Routing) -> KernelLaunch:
    dtypes = [lib.dtype("moe", name, a) for name, a in (("router_logits", logits), ("weights", weights))]
    rows = rows_together(target_of("moe", lib.device(logits)), logits.shape[1], dtypes[0])
    kernel = route_tokens_kernel(rows, *dtypes, I32, weights.shape[1], routing)
    return KernelLaunch(kernel, {"router_logits": logits, "weights": weights, "experts": experts})


def _routed(lib: ArrayLibrary, logits: Array, top_k: int, routing: Routing) -> CallWork:
    """Return the weights and experts of each token, its rows among those sorted by expert, and the experts' ends."""
    shape = (logits.shape[0], checked_count("moe", top_k, logits.shape[1]))
    of = F64 if lib.dtype("moe", "router_logits", logits) == F64 else F32
    found = {"weights": lib.empty(shape, of, logits), "experts": lib.empty(shape, I32, logits)}
    places = {"slots": lib.empty(shape, I32, logits), "ends": lib.empty((logits.shape[1],), I32, logits)}
    sort = counting_sort_of(lib, "experts", found["experts"], ("slots", places["slots"]), places["ends"])
    return CallWork({**found, **places}, _route(lib, logits, **found, routing=routing), sort.launches, sort.scratch)


# the layer ------------------------------------------------------------------------------------------------------------


def _moe(
    lib: ArrayLibrary,
    x: Array,
    logits: Array,
    w1: Array,
    w2: Array,
    out: Array | None,
    top_k: int,
    routing: Routing,
    activation: str,
) -> CallWork:
    want_experts(x, logits, w1, w2)
    dtype = token_dtype(lib, x, logits, w1, w2)
    inputs = {"x": x, "router_logits": logits, "w1": w1, "w2": w2}
    found = prepared("moe", lib, out, tuple(x.shape), dtype, inputs)
    places = _routed(lib, logits, top_k, routing)
    results = {"out": found, **places.results}
    if not x.shape[0]:
        return CallWork(results)
    rows, narrow = x.shape[0] * top_k, w2.shape[2]
    buffers = {"rows": lib.empty((rows, x.shape[1]), dtype, x), "hidden": lib.empty((rows, narrow), dtype, x)}
    scratch = {**places.results, **places.scratch, **buffers}
    to, after = written(lib, found)
    launches = (
        *places.launches,
        permuted(lib, "x", x, "slots", scratch["slots"], "rows", scratch["rows"]),
        *_products(lib, w1, w2, scratch, activation),
        _combined(lib, "rows", scratch, to),
    )
    return CallWork(results, launches[0], launches[1:], {**places.scratch, **buffers}, after)


moe = Operated("moe", ("x", "router_logits", "w1", "w2", "out?"), _moe)
"""The mixture of experts, and where its tokens went: their weights, their experts, their rows among those sorted by
expert, and the ends of the experts' rows. Further arguments: the number of experts of a token, the `Routing`, the
activation."""


def permuted(lib: ArrayLibrary, of: str, x: Array, slots_name: str, slots: Array, to: str, rows: Array) -> KernelLaunch:
    kernel = kernel_for(permute_rows_kernel, scatter_tile_for, x=x, slots=slots, y=rows)
    return KernelLaunch(kernel, {of: x, slots_name: slots, to: rows})


def _products(
    lib: ArrayLibrary, w1: Array, w2: Array, scratch: dict[str, Array], activation: str
) -> tuple[KernelLaunch, KernelLaunch]:
    """Return the launches of both products: rows to hidden numbers, and these to rows."""
    rows, hidden, ends = scratch["rows"], scratch["hidden"], scratch["ends"]
    experts, wide, depth = w1.shape
    pairs, pair_axes = laid(lib, w1.reshape(experts, 2, wide // 2, depth), N, K)
    second, second_axes = laid(lib, w2, N, K)
    dtype = lib.dtype("moe", "w1", w1)
    tile = grouped_tile_for(rows.shape[0], experts, dtype)
    gated = gated_product_kernel(tile.of_pairs, GroupedForm(dtype, dtype, I32, activation=activation, w_axes=pair_axes))
    plain = invariant_product_kernel(tile, GroupedForm(dtype, dtype, I32, w_axes=second_axes))
    return (
        KernelLaunch(gated, {"rows": rows, "w1": pairs, "ends": ends, "hidden": hidden}),
        KernelLaunch(plain, {"hidden": hidden, "w2": second, "ends": ends, "rows": rows}),
    )


def _combined(lib: ArrayLibrary, of: str, scratch: dict[str, Array], to: Array) -> KernelLaunch:
    rows, slots, weights = scratch[of], scratch["slots"], scratch["weights"]
    kernel = kernel_for(unpermute_rows_kernel, unpermute_tile_for, x=rows, slots=slots, y=to, weights=weights)
    return KernelLaunch(kernel, {of: rows, "slots": slots, "out": to, "weights": weights})
