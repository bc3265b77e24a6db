"""Source locations of the author's constraints, for errors found later."""

from __future__ import annotations

from tilewave.errors import NOWHERE, Loc
from tilewave.records import dataclass


@dataclass(frozen=True)
class Side:
    """Rows or columns of the result: the dimension, its tile, and the part of the tile that the author gives a wave."""

    name: str = ""
    tile: int = 0
    wave_tile: int = 0
    """0 where the author does not specify it."""
    tiled_at: Loc = NOWHERE
    cut_at: Loc = NOWHERE
    """The line of the constraint that splits it among waves."""


@dataclass(frozen=True)
class Places:
    """The lines of the constraints on tiles, depth, waves and hardware; `sides` are rows and columns."""

    tiles: Loc = NOWHERE
    depth: Loc = NOWHERE
    waves: Loc = NOWHERE
    hardware: Loc = NOWHERE
    sides: tuple[Side, Side] = (Side(), Side())

    @property
    def decisive(self) -> str:
        """The part of the constraints that passes depend on, without line numbers."""
        return repr([(side.name, side.tile, side.wave_tile) for side in self.sides])
