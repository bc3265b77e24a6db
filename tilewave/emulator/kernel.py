"""What a kernel needs from a launch: its arguments, its memories, and the initial values of its registers."""

from __future__ import annotations

from tilewave.records import dataclass

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
class DeclaredResources:
    """What the compiler says that a kernel needs; `vector_registers` counts accumulation registers too."""

    vector_registers: int
    accumulation_registers: int
    scalar_registers: int
    spills: int
    """Vector registers that are stored to memory, as there are too few."""
    scalars_in_lanes: int
    """Scalar registers that are stored to lanes of vector registers instead; no memory is accessed."""
    largest_workgroup: int


ROUNDS_TO_NEAREST, KEEPS_DENORMALS = 0x00, 0xF0
"""What the low byte of the mode register says of all formats."""
DX10_CLAMP, IEEE_MODE, FP16_OVERFLOW = 1 << 8, 1 << 9, 1 << 23
"""Bits of the mode register: clamping makes 0 of NaN; signaling NaNs are not passed over; conversions saturate."""

MODE_OF_RESULTS = 0xFF | DX10_CLAMP | IEEE_MODE | FP16_OVERFLOW


def mode_register(float_mode: int, dx10_clamp: int, ieee_mode: int, fp16_overflow: int) -> int:
    """The mode that a wave starts in: a byte of rounding and denormals, and three bits."""
    return float_mode | dx10_clamp * DX10_CLAMP | ieee_mode * IEEE_MODE | fp16_overflow * FP16_OVERFLOW


def is_usual(mode: int) -> bool:
    """Whether results are rounded to nearest even and denormals kept, which is all that the emulator knows."""
    return mode & 0xFF == ROUNDS_TO_NEAREST | KEEPS_DENORMALS


@dataclass(frozen=True)
class KernelDescriptor:
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
class LoadedKernel:
    """A kernel that can be launched; `entry` is the position of its first instruction."""

    name: str
    entry: int
    descriptor: KernelDescriptor
    arguments: tuple[Argument, ...]
    resources: DeclaredResources
