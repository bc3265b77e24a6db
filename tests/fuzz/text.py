"""Programs as text, and back: what Python prints of one is what makes it."""

from __future__ import annotations

from . import program as vocabulary
from .program import Program


def text_of(program: Program) -> str:
    return repr(program)


def program_of(text: str) -> Program:
    made = eval(text, {**vars(vocabulary), "inf": float("inf"), "nan": float("nan")})  # our own text
    assert isinstance(made, Program)
    return made
