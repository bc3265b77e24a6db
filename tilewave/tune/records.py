"""Tuning records: one line of JSON each, parsed as plain data.

{"at":"gemm 9f3a0c1d2e4b5a68 H200 K=1024,M=1024,N=1024","choice":{"BLOCK_K":64,…},"considered":36,"format":1,…}

`at` comes first in a line and is the key: the kernel, the digest of what it computes, the chip and the sizes. Files may
be concatenated in any order; of two records with the same key the better wins: a measured one, with more configs, in
more rounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewave._version import __version__
from tilewave.files import parse_json
from tilewave.renamed import OPTIONS

FORMAT = 1
STRENGTHS = ("model", "measured", "exhaustive")
"""How a decision was made, the weakest first."""
FIRST = '{"at":"'
NO_RECORD = ""
"""What a line that is no record is for."""
LONGEST_LINE = 1 << 16
LONGEST_SECONDS = 1e9
LARGEST_CHOICE = 1 << 31
"""An upper bound of every chosen value: tile sizes, splits and stages are far smaller."""
AT = re.compile(r"[^\s\"\\]+ [0-9a-f]{16} [^\s\"\\]+ [^\s\"\\]+")


class BadRecord(ValueError):
    """A line that is no record; says why."""


class NewerRecord(BadRecord):
    """A line that a later tilewave wrote."""


@dataclass(frozen=True)
class RecordKey:
    """What a decision is for."""

    kernel: str
    digest: str
    chip: str
    sizes: str
    """`K=1024,M=1024,N=1024`, by name; of a bucket, `M=65..128`."""

    def __str__(self) -> str:
        return f"{self.kernel} {self.digest} {self.chip} {self.sizes}"

    @property
    def without_digest(self) -> str:
        return f"{self.kernel} {self.chip} {self.sizes}"

    @staticmethod
    def parse(text: str) -> RecordKey:
        if not AT.fullmatch(text):
            raise BadRecord(f"at is {text[:80]!r}, and not kernel, digest, chip and sizes")
        return RecordKey(*text.split(" "))


@dataclass(frozen=True)
class TileRecord:
    """One decision."""

    key: RecordKey
    choice: Mapping[str, int]
    order: str = ""
    how: str = STRENGTHS[0]
    considered: int = 0
    illegal: int = 0
    tried: int = 0
    """Points that ran."""
    predicted: float = 0.0
    """Seconds."""
    measured: float | None = None
    spread: float | None = None
    rounds: int = 0
    baseline: float | None = None
    """Seconds of what the model alone would have taken, in the same run."""
    version: str = __version__
    notes: str = field(default="", compare=False)
    file: str = field(default="", compare=False)
    """The file that it was read from."""

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """The sort key by which the better record is the larger; it does not depend on the order of reading."""
        return STRENGTHS.index(self.how), self.tried, self.rounds, self.line

    @property
    def line(self) -> str:
        facts = {name: getattr(self, name) for name in FIELDS} | {"at": str(self.key), "format": FORMAT}
        return json.dumps(facts | {"choice": dict(self.choice)}, separators=(",", ":"), sort_keys=True, allow_nan=False)

    @staticmethod
    def parse(line: str | bytes, file: str = "") -> TileRecord:
        """The record of a line of a file; a `BadRecord` for whatever is none."""
        if len(line) > LONGEST_LINE:
            raise BadRecord(f"a line of {len(line):,} characters")
        try:
            facts = parse_json(line)
        except ValueError as why:
            raise BadRecord(f"this is no JSON: {why}") from None
        if not isinstance(facts, dict):
            raise BadRecord("this is no JSON object")
        _want(facts, "format", COUNT)
        if facts["format"] > FORMAT:
            raise NewerRecord(f"format {facts['format']}, and {FORMAT} is the last that is known here")
        if facts.get("how") not in STRENGTHS:
            raise BadRecord(f"how is {facts.get('how')!r}; there are {', '.join(STRENGTHS)}")
        for name, kind in {"at": TEXT, **FIELDS}.items():
            _want(facts, name, kind)
        choice = {OPTIONS.get(symbol) or symbol: n for symbol, n in facts["choice"].items()}
        others = {name: facts[name] for name in FIELDS if name != CHOICE}
        return TileRecord(RecordKey.parse(facts["at"]), choice, **others, file=file)


def _want(facts: Mapping[str, Any], name: str, kind: str) -> None:
    if not KINDS[kind](facts.get(name)):
        raise BadRecord(f"{name} is {str(facts.get(name))[:40]!r}, and not {kind}")


def _is_choice(x: Any) -> bool:
    is_named = isinstance(x, dict) and bool(x) and all(symbol.isidentifier() for symbol in x)
    return is_named and all(type(n) is int and 1 <= n < LARGEST_CHOICE for n in x.values())


def _is_time(x: Any) -> bool:
    return type(x) in (int, float) and bool(0 <= x < LONGEST_SECONDS)


CHOICE = "choice"
TEXT, COUNT, SECONDS, PERHAPS = "a text that can be printed", "a whole number", "seconds", "seconds or null"
NUMBERS = f"names and whole numbers from 1 to {LARGEST_CHOICE - 1}"
KINDS: Mapping[str, Callable[[Any], bool]] = {
    TEXT: lambda x: type(x) is str and not any("\ud800" <= c <= "\udfff" for c in x),  # half a surrogate pair
    COUNT: lambda x: type(x) is int and 0 <= x < 1 << 63,
    SECONDS: _is_time,
    PERHAPS: lambda x: x is None or _is_time(x),
    NUMBERS: _is_choice,
}
FIELDS = {
    **dict.fromkeys(("considered", "illegal", "tried", "rounds"), COUNT),
    **dict.fromkeys(("order", "how", "version", "notes"), TEXT),
    **dict.fromkeys(("measured", "spread", "baseline"), PERHAPS),
    "predicted": SECONDS,
    CHOICE: NUMBERS,
}
"""The fields of a line besides the key and the format, each with what it must be."""


def key_in(line: bytes) -> str:
    """What a line says it is for, whatever the digest, without reading the rest; `NO_RECORD` where it says nothing."""
    first = FIRST.encode()
    key = line[len(first) :].partition(b'"')[0].split(b" ") if line.startswith(first) else []
    return b" ".join((key[0], *key[2:])).decode(errors="replace") if len(key) == 4 else NO_RECORD


def merged(lines: Iterable[str]) -> tuple[list[TileRecord], list[tuple[int, str, BadRecord]]]:
    """The better record for each thing, by what it is for; and lines that are none: (number, text, why)."""
    records, bad = [], []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                records.append(TileRecord.parse(line.strip()))
            except BadRecord as why:
                bad.append((number, line, why))
    return best_of(records), bad


def best_of(records: Iterable[TileRecord]) -> list[TileRecord]:
    """Return the best record of each key, sorted by key."""
    best = {record.key: record for record in sorted(records, key=lambda record: record.rank)}
    return sorted(best.values(), key=lambda record: str(record.key))
