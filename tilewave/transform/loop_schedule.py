"""Some steps of a loop, under the numbers that they have in the whole loop."""

from __future__ import annotations

from tilewave.ir.build import Builder, Number
from tilewave.ir.core import Block
from tilewave.ir.rewrite import substitute_block


def steps_from(first: Number, body: Block, builder: Builder) -> Block:
    """Return a loop's body for a loop whose steps are counted from `first` on."""
    index, *carried = body.args
    counter = builder.fresh(index.name, index.type)
    with builder.region():
        step = (Number(builder, counter) + first).value
        return Block((counter, *carried), (*builder.ops, *substitute_block(body, {index: step}).ops))
