"""A finding as a file that runs alone: the kernel, the data, what was expected, and the command."""

from __future__ import annotations

import base64
import zlib

import numpy as np

from . import source
from .data import given
from .judge import Outcome
from .program import FLOATS, Array, Program
from .reference import F32_UNIT, expected
from .text import text_of

RUNS = {
    "tiles": "compiled.interpret({arrays})",
    "tiles shuffled": 'compiled.interpret({arrays}, order="shuffled", seed={seed})',
    "lanes": 'compiled.interpret({arrays}, level="lane", order="random", seed={seed})',
    "emulated": "compiled.emulate({arrays})",
    "emulated at random": 'compiled.emulate({arrays}, order="random", seed={seed})',
    "card": "on_card(compiled, {arrays})",
    "called on the card": "on_card(compiled, {arrays})",
    "call": "compiled({arrays})",
}

IMPORTS = """
import base64
import importlib.util
import zlib
from functools import partial

import ml_dtypes  # it names dtypes for numpy
""".strip().split("\n")

LAID_OUT = '''
def laid_out(x, order, steps, before, after):
    """The same numbers in memory that lies as asked."""
    spans = [abs(s) * (max(n, 1) - 1) + 1 + b + a for n, s, b, a in zip(x.shape, steps, before, after)]
    memory = np.zeros([spans[n] for n in order], x.dtype).transpose(np.argsort(order))
    for axis, (n, s, b) in enumerate(zip(x.shape, steps, before)):
        last = b + abs(s) * (n - 1)
        part = slice(b, last + 1, s) if s > 0 else slice(last, b - 1 if b else None, s)
        part = part if n else slice(0)
        memory = memory[(slice(None),) * axis + (part,)]
    memory[...] = x
    return memory
'''


FROM_TEXT = '''
def from_text(text, dtype, shape):
    """An array from its compressed bytes."""
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype).reshape(shape)
'''
ON_CARD = '''
def on_card(compiled, *arrays, **symbols):
    """Call it with the same arrays in a GPU's memory, held by torch or cupy, and bring them back."""
    library = next((x for x in map(library_named, ("torch", "cupy")) if x and x.cuda.is_available()), None)
    if library is None:
        return compiled(*arrays, **symbols)  # it says what this machine lacks
    wholes = [x if x.base is None else x.base for x in arrays]
    plain = [np.array(bytearray(w.tobytes()), np.uint8) for w in wholes]
    is_torch = library.__name__ == "torch"
    buffers = [library.from_numpy(p).cuda() if is_torch else library.asarray(p) for p in plain]
    held = []
    for x, w, b in zip(arrays, wholes, buffers):
        first = x.__array_interface__["data"][0] - w.__array_interface__["data"][0]
        if is_torch:
            steps = [s // x.itemsize for s in x.strides]
            held.append(b.view(getattr(library, x.dtype.name)).as_strided(x.shape, steps, first // x.itemsize))
        else:
            held.append(library.ndarray(x.shape, x.dtype, b.data + first, x.strides))
    compiled(*held, **symbols)
    for w, b in zip(wholes, buffers):
        back = b.cpu().numpy() if is_torch else b.get()
        w[...] = back.view(w.dtype).reshape(w.shape)


def library_named(name):
    return importlib.import_module(name) if importlib.util.find_spec(name) else None
'''
MOST_IN_FULL = 64
"""Arrays of more elements are compressed."""


def reproduction(program: Program, target: str, outcome: Outcome) -> str:
    lines = [
        f'"""{outcome.way}: {outcome.kind}',
        "",
        *outcome.text.split("\n")[:12],
        "",
        "Run it with",
        "    python THIS_FILE",
    ]
    lines += ['"""', "", *IMPORTS]
    lines += [source.kernel_source(program).rstrip(), "", ""]
    check = ["def check():"]
    check += ["    " + _compile(program, target, outcome)]
    check += ["    " + line for call in program.calls() for line in _checked(call, _run(target, outcome, program.seed))]
    for needed, text in (("laid_out(", LAID_OUT), ("from_text(", FROM_TEXT), ("on_card(", ON_CARD)):
        lines += [text.strip(), "", ""] if any(needed in line for line in check) else []
    lines += check
    lines += ["", "", 'if __name__ == "__main__":', "    check()", "", f"PROGRAM = {text_of(program)!r}", ""]
    return "\n".join(lines)


def _checked(call: Program, run: str) -> list[str]:
    """One call: its arrays, and what they must hold afterwards."""
    arrays, held = given(call), expected(call, F32_UNIT)
    lines = [line for a in call.arrays for line in _array(a, arrays[a.name].view)]
    lines.append(run.replace("{arrays}", _arguments(call)))
    return lines + [line for a in call.arrays if a.name in call.written() for line in _expected(a, held[a.name])]


def _literal(x: np.ndarray) -> str:
    """An array of float64, int64 or bool as an expression."""
    if x.size > MOST_IN_FULL:
        text = base64.b64encode(zlib.compress(np.ascontiguousarray(x).tobytes(), 9)).decode()
        return f'from_text("{text}", "{x.dtype.name}", {x.shape})'
    text = repr(x.tolist()).replace("nan", 'float("nan")').replace("inf", 'float("inf")')
    return f"np.array({text})" if x.size else f'np.empty({x.shape}, "{x.dtype.name}")'


def _array(a: Array, x: np.ndarray) -> list[str]:
    wide = x.astype(np.float64) if a.dtype in FLOATS else x
    plain = f'{_literal(wide)}.astype(np.dtype("{x.dtype.name}"))'
    if a.layout is None:
        return [f"{a.name} = {plain}"]
    layout = a.layout
    return [f"{a.name} = laid_out({plain}, {layout.order}, {layout.steps}, {layout.before}, {layout.after})"]


def _compile(program: Program, target: str, outcome: Outcome) -> str:
    if "called" in outcome.way:
        return f"compiled = partial(kernel, subs={source.options(program)['subs']})"
    fields = {**source.options(program), "target": repr(target)}
    if outcome.way.startswith("cpu "):
        fields["instruction_set"] = repr(outcome.way.removeprefix("cpu "))
    options = ", ".join(f"{key}={text}" for key, text in fields.items())
    return f"compiled = wave_compile(WaveCompileOptions({options}), kernel)"


def _run(target: str, outcome: Outcome, seed: int) -> str:
    """How it is run, with a place for the arguments."""
    way = outcome.way.removeprefix(f"{target} ")
    return RUNS.get(way, RUNS["call"]).replace("{seed}", str(seed))


def _arguments(call: Program) -> str:
    numbers = {n.name: source.number(n.value) for n in call.numbers}
    given = [(f"{p.name}=" if call.by_name else "") + numbers.get(p.name, p.name) for p in call.parameters]
    given = [*(reversed(given) if call.by_name else given), *(f"{name}={v}" for name, v in call.opens)]
    return ", ".join(given)


def _expected(a: Array, held) -> list[str]:
    if (held.err == 0).all():
        return [f"np.testing.assert_array_equal({_plain(a)}, {_literal(held.x)})"]
    bound = _literal(np.broadcast_to(held.err, held.x.shape).astype(np.float64))
    return [
        f"wanted, bound = {_literal(held.x)}, {bound}",
        f"same = ({_plain(a)} == wanted) | (np.isnan({_plain(a)}) & np.isnan(wanted)) | (bound == np.inf)",
        f"assert (same | (abs({_plain(a)} - wanted) <= bound)).all(), {a.name}",
    ]


def _plain(a: Array) -> str:
    return f"{a.name}.astype(np.float64)" if a.dtype in FLOATS else a.name
