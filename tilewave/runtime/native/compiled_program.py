"""Machine code of one host program: straight-line code, several times as fast as steps that are looked up.

LLVM takes some tenths of a second for the thousands of steps of a choice among configs, and hundredths for the program
of a launch, so this runs in the background, and its result is stored in the compile cache.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tilewave.ir.host_program import STEPS, HostProgram
from tilewave.runtime.cache import key_of
from tilewave.runtime.native.host_code import functions_of
from tilewave.runtime.native.ranged_steps import ranged_step
from tilewave.runtime.native.ranges import ANY, Range, ranges_of
from tilewave.runtime.native.records import NativeRecord
from tilewave.runtime.native.steps import BEYOND, INTRINSICS

NAME = "program"
BLOCK = 64
"""Steps of a basic block: LLVM's time grows faster than the length of one, and a failed check ends after its block."""
_VARIABLE = re.compile(r"%(\w+)")


class CompilableProgram(NamedTuple):
    """A program in memory, those of its results that are read, and the ranges of what it is given."""

    program: HostProgram
    memory: NativeRecord
    results: tuple[int, ...]
    given: tuple[Range, ...] = ()
    """The ranges of the first given numbers; beyond them, steps that are looked up serve. The others may be any."""

    def compile(self) -> None:
        """Give the program machine code of its own; steps that are looked up serve until then."""
        if not self.memory.get("code"):
            self.memory.set("code", code_of(self.program, self.results, self.given))


def code_of(program: HostProgram, results: Sequence[int], given: Sequence[Range] = ()) -> int:
    """Return the address of a function that stores these results of a program, from the cache or compiled."""
    steps, constants = array("i", program.step_words).tobytes(), array("q", program.constants).tobytes()
    key = "program", key_of(steps, constants), repr((program.given, *results)), repr(given)
    return functions_of([NAME], key, lambda: INTRINSICS + unrolled(program, results, given))[NAME]


def unrolled(program: HostProgram, results: Sequence[int], given: Sequence[Range] = ()) -> str:
    """Return LLVM IR of a function from the address of a program's numbers to 0, 1 if a check fails, or BEYOND."""
    ranges = ranges_of(program, [*given, *[ANY] * (program.given - len(given))])
    operands = [f"%given{i}" for i in range(program.given)] + [str(n) for n in program.constants]
    lines = [f"define i64 @{NAME}(ptr %r) {{\nentry:"]
    lines += [f"{_at(f'given{i}', i)}\n  %given{i} = load i64, ptr %given{i}.at" for i in range(program.given)]
    lines += _entered(given)
    steps = program.steps
    for first in range(0, len(steps), BLOCK):
        lost = "false"
        for i, (does, *of) in enumerate(steps[first : first + BLOCK], first):
            text, value = ranged_step(STEPS[does], ranges[len(operands)], ranges[of[0]], ranges[of[1]])
            numbered = _numbered(i, [operands[n] for n in of])
            lines.append(numbered(text))
            operands.append(numbered(value))
            if "%lost" in text:
                lines.append(f"  %ends{i} = or i1 {lost}, %lost{i}")
                lost = f"%ends{i}"
        lines.append(f"  br i1 {lost}, label %ended, label %block{first}\nblock{first}:")
    lines += [f"{_at(f'result{i}', i)}\n  store i64 {operands[i]}, ptr %result{i}.at" for i in dict.fromkeys(results)]
    return "\n".join([*lines, f"  ret i64 0\nended:\n  ret i64 1\nbeyond:\n  ret i64 {BEYOND}\n}}\n"])


def _entered(given: Sequence[Range]) -> list[str]:
    """Return the code that leaves the function where a given number is beyond its range, all of which begin at 0."""
    lines, outside = [], "false"
    for i, one in enumerate(given):
        lines.append(f"  %past{i} = icmp ugt i64 %given{i}, {one.most}\n  %out{i}_given = or i1 {outside}, %past{i}")
        outside = f"%out{i}_given"
    return [*lines, f"  br i1 {outside}, label %beyond, label %within\nwithin:"]


def _at(name: str, place: int) -> str:
    return f"  %{name}.at = getelementptr i64, ptr %r, i64 {place}"


def _numbered(number: int, operands: Sequence[str]) -> Callable[[str], str]:
    """Return a function that makes the names in the code of a step unique."""
    known = dict(zip("xyz", operands, strict=True))
    return lambda text: _VARIABLE.sub(lambda found: known.get(found[1]) or f"%{found[1]}{number}", text)
