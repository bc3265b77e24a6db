"""Random calls of what torch differentiates and patches: gradients of operations, models with our layers, operators of
kernels; held against torch's own functions in float64.
"""

from __future__ import annotations

import copy
import math
import random
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from tilewave import *
from tilewave.errors import SlowCodeWarning, TilewaveError

from .calls import VALUES

RUN = 24
"""The number of seeds that share compiled kernels."""
SIZES = ((1,), (3, 4), (5, 7, 8), (9, 13, 16), (17, 31, 32))
MOST_SAID = 120


def case(seed: int) -> str | None:
    """One call: of an operation and its gradients, of a patched model, or of an operator of a kernel."""
    import torch

    torch.manual_seed(seed)
    theme, r = random.Random(f"torch {seed // RUN}"), random.Random(f"torch call {seed}")
    kind = (gradients, patched, operators)[seed // RUN % 3]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            found = kind(theme, r)
        except Exception as error:
            text = str(error).split("\n")[0][:MOST_SAID]
            found = f"raised {type(error).__name__}: {text}"
    foreign = [w for w in warned if not issubclass(w.category, SlowCodeWarning)]
    if found is None and foreign:
        found = f"warned {foreign[0].category.__name__}: {foreign[0].message}"
    return found and f"{kind.__name__}: {found}"


def near(name: str, found: Any, want: Any, roundings: int) -> str | None:
    """What is wrong with a tensor; sums are f32 at least, and what is handed on is rounded to the dtype."""
    import torch

    if tuple(found.shape) != tuple(want.shape):
        return f"{name} has another shape: {tuple(found.shape)}, not {tuple(want.shape)}"
    eps = torch.finfo(found.dtype).eps
    summed = min(eps, torch.finfo(torch.float32).eps)
    size = max(1.0, float(want.abs().max()) if want.numel() else 0.0)
    bound = (8 * (roundings + 32) * summed + (24 * eps if eps > summed else 0.0)) * size
    off = float((found.double() - want.double()).abs().max()) if want.numel() else 0.0
    return None if off <= bound else f"wrong numbers in {name}\noff by {off:.3g}, more than {bound:.3g}"


def refused(function: Callable[..., Any], given: Any) -> str | None:
    """What is wrong where a function takes what it cannot use."""
    try:
        function(given)
    except TilewaveError:
        return None
    return f"{function.__name__} took {given!r}"


def size_of(r: random.Random, bucket: tuple[int, ...]) -> int:
    return 0 if r.random() < 0.03 else r.choice(bucket)


def viewed(r: random.Random, shape: tuple[int, ...], dtype: Any) -> Any:
    """A tensor of random numbers, in one of many layouts."""
    import torch

    match r.randrange(4):
        case 0 if len(shape) > 1:
            return torch.randn(*shape[:-2], shape[-1], shape[-2], dtype=dtype).mT
        case 1:
            return torch.randn(*shape[:-1], 2 * shape[-1] + 1, dtype=dtype)[..., 1::2][..., : shape[-1]]
        case 2:
            return torch.randn(shape[-1:], dtype=dtype).expand(shape)
    return torch.randn(shape, dtype=dtype)


# -- gradients -------------------------------------------------------------------------------------------------------


def gradients(theme: random.Random, r: random.Random) -> str | None:
    """The result and all gradients of an operation, against torch's in float64."""
    import torch

    dtype = theme.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64])
    name = theme.choice(sorted(DIFFERENTIATED))
    shapes, ours, theirs = DIFFERENTIATED[name](theme, r)
    given = {n: viewed(r, shape, dtype) for n, shape in shapes.items()}
    wanting = {n for n in given if r.random() < 0.75}
    mine = {n: x.detach().requires_grad_(n in wanting) for n, x in given.items()}
    exact = {n: x.detach().double().requires_grad_(n in wanting) for n, x in given.items()}
    found, want = ours(**mine), theirs(**exact)
    roundings = max((s for shape in shapes.values() for s in shape), default=1) * 2
    if wrong := near(f"{name}'s result", found.detach(), want.detach(), roundings):
        return wrong
    if not wanting or not want.requires_grad:
        return None
    grad = viewed(r, tuple(want.shape), dtype) if want.dim() else torch.ones((), dtype=dtype)
    found.backward(grad)
    want.backward(grad.double())
    for n in wanting:
        if mine[n].grad is None:
            return f"{name} has no gradient of {n}"
        if wrong := near(f"{name}'s gradient of {n}", mine[n].grad, exact[n].grad, 4 * roundings):
            return wrong
    return None


