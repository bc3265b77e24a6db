"""A call that went wrong as a file that runs alone: its memory, the call, and what must have come of it."""

from __future__ import annotations

import base64
import zlib

import numpy as np

from .call_arrays import Buffered, buffered
from .call_expected import expected
from .call_rules import Expected
from .calls import Alias, Call, Said, text_of_call
from .exact import NUMPY
from .judge import Outcome

HEAD = '''
import base64
import warnings
import zlib

import ml_dtypes  # it names dtypes for numpy
import numpy as np

from tilewave import kernels, ops
from tilewave.errors import SlowCodeWarning, TilewaveError


def memory(text, size):
    """The bytes of a buffer."""
    return np.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), np.uint8)[:size]


def numbers(text, dtype, shape):
    return memory(text, None).view(dtype).reshape(shape)


def places(array, buffer):
    """The bytes of the buffer that are elements of the array."""
    at = np.full(array.shape, array.__array_interface__["data"][0] - buffer.__array_interface__["data"][0])
    for axis, stride in enumerate(array.strides):
        at = at + np.arange(array.shape[axis]).reshape([-1 if n == axis else 1 for n in range(array.ndim)]) * stride
    return (at.reshape(-1, 1) + np.arange(array.itemsize)).reshape(-1)


def check_untouched(buffers, before, written):
    for buffer, was in zip(buffers, before):
        own = np.zeros(buffer.shape, bool)
        for array, inside in written:
            own[places(array, inside) if inside is buffer else []] = True
        assert not ((buffer != was) & ~own).any(), "memory changed that is no element of a result"


def check_numbers(name, found, wanted, bound):
    found = np.asarray(found).astype(wanted.dtype)
    same = (found == wanted) | ((found != found) & (wanted != wanted)) | (bound == np.inf)
    assert found.shape == wanted.shape, f"{name} is {found.shape}, not {wanted.shape}"
    assert (same | (abs(found - wanted) <= bound)).all(), f"{name} is {found}, not {wanted}"
'''.strip()
AS_TORCH = '''
HELD = {}


def tensor(array, buffer):
    """The same memory as a tensor of torch's; on a GPU a copy of the whole buffer."""
    import torch

    first = (array.__array_interface__["data"][0] - buffer.__array_interface__["data"][0]) // array.itemsize
    _, whole = HELD.setdefault(id(buffer), (buffer, torch.from_numpy(buffer).to(DEVICE)))
    found = whole.view(getattr(torch, array.dtype.name))
    return found.as_strided(array.shape, [s // array.itemsize for s in array.strides], first)


def bring_back():
    for buffer, whole in HELD.values():
        buffer[...] = whole.cpu().numpy()
'''.strip()
MOST_SHOWN = 40


def call_source(call: Call, device: str, outcome: Outcome) -> str:
    """The text of the file."""
    arrays = buffered(call)
    want = expected(call, arrays, device)
    lines = [f'"""{outcome.way}: {outcome.kind}', "", *outcome.text.split("\n")[:8], "", "Run it with"]
    lines += ["    python THIS_FILE", '"""', "", HEAD, "", ""]
    held = {n: f"{n}_" if _is_tensor(call, n, device) else n for n in arrays}
    if any(name != h for name, h in held.items()):
        lines += [f'DEVICE = "{device}"', "", "", AS_TORCH, "", ""]
    lines += ["def check():", *(f"    {line}" for line in _body(call, arrays, held, want))]
    lines += ["", "", 'if __name__ == "__main__":', "    check()", "", f"CALL = {text_of_call(call)!r}", ""]
    return "\n".join(lines)


def _is_tensor(call: Call, name: str, device: str) -> bool:
    return (call.library == "torch") != (name == call.other) or device != "cpu"


def _body(call: Call, arrays: dict[str, Buffered], held: dict[str, str], want: Expected) -> list[str]:
    lines, memories = [], {}
    for b in arrays.values():
        if id(b.memory) not in memories:
            memories[id(b.memory)] = f"memory_{len(memories)}"
            lines.append(f'{memories[id(b.memory)]} = memory("{_packed(b.before)}", {b.memory.nbytes})')
    for name, b in arrays.items():
        lines += _view(name, b, memories[id(b.memory)])
        if held[name] != name:
            lines.append(f"{held[name]} = tensor({name}, {memories[id(b.memory)]})")
    buffers = f"[{', '.join(memories.values())}]"
    lines.append(f"before = [x.copy() for x in {buffers}]")
    given = ", ".join(f"{n}={a.text if isinstance(a, Said) else held[n]}" for n, a in call.arguments)
    has_alias = any(isinstance(a, Alias) for _, a in call.arguments)
    lines += ["with warnings.catch_warnings():", '    warnings.simplefilter("error")']
    lines += ['    warnings.simplefilter("ignore", SlowCodeWarning)', "    try:"]
    lines += [f"        found = {call.function}({given})"] * (1 if has_alias else call.times)
    back = ["bring_back()"] if any(name != h for name, h in held.items()) else []
    lines += ["    except TilewaveError:", *(f"        {line}" for line in back)]
    lines += [f"        check_untouched({buffers}, before, [])"]
    lines += ["        return" if want.unfit or want.may_refuse else "        raise"]
    if want.unfit:
        return [*lines, f'raise AssertionError("taken, though {want.unfit}")']
    lines += back
    pairs = ", ".join(f"({n}, {memories[id(arrays[n].memory)]})" for n in want.results if n in arrays)
    lines.append(f"check_untouched({buffers}, before, [{pairs}])")
    return lines + _checks(call, arrays, held, want)


def _view(name: str, b: Buffered, memory: str) -> list[str]:
    first = b.view.__array_interface__["data"][0] - b.memory.__array_interface__["data"][0]
    dtype = f'np.dtype("{b.view.dtype.name}")' + ("" if b.view.dtype.isnative else ".newbyteorder()")
    lines = [f"{name} = np.ndarray({b.view.shape}, {dtype}, {memory}, {first}, {b.view.strides})"]
    if b.view.size <= MOST_SHOWN:
        lines.insert(0, f"# {name}: {b.view.tolist()}")
    return lines + ([f"{name}.flags.writeable = False"] if not b.view.flags.writeable else [])


def _checks(call: Call, arrays: dict[str, Buffered], held: dict[str, str], want: Expected) -> list[str]:
    lines = []
    for number, (name, result) in enumerate(want.results.items()):
        found = f"found[{number}]" if len(want.results) > 1 else "found"
        if call.function.startswith("kernels."):
            found = name
        elif name in held:
            lines.append(f'assert {found} is {held[name]}, "the result is not {name}"')
            found = name
        elif call.library == "torch":
            found = f"{found}.double().cpu()"
        x = (
            result.x.astype(np.float64)
            if np.dtype(NUMPY[result.dtype]).kind not in "iub"
            else result.x.astype(np.int64)
        )
        bound = np.asarray(result.err, np.float64)
        lines.append(f'check_numbers("{name}", {found}, {_literal(x)}, {_literal(bound)})')
    return lines


def _literal(x: np.ndarray) -> str:
    return f'numbers("{_packed(np.ascontiguousarray(x).tobytes())}", "{x.dtype.name}", {x.shape})'


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 9)).decode()
