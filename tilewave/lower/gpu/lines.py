"""Functions whose instructions know the author's line, as debug locations that assembly and disassembly show."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePath

from tilewave.errors import NOWHERE, Loc
from tilewave.lower.llvm import LlvmFunction, Module, Typed

FIRST = 10
"""Metadata below this number belongs to others."""
COMPILE_UNIT, SUBPROGRAM, KIND, MAIN_FILE = FIRST, FIRST + 1, FIRST + 2, FIRST + 3


class Lines:
    """The debug metadata of one kernel."""

    def __init__(self, name: str, main: Loc, detail: str) -> None:
        """`detail` is LLVM's word for how much of it is emitted."""
        self.name, self.main, self.detail = name, main, detail
        self.files: dict[str, int] = {main.file: MAIN_FILE}
        self.texts: dict[int, str] = {}
        self.numbers: dict[tuple[str, int, int], int] = {}
        self.next = MAIN_FILE + 1

    def at(self, loc: Loc) -> str:
        """What an instruction of that place carries."""
        loc = loc if loc.line else self.main
        key = (loc.file, loc.line, max(0, loc.column + 1))
        if key not in self.numbers:
            scope = self._scope(loc.file)
            self.numbers[key] = self._add(f"!DILocation(line: {loc.line}, column: {key[2]}, scope: !{scope})")
        return f", !dbg !{self.numbers[key]}"

    def _scope(self, file: str) -> int:
        if file == self.main.file:
            return SUBPROGRAM
        if file not in self.files:
            where = self._add(_file(file))
            self.files[file] = self._add(f"!DILexicalBlockFile(scope: !{SUBPROGRAM}, file: !{where}, discriminator: 0)")
        return self.files[file]

    def _add(self, text: str) -> int:
        number, self.next = self.next, self.next + 1
        self.texts[number] = text
        return number

    @property
    def of_function(self) -> str:
        """What the function itself carries."""
        return f"!dbg !{SUBPROGRAM}"

    def flags(self) -> list[str]:
        return ['!{i32 2, !"Debug Info Version", i32 3}']

    def metadata(self) -> str:
        line = max(1, self.main.line)
        named = f"name: {json.dumps(self.name)}, scope: !{MAIN_FILE}, file: !{MAIN_FILE}, line: {line}"
        whole = {
            COMPILE_UNIT: f"distinct !DICompileUnit(language: DW_LANG_Python, file: !{MAIN_FILE}, "
            f'producer: "tilewave", isOptimized: true, runtimeVersion: 0, emissionKind: {self.detail})',
            SUBPROGRAM: f"distinct !DISubprogram({named}, type: !{KIND}, scopeLine: {line}, "
            f"spFlags: DISPFlagDefinition | DISPFlagOptimized, unit: !{COMPILE_UNIT})",
            KIND: "!DISubroutineType(types: !{null})",
            MAIN_FILE: _file(self.main.file),
            **self.texts,
        }
        lines = [f"!llvm.dbg.cu = !{{!{COMPILE_UNIT}}}", *(f"!{number} = {text}" for number, text in whole.items())]
        return "\n".join(lines) + "\n"


def _file(path: str) -> str:
    pure = PurePath(path)
    return f"!DIFile(filename: {_quoted(pure.name)}, directory: {_quoted(str(pure.parent))})"


def _quoted(text: str) -> str:
    """LLVM's strings know one escape: a backslash and two digits."""
    safe = "".join(c if c.isprintable() and c not in '"\\' else "".join(f"\\{b:02X}" for b in c.encode()) for c in text)
    return f'"{safe}"'


class LocatedFunction(LlvmFunction):
    """A function each of whose instructions carries the place that `loc` names when it is written."""

    def __init__(self, module: Module, name: str, parameters: Sequence[Typed], lines: Lines) -> None:
        super().__init__(module, name, parameters)
        self.lines_of, self.loc = lines, NOWHERE

    def value(self, text: str) -> str:
        return super().value(text + self.lines_of.at(self.loc))

    def do(self, text: str) -> None:
        super().do(text + self.lines_of.at(self.loc))
