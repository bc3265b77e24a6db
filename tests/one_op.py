"""Kernels of single ops, run at every level and on every target, and compared with what is exact."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import exact
import numpy as np

import tilewave
from tilewave import *
from tilewave.backend.cpu.instruction_sets import INSTRUCTION_SETS, runs_here
from tilewave.ir.types import DTYPES, DType

M = sym.M
TILE = 512
Way = str | Callable[[Any, Sequence[Any]], None]
"""One of WAYS, or what runs a kernel on arrays."""
Result = tuple[DType, Callable[..., Any]]
"""The dtype of an output, and what is computed from the inputs."""
FLOAT_NAMES = ("f64", "f32", "f16", "bf16", "f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
SIGNED_NAMES, UNSIGNED_NAMES = ("i8", "i16", "i32", "i64"), ("u8", "u16", "u32", "u64")
INTEGER_NAMES = (*SIGNED_NAMES, *UNSIGNED_NAMES)
NAMES = (*FLOAT_NAMES, *INTEGER_NAMES, "bool")
"""The dtypes that arrays have."""

CPU = [f"cpu {s.name}" for s in INSTRUCTION_SETS.values() if runs_here(s) and not s.matrix_unit]
EMULATED = ["gfx942", "gfx950"]
INTERPRETED = ["tiles", "lanes of gfx942", "lanes of sm_90a"]
WAYS = [*INTERPRETED, *CPU, *EMULATED]
"""Where a kernel runs on this machine."""

WORDS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "minimum": minimum,
    "maximum": maximum,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    "neg": operator.neg,
    "abs": abs,
    "select": lambda x, y: select(x < y, x, y),
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "~": operator.invert,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
UNARY = ("neg", "abs", "~")
TRUTHS = tuple(exact.COMPARISONS)


def words_of(name: str) -> list[str]:
    """The ops that a dtype has."""
    own = exact.FLOATS if name in FLOAT_NAMES else exact.INTEGERS
    return [*own, *TRUTHS, "select"]


def kernel_of(inputs: Sequence[DType], results: Sequence[Result], tile: int = TILE) -> Any:
    """A kernel that reads an array of each input's dtype and writes what is computed from them."""
    given = [f"x{i}: Memory[M, GLOBAL_ADDRESS_SPACE, inputs[{i}]]" for i in range(len(inputs))]
    taken = [f"y{i}: Memory[M, GLOBAL_ADDRESS_SPACE, results[{i}][0]]" for i in range(len(results))]
    tiles = ", ".join(f"read(x{i})" for i in range(len(inputs)))
    lines = [f"    write(results[{i}][1](*tiles), y{i})" for i in range(len(results))]
    text = [f"def one_op({', '.join(given + taken)}):", f"    tiles = [{tiles}]", *lines]
    names: dict[str, Any] = {**vars(tilewave), "M": M, "inputs": inputs, "results": results}
    exec("\n".join(text), names)
    return wave([WorkgroupConstraint(M, tile, 0)])(names["one_op"])


def compiled_for(way: str, kernel: Any, size: int) -> Any:
    place, _, rest = way.partition(" ")
    options: dict[str, Any] = {"target": rest.rpartition(" ")[2] if place == "lanes" else place}
    if place == "tiles":
        options = {"target": "numpy"}
    if place == "cpu":
        options["instruction_set"] = rest
    return wave_compile(WaveCompileOptions(subs={M: size}, **options), kernel)


def run(way: Way, kernel: Any, arrays: Sequence[Any]) -> None:
    if not isinstance(way, str):
        way(kernel, arrays)
        return
    compiled = compiled_for(way, kernel, len(arrays[0]))
    if way.startswith("cpu"):
        compiled(*arrays)
    elif way in EMULATED:
        compiled.emulate(*arrays)
    elif way == "tiles":
        compiled.interpret(*arrays)
    else:
        compiled.interpret(*arrays, level="lane")


def outputs(results: Sequence[Result], size: int) -> list[Any]:
    """Return arrays that show unwritten elements."""
    return [
        np.full(size * d.numpy.itemsize, 0x5A, np.uint8).view(d.numpy) if d.name != "bool" else np.zeros(size, bool)
        for d, _ in results
    ]


def mistakes(names: Sequence[str], inputs: Sequence[Any], found: Sequence[Any], wanted: Sequence[Any]) -> list[str]:
    """One line for each output that is wrong somewhere."""
    lines = []
    for name, got, want in zip(names, found, wanted, strict=True):
        wrong = exact.differing(got, want)
        if len(wrong):
            at = wrong[0]
            given = ", ".join(repr(x[at].item() if hasattr(x[at], "item") else x[at]) for x in inputs)
            lines.append(f"{name}: {len(wrong)} of {len(got)}; of {given} it gives {got[at]}, not {want[at]}")
    return lines


def wrong_casts(way: Way, old: str, values: Any, new: Sequence[str] = (*NAMES, "index")) -> list[str]:
    """What casts of one dtype to all others give that they should not; indices come and go as i64."""
    results = [(_in_arrays(name), lambda x, name=name: _through(x, old, name)) for name in new]
    got = outputs(results, len(values))
    run(way, kernel_of([_in_arrays(old)], results), [values, *got])
    want = [exact.cast(values, old, name, d.numpy) for name, (d, _) in zip(new, results, strict=True)]
    return mistakes([f"{_called(way)}: {old} → {name}" for name in new], [values], got, want)


def _called(way: Way) -> str:
    return way if isinstance(way, str) else way.__name__


def _in_arrays(name: str) -> DType:
    return i64 if name == "index" else DTYPES[name]


def _through(x: Any, old: str, new: str) -> Any:
    x = cast(x, index) if old == "index" else x
    return cast(cast(x, DTYPES[new]), _in_arrays(new))


def wrong_ops(way: Way, name: str, operands: Sequence[Any], words: Sequence[str]) -> list[str]:
    """What ops on one dtype give that they should not; those of one operand take the first."""
    results = [(DTYPES["bool" if w in TRUTHS else name], _applied(w)) for w in words]
    got = outputs(results, len(operands[0]))
    run(way, kernel_of([DTYPES[name]] * len(operands), results), [*operands, *got])
    want = [exact.computed(w, list(operands[:1] if w in UNARY else operands), name) for w in words]
    return mistakes([f"{_called(way)}: {w} of {name}" for w in words], operands, got, want)


def _applied(word: str) -> Callable[..., Any]:
    return (lambda x, *_: WORDS[word](x)) if word in UNARY else WORDS[word]


def pairs_of(values: Any, most: int = 1 << 16) -> tuple[Any, Any]:
    """All pairs, or as many as these: each value with some others, and on either side."""
    count = len(values)
    if count * count <= most:
        first, second = np.divmod(np.arange(count * count), count)
    else:
        first = np.arange(most) % count
        second = np.random.default_rng(0).integers(0, count, most)
    return np.ascontiguousarray(values[first]), np.ascontiguousarray(values[second])
