"""Accesses that move whole tiles from or to a memory."""

from __future__ import annotations

from tilewave.ir.ops import CopyAsync, Read, Write, WriteThrough

Access = Read | CopyAsync | Write | WriteThrough


def tile_shape(op: Access) -> tuple[int, ...]:
    """Return the shape of the tile that an access moves, or of its part inside the memory (`within`)."""
    match op:
        case Read(within=within) | Write(within=within) if within:
            shape: tuple[int, ...] = within
        case Read():
            shape = op.result.type.shape
        case Write(tile) | WriteThrough(tile):
            shape = tile.type.shape
        case CopyAsync(to=to, to_at=to_at):
            shape = to.type.shape[len(to_at) :]
        case other:
            raise NotImplementedError(f"{other.loc}: no rule for what {other.name} moves")
    return shape


def sizes(op: Access) -> dict[int, int]:
    """Return the extent of an access's tile along each memory axis; axes that are not listed have extent 1."""
    return dict(zip(op.axes, tile_shape(op), strict=True))
