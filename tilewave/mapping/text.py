"""Text to mapping: a tokenizer and a parser of a few lines each; nothing is ever evaluated.

mapping  = step { ">>" step }
step     = name "(" [ argument { "," argument } ] ")"
argument = [ name "=" ] ( number | "'" letters "'" | '"' letters '"' )
"""

from __future__ import annotations

import difflib
import re
from dataclasses import MISSING, fields
from typing import NoReturn

from tilewave.errors import text_error
from tilewave.mapping.algebra import Mapping, Renumbering, mapping_of
from tilewave.mapping.curves import Hilbert, Morton
from tilewave.mapping.grid import LARGEST_PARAMETER, MappingError, ParameterError
from tilewave.mapping.orders import Grouped, Linear, Order, Paired, Snake, Supertiles
from tilewave.mapping.renumberings import Folded, LastFirst, XcdChunked, XcdContiguous
from tilewave.records import dataclass

RENUMBERINGS: dict[str, type[Renumbering]] = {
    step.name: step for step in (XcdContiguous, XcdChunked, LastFirst, Folded)
}  # fmt: skip
ORDERS: dict[str, type[Order]] = {
    step.name: step for step in (Linear, Paired, Grouped, Supertiles, Snake, Morton, Hilbert)
}  # fmt: skip
STEPS: dict[str, type[Order | Renumbering]] = {**RENUMBERINGS, **ORDERS}

LONGEST_TEXT = 1000

TOKEN = re.compile(
    r"""\s*(?:
        (?P<name>[A-Za-z_]\w*)
      | (?P<number>[-+]?\d[\w.]*)
      | (?P<string>"[^"]*"|'[^']*')
      | (?P<sign>>>|[(),=])
      | (?P<end>$)
      | (?P<unknown>\S)
    )""",
    re.VERBOSE | re.ASCII,
)


def parse(text: str) -> Mapping:
    """Return the mapping that a text such as "xcd_contiguous(8) >> grouped(4)" describes."""
    if not isinstance(text, str):
        raise MappingError(f"a mapping is parsed from text, not from {text!r}")
    if len(text) > LONGEST_TEXT:
        raise MappingError(f"a mapping's text has at most {LONGEST_TEXT} characters, not {len(text)}")
    return _Parser(" ".join(text.splitlines())).mapping()


def as_mapping(given: object) -> Mapping:
    """Return a mapping from its text, a mapping, an order, a renumbering (followed by `linear()`) or a function."""
    return parse(given) if isinstance(given, str) else mapping_of(given)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int

    @property
    def stop(self) -> int:
        return self.start + len(self.text)

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"`{self.text}`"


