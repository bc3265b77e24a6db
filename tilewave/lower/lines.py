"""Debug locations: functions whose instructions have source lines, which assembly and disassembly show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath

from tilewave.errors import Loc
from tilewave.ir.core import Kernel
from tilewave.ir.rewrite import walk
from tilewave.lower.llvm import LlvmFunction, Module, Typed

FIRST = 10
"""The first metadata number used here; module flags and the notes of the AMD target have those below."""


def first_line(kernel: Kernel) -> Loc:
    """Return the first source line of a kernel."""
    places = [op.loc for op in walk(kernel.body) if op.loc.line]
    return min(places, key=lambda loc: loc.line, default=Loc("kernel", 1))


class Lines:
    """The debug metadata of one module: a compile unit, and each function with source lines."""

    def __init__(self, main: Loc, detail: str) -> None:
        """`main` is the line of code without one; `detail` is LLVM's emission kind."""
        self.main = main
        self.texts: dict[int, str] = {}
        self.next = FIRST
        self.unit, self.kind, self.file = (self._number() for _ in range(3))
        self.texts[self.unit] = (
            f"distinct !DICompileUnit(language: DW_LANG_Python, file: !{self.file}, "
            f'producer: "tilewave", isOptimized: true, runtimeVersion: 0, emissionKind: {detail})'
        )
        self.texts[self.kind] = "!DISubroutineType(types: !{null})"
        self.texts[self.file] = _file(main.file)

    def _number(self) -> int:
        self.next += 1
        return self.next - 1

    def add(self, text: str) -> int:
        number = self._number()
        self.texts[number] = text
        return number

    def function(self, name: str) -> FunctionLines:
        line = max(1, self.main.line)
        named = f"name: {json.dumps(name)}, scope: !{self.file}, file: !{self.file}, line: {line}"
        return FunctionLines(
            self,
            self.add(
                f"distinct !DISubprogram({named}, type: !{self.kind}, scopeLine: {line}, "
                f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{self.unit})"
            ),
        )

    @property
    def flag(self) -> str:
        """Return the module flag with the version of the debug metadata."""
        return '!{i32 2, !"Debug Info Version", i32 3}'

    def metadata(self) -> str:
        lines = [f"!llvm.dbg.cu = !{{!{self.unit}}}", *(f"!{number} = {text}" for number, text in self.texts.items())]
        return "\n".join(lines) + "\n"


class FunctionLines:
    """The debug locations of one function's instructions."""

    def __init__(self, lines: Lines, subprogram: int) -> None:
        self.lines, self.subprogram = lines, subprogram
        self.scopes: dict[str, int] = {lines.main.file: subprogram}
        self.numbers: dict[tuple[str, int, int], int] = {}

    def at(self, loc: Loc) -> str:
        """Return the metadata of an instruction at a location."""
        loc = loc if loc.line else self.lines.main
        key = (loc.file, loc.line, max(0, loc.column + 1))
        if key not in self.numbers:
            place = f"!DILocation(line: {loc.line}, column: {key[2]}, scope: !{self._scope(loc.file)})"
            self.numbers[key] = self.lines.add(place)
        return f", !dbg !{self.numbers[key]}"

    def _scope(self, file: str) -> int:
        if file not in self.scopes:
            block = f"scope: !{self.subprogram}, file: !{self.lines.add(_file(file))}, discriminator: 0"
            self.scopes[file] = self.lines.add(f"!DILexicalBlockFile({block})")
        return self.scopes[file]

    @property
    def of_function(self) -> str:
        """Return the metadata of the function."""
        return f"!dbg !{self.subprogram}"


def _file(path: str) -> str:
    pure = PurePath(path)
    return f"!DIFile(filename: {_quoted(pure.name)}, directory: {_quoted(str(pure.parent))})"


def _quoted(text: str) -> str:
    """Return an LLVM string; its only escape is a backslash and two hexadecimal digits."""
    safe = "".join(c if c.isprintable() and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode()) for c in text)
    return f'"{safe}"'


class LocatedFunction(LlvmFunction):
    """A function whose instructions have the location `loc` at the time they are emitted."""

    def __init__(self, module: Module, name: str, parameters: Sequence[Typed], lines: FunctionLines) -> None:
        super().__init__(module, name, parameters)
        self.lines_of = lines

    def value(self, text: str) -> str:
        return super().value(text + self.lines_of.at(self.loc))

    def do(self, text: str) -> None:
        super().do(text + self.lines_of.at(self.loc))

    def finish(self, returned: str = "void", attributes: str = "nounwind", linkage: str = "") -> str:
        return super().finish(returned, f"{attributes} {self.lines_of.of_function}", linkage)
