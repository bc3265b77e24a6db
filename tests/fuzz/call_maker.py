"""Random public calls: most are right, in every layout; some have one thing that is wrong.

Seeds come in runs that share a function, dtypes and few sizes, so that a kernel is compiled once for many calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from . import call_makers
from .call_expected import RULES
from .call_rules import ACTIVATIONS
from .calls import FLAWS, HUGE, NUMBERS, ODD, SCALARS, SHARED, VALUES, Alias, Argument, Call, Laid, Said
from .program import FLOATS, Layout

RUN = 64
"""The number of seeds that share compiled kernels."""
FUNCTIONS = tuple(RULES)
USUAL = ("f32", "f32", "f16", "bf16", "f64", "f8e4m3fn", "f8e5m2")
ANY = (*FLOATS, "i8", "i32", "i64", "bool")
SIZES = ((1,), (2,), (3, 4), (5, 7, 8), (9, 11, 13, 16), (17, 23, 31, 32), (33, 47, 61, 64))
"""Each of a bucket, for which one kernel is compiled."""
PARAMETERS = {
    "ops.linear": ("activation",),
    "ops.softmax": ("dim",),
    "ops.rms_norm": ("eps",),
    "ops.layer_norm": ("eps",),
    "ops.cumsum": ("dim",),
    "ops.topk": ("k", "dim"),
    "ops.argmax": ("dim",),
    "ops.gated": ("activation",),
    "ops.dropout": ("p", "seed"),
    "ops.index_select": ("dim",),
    "ops.index_add": ("dim", "alpha"),
    "ops.bincount": ("length",),
    "ops.cross_entropy": ("ignore_index", "reduction"),
    "kernels.rms_norm": ("eps",),
    "kernels.layer_norm": ("eps",),
    "ops.attention": ("causal", "window", "scale", "soft_cap"),
    "kernels.attention": ("causal", "window", "scale", "soft_cap"),
    "kernels.attention_decode": ("causal", "window", "scale", "soft_cap"),
}
RESULTS = {name: ("out",) if name.startswith("ops.") else ("y", "total", "lse") for name in FUNCTIONS}
RESULTS["ops.topk"] = ()


class Theme:
    """What a run of seeds has in common."""

    def __init__(self, number: int) -> None:
        r = self.rng = random.Random(f"calls {number}")
        self.function = FUNCTIONS[number % len(FUNCTIONS)]
        self.dtype, self.second, self.third, self.fourth = (r.choice(USUAL) for _ in range(4))
        if r.random() < 0.6:
            self.second = self.third = self.fourth = self.dtype
        self.wide, self.high, self.deep = (r.choice(SIZES[:n]) for n in (7, 7, 5))
        self.head = [r.choice(r.choice(SIZES[:5])) for _ in range(2)]
        self.optional = {name: r.random() < 0.5 for name in ("weight", "bias", "residual", "lse", "activation")}
        self.activation = r.choice(ACTIVATIONS)
        self.by_columns = {name: r.random() < 0.35 for name in ("a", "b", "weight")}
        self.ranks = (r.choice([0, 0, 1, 2]), r.choice([1, 2, 3, 4, 4, 5, 5]))
        self.scale, self.window, self.cap = (
            r.choice(v) for v in (["0.5", "0.125", "1"], ["1", "3", "7"], ["2.0", "16"])
        )
        self.asks = {name: r.random() < 0.3 for name in ("causal", "window", "scale", "soft_cap", "eps")}
        self.whole = r.choice(("i8", "i32", "i64", "bool"))
        self.is_whole = r.random() < 0.4


class CallMaker:
    """One call of a theme."""

    def __init__(self, theme: Theme, rng: random.Random, library: str) -> None:
        self.t, self.rng, self.library = theme, rng, library

    # -- sizes and layouts

    def size(self, bucket: tuple[int, ...]) -> int:
        """Return a size of the theme's bucket, and now and then 0 or any other."""
        if self.rng.random() < 0.06:
            return self.rng.choice([0, 0, 1, self.rng.choice(self.rng.choice(SIZES))])
        return self.rng.choice(bucket)

    def batch(self) -> tuple[int, ...]:
        rank = self.rng.choice(self.t.ranks)
        return tuple(0 if self.rng.random() < 0.02 else self.rng.choice([1, 2, 2, 3]) for _ in range(rank))

    def layout(self, rank: int, turned: bool | None = None) -> Layout | None:
        """Return a random layout for an array; `turned` says whether it is column-major, None allows either."""
        r = self.rng
        if not rank or (r.random() < 0.35 and not turned):
            return None
        order = list(range(rank))
        if turned is None:
            r.shuffle(order)
        elif rank > 1:
            front = order[:-2]
            if r.random() < 0.5:
                r.shuffle(front)
            order = [*front, *(order[-2:][::-1] if turned else order[-2:])]
            if r.random() < 0.1:
                r.shuffle(order)
        steps = [r.choice([1, 1, 1, 1, 2, 3] + [-1, -2] * (self.library == "numpy")) for _ in range(rank)]
        if r.random() < 0.5:
            steps = [1] * rank
        pads = [
            [r.choice([0, 0, 0, 1, 2, 5]) for _ in range(rank)] if r.random() < 0.5 else [0] * rank for _ in range(2)
        ]
        return Layout(tuple(order), tuple(steps), tuple(pads[0]), tuple(pads[1]))

    def array(self, shape: tuple[int, ...], dtype: str, content: str = "normal", turned: bool | None = False) -> Laid:
        flaw = "repeated" if self.rng.random() < 0.04 else ""
        return Laid(shape, dtype, content, self.layout(len(shape), turned), flaw)

    def matrix(self, name: str, shape: tuple[int, ...], dtype: str, content: str = "normal") -> Laid:
        return self.array(shape, dtype, content, self.t.by_columns[name])

    def result(self, shape: tuple[int, ...], dtype: str) -> Laid:
        """An array to be written: any layout in which it could be, and some in which it cannot."""
        laid = Laid(shape, dtype, "poison", self.layout(len(shape), None if self.rng.random() < 0.4 else False))
        return self.with_flaw(laid) if self.rng.random() < 0.15 else laid

    def content(self) -> str:
        return self.rng.choice(["normal"] * 5 + ["small", "special"])

    def with_out(self, call: Call, shape: tuple[int, ...], dtype: str) -> Call:
        if self.rng.random() < 0.35:
            return call
        if self.rng.random() < 0.15:
            dtype = self.t.second if self.t.second in FLOATS else dtype
        return call.having(out=self.result(shape, dtype))

    def numbers(self, call: Call, *names: str) -> Call:
        """The parameters that the theme asks for, with usual values."""
        r = self.rng
        values = {
            "causal": "True",
            "window": self.t.window,
            "scale": self.t.scale,
            "soft_cap": self.t.cap,
            "eps": r.choice(["1e-5", "1e-3", "0.5", "0.0", "1e-12"]),
        }
        given = {n: Said(values[n]) for n in names if self.t.asks.get(n)}
        return call.having(**given)

    # -- functions

    def make(self) -> Call:
        return MAKERS[self.t.function](self)

    def call(self, **arguments: Argument | None) -> Call:
        return Call(self.t.function, (), self.library).having(**arguments)

    def matmul(self) -> Call:
        t, r = self.t, self.rng
        dtype = "i8" if t.is_whole else t.dtype
        batch, (m, n, k) = self.batch(), (self.size(t.high), self.size(t.wide), self.size(t.deep))
        front_a, front_b = (tuple(1 if r.random() < 0.15 else s for s in batch) for _ in range(2))
        front_a, front_b = (f[r.choice([0] * 5 + [1, len(f)]) :] for f in (front_a, front_b))
        shape_a, shape_b = (*front_a, m, k), (*front_b, k, n)
        if r.random() < 0.06:
            shape_a = (k,)
        if r.random() < 0.06:
            shape_b = (k,)
        a, b = self.matrix("a", shape_a, dtype, self.content()), self.matrix("b", shape_b, dtype, self.content())
        result = (*_broadcast(shape_a[:-2], shape_b[:-2]), *shape_a[-2:-1], *shape_b[-1:][: len(shape_b) - 1])
        return self.with_out(self.call(a=a, b=b), result, "i32" if t.is_whole else _product(dtype))

    def linear(self) -> Call:
        t = self.t
        batch, (m, n, k) = self.batch(), (self.size(t.high), self.size(t.wide), self.size(t.deep))
        dtype, result = "i8" if t.is_whole and not t.optional["bias"] else t.dtype, (*batch, m, n)
        residual = result if self.rng.random() < 0.6 else self.rng.choice([(n,), (1, n), (m, 1), ()])
        call = self.call(
            x=self.array((*batch, m, k), dtype),
            weight=self.matrix("weight", (n, k), dtype),
            bias=self.array((n,), t.second) if t.optional["bias"] else None,
            activation=Said(repr(t.activation)) if t.optional["activation"] else None,
            residual=self.array(residual, t.third) if t.optional["residual"] else None,
        )
        return self.with_out(call, result, _product(dtype))

    def softmax(self) -> Call:
        shape = (*self.batch(), self.size(self.t.high), self.size(self.t.wide))
        call = self.call(x=self.array(shape, self.t.dtype, self.content(), self.rng.choice([False, None])))
        if self.rng.random() < 0.3:
            dims = [n for n in range(-len(shape), len(shape)) if str(n) in VALUES]
            call = call.having(dim=Said(str(self.rng.choice(dims))))
        return self.with_out(call, shape, self.t.dtype)

    def rms_norm(self) -> Call:
        t = self.t
        shape = (*self.batch(), self.size(t.high), self.size(t.wide))
        call = self.call(x=self.array(shape, t.dtype), weight=self.column(shape))
        if t.optional["residual"]:
            call = call.having(residual=self.array(shape, t.third))
        return self.numbers(self.with_out(call, shape, t.dtype), "eps")

    def layer_norm(self) -> Call:
        t = self.t
        shape = (*self.batch(), self.size(t.high), self.size(t.wide))
        bias = self.array(shape[-1:], t.third) if t.optional["bias"] and t.optional["weight"] else None
        call = self.call(x=self.array(shape, t.dtype), weight=self.column(shape), bias=bias)
        return self.numbers(self.with_out(call, shape, t.dtype), "eps")

    def column(self, shape: tuple[int, ...]) -> Laid | None:
        return self.array(shape[-1:], self.t.second) if self.t.optional["weight"] else None

    def rows(
        self, dtype: str, result: str, content: str = "normal", each: bool = True, **more: Argument | None
    ) -> Call:
        """Return a call on x[M, N]; y has a number for each of x, or one for each row."""
        shape = (self.size(self.t.high), self.size(self.t.wide))
        y = self.result(shape if each else shape[:1], result)
        return self.call(x=self.array(shape, dtype, content, self.rng.choice([False, False, None])), **more, y=y)

    def kernel_softmax(self) -> Call:
        return self.rows(self.t.dtype, self.t.second, self.content())

    def cross_entropy(self) -> Call:
        call = self.rows(self.t.dtype, self.t.second, each=False)
        x = call.get("x")
        assert isinstance(x, Laid)
        kind = self.t.whole if self.t.whole != "bool" else "i64"
        return call.having(target=self.array(x.shape[:1], kind, "small"))

    def embedding(self) -> Call:
        kind = self.t.whole if self.t.whole != "bool" else "i64"
        shape, columns = (*self.batch(), self.size(self.t.wide)), self.size(self.t.deep)
        dtype = self.rng.choice([self.t.dtype, self.t.dtype, kind])
        content = self.content() if dtype in FLOATS else "extreme"
        weight = self.array((self.size(self.t.high), columns), dtype, content, self.rng.choice([False, None]))
        ids = self.array(shape, kind, self.rng.choice(["small", "small", "extreme"]))
        return self.with_out(self.call(weight=weight, ids=ids), (*shape, columns), dtype)

    def kernel_layer_norm(self) -> Call:
        call, t = self.rows(self.t.dtype, self.t.fourth), self.t
        shape = call.get("x").shape  # type: ignore[union-attr]
        bias = self.array(shape[-1:], t.third) if t.optional["bias"] and t.optional["weight"] else None
        return self.numbers(call.having(weight=self.column(shape), bias=bias), "eps")

    def kernel_rms_norm(self) -> Call:
        call, t = self.rows(self.t.dtype, self.t.fourth), self.t
        shape = call.get("x").shape  # type: ignore[union-attr]
        call = call.having(weight=self.column(shape))
        if t.optional["residual"]:
            call = call.having(residual=self.array(shape, t.third), total=self.result(shape, t.second))
        return self.numbers(call, "eps")

    def kernel_sum(self) -> Call:
        t, is_sum = self.t, self.t.function == "kernels.sum"
        if t.is_whole:
            result = self.rng.choice(["i32", "i64", t.whole if t.whole != "bool" else "i32"])
            return self.rows(t.whole, result, "extreme", each=not is_sum)
        return self.rows(t.dtype, t.second, self.content(), each=not is_sum)

    def argmax(self) -> Call:
        t = self.t
        dtype = t.whole if t.is_whole else t.dtype
        content = self.rng.choice(["small", "normal", "extreme" if t.is_whole else "special"])
        return self.rows(dtype, self.rng.choice(["i32", "i64"]), content, each=False)

    def attention_arrays(self, batch: tuple[int, ...], heads: bool) -> Call:
        t, r = self.t, self.rng
        queries, keys = self.size(t.high), self.size(t.wide)
        size, size_v = t.head
        of_k = r.choice([1, 2, 3])
        of_q = of_k * r.choice([1, 1, 2])
        front_q, front_k = ((*batch, of_q), (*batch, of_k)) if heads else (batch, batch)
        q = self.array((*front_q, queries, size), t.dtype)
        k = self.array((*front_k, keys, size), t.dtype)
        v = self.array((*front_k, keys, size_v), t.second)
        return self.numbers(self.call(q=q, k=k, v=v), "causal", "window", "scale", "soft_cap")

    def attention(self) -> Call:
        heads = self.rng.random() < 0.8
        call = self.attention_arrays(self.batch() if heads else (), heads)
        scores = self.scores(call)
        if self.t.optional["bias"]:
            cut = self.rng.choice([0, 0, 1, len(scores) - 2])
            bias = tuple(1 if self.rng.random() < 0.2 else s for s in scores[cut:])
            call = call.having(bias=self.array(bias, self.t.third))
        return self.with_out(call, (*scores[:-1], call.get("v").shape[-1]), self.t.dtype)  # type: ignore[union-attr]

    def kernel_attention(self) -> Call:
        call = self.attention_arrays((self.rng.choice([1, 2, 3]),), True)
        scores = self.scores(call)
        call = call.having(y=self.result((*scores[:-1], call.get("v").shape[-1]), self.t.fourth))  # type: ignore[union-attr]
        if self.t.optional["bias"] and not self.t.function.endswith("decode"):
            call = call.having(bias=self.array(scores, self.t.third))
        return call.having(lse=self.result(scores[:-1], "f32")) if self.t.optional["lse"] else call

    @staticmethod
    def scores(call: Call) -> tuple[int, ...]:
        q, k = call.get("q"), call.get("k")
        assert isinstance(q, Laid) and isinstance(k, Laid)
        return (*q.shape[:-1], k.shape[-2])

    # -- what is wrong

    def damaged(self, call: Call) -> Call:
        """The call with one thing in another way than it should be, or perhaps should be."""
        return self.rng.choice(
            [
                self.flawed,
                self.aliased,
                self.aliased,
                self.odd_parameter,
                self.odd_array,
                self.other_shape,
                self.other_dtype,
            ]
        )(call)

    def _arrays(self, call: Call) -> list[tuple[str, Laid]]:
        return [(name, a) for name, a in call.arguments if isinstance(a, Laid)]

    def flawed(self, call: Call) -> Call:
        named = self._arrays(call)
        results = [(n, a) for n, a in named if n in RESULTS[call.function]]
        name, a = self.rng.choice(results if results and self.rng.random() < 0.6 else named)
        return call.having(**{name: self.with_flaw(a)})

    def with_flaw(self, a: Laid) -> Laid:
        flaw = self.rng.choice([*FLAWS, *SHARED] if self.library == "numpy" else SHARED)
        if flaw == "swapped" and (a.dtype.startswith(("f8", "bf")) or a.dtype in ("i8", "bool")):
            flaw = "read-only"
        return replace(a, flaw=flaw, layout=a.layout if flaw in ("read-only", "swapped") else None)

    def aliased(self, call: Call) -> Call:
        """A result in the memory of an input."""
        if not RESULTS[call.function]:
            return call
        results = [n for n in RESULTS[call.function] if call.get(n) is not None] or ["out"]
        inputs = [(n, a) for n, a in self._arrays(call) if n not in RESULTS[call.function]]
        name, (of, a) = self.rng.choice(results), self.rng.choice(inputs)
        held = call.get(name)
        shape = held.shape if isinstance(held, Laid) else a.shape
        if name == "out" and not call.function.startswith("ops."):
            return call
        return call.having(**{name: Alias(of, shape, self.rng.choice([0, 0, 0, 1, -1, 3]))})

    def odd_parameter(self, call: Call) -> Call:
        names = PARAMETERS.get(call.function)
        if not names:
            return self.odd_array(call)
        return call.having(**{self.rng.choice(names): Said(self.rng.choice([*NUMBERS, *HUGE, *SCALARS, *ODD, *ODD]))})

    def odd_array(self, call: Call) -> Call:
        name, _ = self.rng.choice(self._arrays(call))
        return call.having(**{name: Said(self.rng.choice([t for t in (*ODD, *SCALARS) if "array" not in t]))})

    def other_shape(self, call: Call) -> Call:
        name, a = self.rng.choice(self._arrays(call))
        shape, at = list(a.shape), self.rng.randrange(len(a.shape) + 1)
        match self.rng.randrange(4):
            case 0 if shape:
                del shape[min(at, len(shape) - 1)]
            case 1:
                shape.insert(at, self.rng.choice([1, 1, 2]))
            case 2 if shape:
                shape[at - 1] += self.rng.choice([-1, 1]) if shape[at - 1] else 1
            case _ if shape:
                shape[at - 1] = self.rng.choice([0, 1, 5])
        return call.having(**{name: replace(a, shape=tuple(shape), layout=None)})

    def other_dtype(self, call: Call) -> Call:
        name, a = self.rng.choice(self._arrays(call))
        dtype = self.rng.choice(ANY)
        content = a.content if dtype in FLOATS or a.content == "poison" else "small"
        return call.having(**{name: replace(a, dtype=dtype, content=content)})


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    rank = max(len(a), len(b))
    a, b = ((1,) * (rank - len(x)) + x for x in (a, b))
    return tuple(y if x == 1 else x for x, y in zip(a, b, strict=True))


