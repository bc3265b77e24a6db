"""What several commands are asked in the same words: sizes and dtypes."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from tilewave.errors import TilewaveError, text_error
from tilewave.ir.types import DType
from tilewave.view.extents import parse_extents

LARGEST_SIZE = 2**31 - 1


def sizes(what: str, text: str, smallest: tuple[int, int, int], example: str) -> tuple[int, int, int]:
    """M, N and K of a shape or a tile."""
    found = parse_extents(text, what, ("M", "N", "K"), example)
    for name, extent, least in zip("MNK", found, smallest, strict=True):
        if not least <= extent.value <= LARGEST_SIZE:
            limits = f"{name} of {what} is from {least} to {LARGEST_SIZE}, not {extent.value}"
            raise TilewaveError(text_error(limits, text, extent.start, extent.stop))
    m, n, k = (extent.value for extent in found)
    return m, n, k


def known_dtype(option: str, text: str, known: tuple[DType, ...]) -> DType:
    """Return the dtype of this name among those that the option accepts."""
    for dtype in known:
        if dtype.name == text:
            return dtype
    remedy = f"it is one of {', '.join(map(str, known))}"
    raise TilewaveError(text_error(f"{option} takes no `{text}`", text, 0, len(text), remedy))


def given(context: typer.Context, *names: str) -> list[str]:
    """Return the options among `names` that are on the command line, as they are written there."""
    options = {p.name: p.opts[0] for p in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in names}
    return [options[name] for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]


def refuse_given(context: typer.Context, names: Sequence[str], why: str, remedy: str) -> None:
    """Refuse an option that was given and would change nothing."""
    for option in given(context, *names):
        raise TilewaveError(f"{option} {why}", remedy=remedy)
