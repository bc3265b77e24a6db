"""What a kernel asks of a launch: its arguments, its memories, and what stands in its registers at the start."""

from __future__ import annotations

from dataclasses import dataclass

USER_SCALARS = (
    ("private_segment_buffer", 4),
    ("dispatch_ptr", 2),
    ("queue_ptr", 2),
    ("kernarg_segment_ptr", 2),
    ("dispatch_id", 2),
    ("flat_scratch_init", 2),
    ("private_segment_size", 1),
)
"""In the order in which the hardware fills scalar registers; so are the bits of a descriptor's properties."""


@dataclass(frozen=True)
class Argument:
    """A place in the argument buffer; `kind` is the metadata's value_kind."""

    name: str
    kind: str
    offset: int
    size: int

    @property
    def is_pointer(self) -> bool:
        return self.kind in ("global_buffer", "dynamic_shared_pointer")

    @property
    def is_hidden(self) -> bool:
        return self.kind.startswith("hidden_")


@dataclass(frozen=True)
class Resources:
    """What the compiler says that a kernel needs; `vector_registers` counts accumulation registers too."""

    vector_registers: int
    accumulation_registers: int
    scalar_registers: int
    spills: int
    largest_workgroup: int


@dataclass(frozen=True)
class Descriptor:
    """How the hardware starts a wave."""

    shared_bytes: int
    private_bytes: int
    argument_bytes: int
    user_scalars: tuple[str, ...]
    user_scalar_count: int
    preloaded: int
    preload_offset: int
    workgroup_ids: tuple[bool, bool, bool]
    mode: int
    allocated_registers: int
    """Vector registers that the hardware sets aside for a wave."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be launched; `entry` is the position of its first instruction."""

    name: str
    entry: int
    descriptor: Descriptor
    arguments: tuple[Argument, ...]
    resources: Resources
