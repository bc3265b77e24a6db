"""Remarks: what the passes of a kernel left unchanged, and why; for people a table, for programs a tuple of records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewave.errors import Loc
from tilewave.ir.remarks import Remark
from tilewave.pipeline.runner import Step
from tilewave.records import dataclass

NOTHING = "no remarks"


@dataclass(frozen=True)
class WhyRow:
    """The remark of one pass on one thing that it left unchanged."""

    step: str
    """The pass, by the name of its step."""
    remarks: Remark

    @property
    def loc(self) -> Loc:
        return self.remarks.loc

    @property
    def what(self) -> str:
        return self.remarks.what

    @property
    def remedy(self) -> str:
        return self.remarks.remedy

    @property
    def line(self) -> str:
        """`gemm.py:21`, or an empty text where the remark is on no line."""
        return str(self.loc) if self.loc.line else ""

    @property
    def record(self) -> dict[str, str]:
        """The remark as a JSON object."""
        return {"pass": self.step, "line": self.line, "what": self.what, "remedy": self.remedy}


@dataclass(frozen=True)
class Why:
    """Remarks in the order of the passes; prints as a table."""

    rows: tuple[WhyRow, ...]

    @staticmethod
    def of(steps: Iterable[Step]) -> Why:
        return Why(tuple(WhyRow(step.name, remarks) for step in steps for remarks in step.remarks))

    def of_options(self, remarks: Iterable[Remark]) -> Why:
        """Return the remarks with those on compile options that are replaced by others."""
        return Why((*(WhyRow("options", d) for d in remarks), *self.rows))

    def of_sums(self, proved: Iterable[Remark]) -> Why:
        """Return the remarks with what is proved of the order of sums."""
        return Why((*(WhyRow("batch_invariant", d) for d in proved), *self.rows))

    def of_choice(self, remarks: Remark) -> Why:
        """Return the remarks with the one on the tile sizes that were chosen where the author gives none."""
        return Why((WhyRow("tiles", remarks), *self.rows))

    def of_a_call(self, remarks: Iterable[Remark]) -> Why:
        """Return the remarks with those on the arrays of a call, which keep it from faster code."""
        return Why((*self.rows, *(WhyRow("call", d) for d in remarks)))

    def __iter__(self) -> Iterator[WhyRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        if not self.rows:
            return NOTHING
        widths = [max(len(getattr(row, column)) for row in self.rows) for column in ("step", "line")]
        return "\n".join(_text(row, *widths) for row in self.rows)

    __repr__ = __str__


def _text(row: WhyRow, step: int, line: int) -> str:
    front = f"{row.step:{step}}  {row.line:{line}}  "
    return front + row.what + (f"\n{' ' * len(front)}{row.remedy}" if row.remedy else "")