@dataclass(frozen=True)
class _Argument:
    key: _Token | None
    value: _Token


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokens()
        self.at = 0

    def _tokens(self) -> list[_Token]:
        found = []
        for match in TOKEN.finditer(self.text):
            kind = match.lastgroup
            assert kind is not None
            found.append(_Token(kind, match[kind], match.start(kind)))
            if kind == "end":
                break
        return found

    def mapping(self) -> Mapping:
        renumberings: list[Renumbering] = []
        while True:
            step = self._step()
            if isinstance(step, Order):
                if self._now.text == ">>":
                    self._fail(f"{step} is an order and ends a mapping", self._now, "put the renumberings before it")
                self._expect_end()
                return Mapping(tuple(renumberings), step)
            renumberings.append(step)
            if self._now.text != ">>":
                self._expect_end()
                return Mapping(tuple(renumberings))
            self._next()

    def _step(self) -> Order | Renumbering:
        name = self._next()
        if name.kind != "name":
            self._fail(f"expected the name of a mapping, not {name}", name, _known_names())
        kind = STEPS.get(name.text)
        if kind is None:
            near = difflib.get_close_matches(name.text.lower(), STEPS, n=1)
            hint = f"did you mean {near[0]}?\n" if near else ""
            self._fail(f"there is no mapping {name}", name, hint + _known_names())
        opening = self._next()
        if opening.text != "(":
            self._fail(f"expected ( after {name.text}, not {opening}", opening, f"write {_signature(kind)}")
        arguments = self._arguments(name.text, opening)
        return self._build(kind, name, arguments)

    def _arguments(self, step: str, opening: _Token) -> list[_Argument]:
        found: list[_Argument] = []
        if self._now.text == ")":
            self._next()
            return found
        while True:
            found.append(self._argument(step, opening))
            separator = self._next()
            if separator.text == ")":
                return found
            if separator.kind == "end" or separator.text == ">>":
                self._fail("this ( is never closed", opening)
            if separator.text != ",":
                self._fail(f"expected , or ) and not {separator}", separator)

    def _argument(self, step: str, opening: _Token) -> _Argument:
        token = self._next()
        key = None
        if token.kind == "name" and self._now.text == "=":
            key = token
            self._next()
            token = self._next()
        if token.kind == "end":
            self._fail("this ( is never closed", opening)
        if token.kind not in ("number", "string"):
            self._fail(f"expected a number and not {token}", token, _in_place_of_name(step, token))
        return _Argument(key, token)

    def _build(self, kind: type[Order | Renumbering], name: _Token, arguments: list[_Argument]) -> Order | Renumbering:
        names = _parameter_names(kind)
        given: dict[str, _Token] = {}
        for at, argument in enumerate(arguments):
            key = self._key(kind, names, at, argument)
            if key in given:
                self._fail(f"{name.text}: {key} is given twice", argument.key or argument.value)
            given[key] = argument.value
        for missing in _required(kind):
            if missing not in given:
                self._fail(f"{name.text} needs {missing}", name, f"write {_signature(kind)}")
        values = {key: self._value(name.text, key, token) for key, token in given.items()}
        try:
            return kind(**values)
        except ParameterError as error:
            self._fail(error.what, given[error.parameter])

    def _key(self, kind: type[Order | Renumbering], names: list[str], at: int, argument: _Argument) -> str:
        if argument.key is not None:
            if argument.key.text not in names:
                self._fail(f"{kind.name} has no {argument.key}", argument.key, f"write {_signature(kind)}")
            return argument.key.text
        if at >= len(names):
            self._fail(f"{kind.name} takes {_takes(names)}", argument.value, f"write {_signature(kind)}")
        return names[at]

    def _value(self, step: str, key: str, token: _Token) -> int | str:
        if token.kind == "string":
            return token.text[1:-1]
        if not re.fullmatch(r"[-+]?\d+", token.text, re.ASCII):
            self._fail(f"{step}: {key} is a whole number, not {token.text}", token)
        if len(token.text.lstrip("+-0")) > len(str(LARGEST_PARAMETER)):
            self._fail(f"{step}: {key} is out of range; it may be at most {LARGEST_PARAMETER}", token)
        return int(token.text)

    @property
    def _now(self) -> _Token:
        return self.tokens[self.at]

    def _next(self) -> _Token:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def _expect_end(self) -> None:
        if self._now.kind != "end":
            what = "this ) closes nothing" if self._now.text == ")" else f"expected >> or the end, not {self._now}"
            self._fail(what, self._now)

    def _fail(self, what: str, token: _Token, remedy: str = "") -> NoReturn:
        raise MappingError(text_error(what, self.text, token.start, token.stop, remedy)) from None


def _parameter_names(kind: type[Order | Renumbering]) -> list[str]:
    return [field.name for field in fields(kind)]  # type: ignore[arg-type]


def _required(kind: type[Order | Renumbering]) -> list[str]:
    return [field.name for field in fields(kind) if field.default is MISSING]  # type: ignore[arg-type]


def _signature(kind: type[Order | Renumbering]) -> str:
    parts = [f'{f.name}="{f.default}"' if f.default is not MISSING else f.name for f in fields(kind)]  # type: ignore[arg-type]
    return f"{kind.name}({', '.join(parts)})"


def _in_place_of_name(step: str, token: _Token) -> str:
    """Return what to write for a name among the numbers of a step; empty for other tokens."""
    if token.kind != "name":
        return ""
    kind = STEPS[step]
    if token.text in ("m", "n") and "along" in _parameter_names(kind):
        return f'write along="{token.text}"'
    more = ", …" if len(_required(kind)) > 1 else ""
    tried = ", ".join(f'"{step}({n}{more})"' for n in (4, 8))
    return (
        f"text has numbers alone: for a symbol, write mapping.{step}(sym.{token.text}{more}); to try several numbers, "
        f"Tune(mapping=[{tried}])"
    )


def _takes(names: list[str]) -> str:
    return f"only {' and '.join(names)}" if names else "nothing"


def _known_names() -> str:
    return f"renumberings: {', '.join(RENUMBERINGS)}\norders: {', '.join(ORDERS)}"