def _matmul(theme: random.Random, r: random.Random) -> Any:
    import torch

    from tilewave import ops

    m, n, k = (size_of(r, theme.choice(SIZES)) for _ in range(3))
    front = tuple(r.choice([1, 2, 3]) for _ in range(theme.choice([0, 1, 2])))
    front_b = tuple(1 if r.random() < 0.3 else s for s in front)[r.choice([0, 0, len(front)]) :]
    return {"a": (*front, m, k), "b": (*front_b, k, n)}, ops.matmul, lambda a, b: torch.matmul(a, b)


def _linear(theme: random.Random, r: random.Random) -> Any:
    from torch.nn import functional as torchs

    from tilewave import ops

    m, n, k = (size_of(r, theme.choice(SIZES)) for _ in range(3))
    shapes = {"x": (m, k), "weight": (n, k)}
    shapes |= {"bias": (n,)} if theme.random() < 0.5 else {}
    shapes |= {"residual": (m, n)} if theme.random() < 0.5 else {}
    name = theme.choice([None, "gelu", "gelu_tanh", "relu", "silu"])
    functions: dict[Any, Callable[..., Any]] = {
        None: lambda x: x,
        "gelu": torchs.gelu,
        "gelu_tanh": lambda x: torchs.gelu(x, approximate="tanh"),
        "relu": torchs.relu,
        "silu": torchs.silu,
    }

    def theirs(x: Any, weight: Any, bias: Any = None, residual: Any = 0.0) -> Any:
        return functions[name](torchs.linear(x, weight, bias)) + residual

    return shapes, lambda **given: ops.linear(**given, activation=name), theirs


def _rows(theme: random.Random, r: random.Random) -> tuple[int, ...]:
    return (
        *(r.choice([1, 2, 3]) for _ in range(r.choice([0, 1, 2]))),
        r.choice([1, 2, 5]),
        r.choice(theme.choice(SIZES)),
    )


def _softmax(theme: random.Random, r: random.Random) -> Any:
    import torch

    from tilewave import ops

    shape = _rows(theme, r)
    dim = r.choice([-1, len(shape) - 1, 0])
    return {"x": shape}, lambda x: ops.softmax(x, dim), lambda x: torch.softmax(x, dim)


def _rms_norm(theme: random.Random, r: random.Random) -> Any:
    import torch

    from tilewave import ops

    shape = _rows(theme, r)
    shapes = {"x": shape, **({"weight": shape[-1:]} if theme.random() < 0.5 else {})}

    def theirs(x: Any, weight: Any = 1.0) -> Any:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.125) * weight

    return shapes, lambda **given: ops.rms_norm(**given, eps=0.125), theirs


def _layer_norm(theme: random.Random, r: random.Random) -> Any:
    from torch.nn import functional as torchs

    from tilewave import ops

    shape = _rows(theme, r)
    shapes: dict[str, tuple[int, ...]] = {"x": shape}
    if theme.random() < 0.6:
        shapes |= {"weight": shape[-1:], **({"bias": shape[-1:]} if theme.random() < 0.5 else {})}

    def theirs(x: Any, weight: Any = None, bias: Any = None) -> Any:
        return torchs.layer_norm(x, x.shape[-1:], weight, bias, 0.125)

    return shapes, lambda **given: ops.layer_norm(**given, eps=0.125), theirs


def _attention(theme: random.Random, r: random.Random) -> Any:
    import torch

    from tilewave import ops

    queries, keys, size, size_v = (r.choice(theme.choice(SIZES)) for _ in range(4))
    causal, of_k, sharing = theme.random() < 0.4, r.choice([1, 2]), theme.choice([1, 2])
    shapes = {"q": (2, of_k * sharing, queries, size), "k": (2, of_k, keys, size), "v": (2, of_k, keys, size_v)}
    if theme.random() < 0.3:
        shapes["bias"] = (queries, keys)

    def theirs(q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
        k, v = (x.repeat_interleave(sharing, 1) for x in (k, v))
        scores = q @ k.mT / math.sqrt(size) + bias
        hidden = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1) if causal else None
        scores = scores if hidden is None else scores.masked_fill(hidden, -1e300)
        weights = torch.softmax(scores, -1)
        return (weights if hidden is None else weights.masked_fill(hidden, 0.0)) @ v

    return shapes, lambda **given: ops.attention(**given, causal=causal), theirs


DIFFERENTIATED: dict[str, Callable[[random.Random, random.Random], Any]] = {
    "matmul": _matmul,
    "linear": _linear,
    "softmax": _softmax,
    "rms_norm": _rms_norm,
    "layer_norm": _layer_norm,
    "attention": _attention,
}


