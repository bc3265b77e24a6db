"""What the language forbids and whole arrays do not show: workgroups that meet in one place, tiles written outside."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .program import Program

NOBODY, SEVERAL = -1, -2


class WrongProgram(Exception):
    """The generator made what the language forbids."""


@dataclass
class Ownership:
    """Which workgroup wrote and read each element of what the program writes."""

    program: Program
    writer: dict[str, np.ndarray] = field(default_factory=dict)
    reader: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.program.written():
            shape = tuple(self.program.dim(d).size for d in self.program.array(name).dims)
            self.writer[name], self.reader[name] = np.full(shape, NOBODY), np.full(shape, NOBODY)

    def check_inside(self, tile, starts, inside: np.ndarray) -> None:
        """Every workgroup's tile that is written has an element inside its memory."""
        blocks = inside
        for axis, (d, first) in enumerate(zip(tile, starts, strict=True)):
            dim = self.program.dim(d)
            if dim.axis is not None and blocks.shape[axis]:
                cuts = np.arange(0, blocks.shape[axis], dim.tile)
                blocks = np.logical_or.reduceat(blocks, cuts, axis=axis)
            else:
                assert first >= 0
                blocks = np.logical_or.reduce(blocks, axis=axis, keepdims=True)
        if not blocks.all():
            raise WrongProgram("a tile lies outside its memory")

    def workgroups(self, tile, shape) -> np.ndarray:
        """The workgroup of each element of a tile; SEVERAL where the tile is the same for more than one."""
        number, count = np.zeros(shape, np.int64), 1
        for d in self.program.dims:
            if d.axis is None or d.tiles == 1:
                continue
            if d.name not in tile:
                return np.full(shape, SEVERAL)
            axis = tile.index(d.name)
            along = np.arange(shape[axis]) // d.tile * count
            number = number + along.reshape([-1 if n == axis else 1 for n in range(len(shape))])
            count *= d.tiles
        return number

    def note(self, name: str, who: np.ndarray, at: tuple, writes: bool) -> None:
        if name not in self.writer:
            return
        writer, reader = self.writer[name], self.reader[name]
        if ((writer[at] != NOBODY) & ((writer[at] != who) | (who == SEVERAL))).any():
            raise WrongProgram(f"{name}: another workgroup wrote this")
        if writes:
            if (who == SEVERAL).any() or ((reader[at] != NOBODY) & (reader[at] != who)).any():
                raise WrongProgram(f"{name}: another workgroup reads or writes this")
            writer[at] = who
        else:
            met = (reader[at] != NOBODY) & (reader[at] != who)
            reader[at] = np.where(met, SEVERAL, who)

    def check_all_written(self) -> None:
        for name, writer in self.writer.items():
            if (writer == NOBODY).any():
                raise WrongProgram(f"{name} is not written everywhere")