def _product(dtype: str) -> str:
    return "i32" if dtype == "i8" else "f32" if dtype.startswith("f8") else dtype


MAKERS: dict[str, Callable[[CallMaker], Call]] = {
    "ops.matmul": CallMaker.matmul,
    "ops.linear": CallMaker.linear,
    "ops.softmax": CallMaker.softmax,
    "ops.rms_norm": CallMaker.rms_norm,
    "ops.layer_norm": CallMaker.layer_norm,
    "ops.attention": CallMaker.attention,
    "kernels.softmax": CallMaker.kernel_softmax,
    "kernels.log_softmax": CallMaker.kernel_softmax,
    "kernels.cross_entropy": CallMaker.cross_entropy,
    "kernels.layer_norm": CallMaker.kernel_layer_norm,
    "kernels.rms_norm": CallMaker.kernel_rms_norm,
    "kernels.sum": CallMaker.kernel_sum,
    "kernels.cumsum": CallMaker.kernel_sum,
    "kernels.argmax": CallMaker.argmax,
    "kernels.attention": CallMaker.kernel_attention,
    "kernels.attention_decode": CallMaker.kernel_attention,
    "ops.embedding": CallMaker.embedding,
    **call_makers.MAKERS,
}


def make_call(seed: int, device: str) -> Call:
    """The call of a seed; on a GPU all arrays are torch's."""
    rng = random.Random(f"call {seed}")
    library = "torch" if device != "cpu" or rng.random() < 0.35 else "numpy"
    maker = CallMaker(Theme(seed // RUN), rng, library)
    call = maker.make()
    if rng.random() < 0.3:
        call = maker.damaged(call)
    names = [n for n, a in call.arguments if isinstance(a, Laid)]
    mixed = (
        device == "cpu" and rng.random() < 0.02 and not any(isinstance(a, Laid) and a.flaw for _, a in call.arguments)
    )
    other = rng.choice(names) if mixed and names else ""
    if other and any(isinstance(a, Alias) for _, a in call.arguments):
        other = ""
    return replace(call, seed=seed, times=2 if rng.random() < 0.2 else 1, other=_torch_can(call, other))


def _torch_can(call: Call, other: str) -> str:
    """An argument that can be of the other library: torch has no strides that go backwards."""
    a = call.get(other)
    backwards = isinstance(a, Laid) and a.layout is not None and min((*a.layout.steps, 1)) < 0
    return "" if backwards else other