# -- models ----------------------------------------------------------------------------------------------------------


def patched(theme: random.Random, r: random.Random) -> str | None:
    """A model before it is patched, while it is, and afterwards."""
    import torch

    import tilewave.torch as door

    if r.random() < 0.05:
        return refused(r.choice([door.patch, door.unpatch]), r.choice([*VALUES.values()]))
    model, width = _model(theme)
    x = viewed(r, (r.choice([0, 1, 3, 7, 8]), width), torch.float32)
    exact, before = copy.deepcopy(model).double()(x.double()).detach(), model(x).detach()
    layers = [type(layer) for layer in model]
    report = door.patch(model)
    door.patch(model)
    if not str(report) and any(isinstance(layer, torch.nn.Linear) for layer in model):
        return "a model with linear layers has no report"
    with torch.no_grad() if r.random() < 0.5 else torch.enable_grad():
        if wrong := near("a patched model's result", model(x).detach(), exact, 512):
            return wrong
    door.unpatch(model)
    if [type(layer) for layer in model] != layers:
        return f"unpatched layers are of other classes\n{[*model]}"
    return None if torch.equal(model(x).detach(), before) else "an unpatched model gives other bits"


def _model(theme: random.Random) -> tuple[Any, int]:
    from torch import nn

    width = first = theme.choice(theme.choice(SIZES))
    layers: list[Any] = []
    for _ in range(theme.randint(1, 6)):
        match theme.randrange(7):
            case 0 | 1:
                wider = theme.choice(theme.choice(SIZES))
                layers.append(nn.Linear(width, wider, bias=theme.random() < 0.7))
                width = wider
            case 2:
                layers.append(nn.LayerNorm(width, eps=0.1, elementwise_affine=theme.random() < 0.7))
            case 3:
                layers.append(nn.RMSNorm(width, eps=0.1))
            case 4:
                layers.append(nn.Softmax(dim=theme.choice([-1, 1])))
            case 5:
                layers.append(theme.choice([nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.ReLU(), nn.Tanh()]))
            case 6:
                layers.append(nn.Identity())
    return nn.Sequential(*layers), first


# -- operators of kernels --------------------------------------------------------------------------------------------

M, N = sym.M, sym.N


@cache
def scaled_sum() -> Any:
    @wave([WorkgroupConstraint(M, 8, 0), WorkgroupConstraint(N, 16, 1)])
    def scaled_sum(
        a: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
        b: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
        factor: f32,
        c: Memory[M, N, GLOBAL_ADDRESS_SPACE, f32],
    ):
        write(read(a) * factor + read(b), c)

    return scaled_sum


ODD_OPTIONS: dict[str, list[Any]] = {
    "results": ["c", ["nosuch"], ["a"], 3, ["c", "c"], [None], "", [["c"]]],
    "backward": [3, "x", [None], lambda nosuch: {}],
    "subs": [3, {"M": 4}, {M: "x"}, {M: -1}, [], "M"],
    "name": [3, "", "a b", "1x", "x" * 500, "a::b", "é"],
}


def operators(theme: random.Random, r: random.Random) -> str | None:
    """A kernel as an operator: right numbers, or an error of ours."""
    import torch

    import tilewave.torch as door

    if r.random() < 0.03:
        return refused(door.op, r.choice([*VALUES.values()]))
    options = {name: r.choice(odd) for name, odd in ODD_OPTIONS.items() if r.random() < 0.06}
    try:
        operator = door.op(scaled_sum(), **options)
    except TilewaveError:
        return None if options else "op refused a kernel"
    if options and not set(options) <= {"name"}:
        return None
    shape = (r.choice([0, 1, 7, 8, 9]), r.choice([1, 5, 16, 17]))
    a, b = (viewed(r, shape, torch.float32) for _ in range(2))
    if r.random() < 0.6:
        found = operator(a, b, 0.5) if r.random() < 0.5 else operator(b=b, factor=0.5, a=a)
        return near("an operator's result", found, a.double() * 0.5 + b.double(), 4)
    given: dict[str, Any] = {"a": a, "b": b, "factor": 0.5}
    name = r.choice(sorted(given))
    wrong = [a.double(), a[:, :-1] if shape[1] > 1 else a[None], a.numpy(), a.to_sparse(), *VALUES.values()]
    given[name] = r.choice(wrong)
    try:
        operator(**given)
    except TilewaveError:
        return None
    fits = name == "factor" and isinstance(given[name], (int, float, np.number))
    return None if fits else f"taken, though {name} does not fit\n{given[name]!r}"
