"""Machine code of AMD chips and the needs of its launch, as stored in the cache and in files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tilewave.errors import SavedKernelError
from tilewave.forks import cached_property
from tilewave.lower.launch_arguments import KernelArgument, Reach
from tilewave.records import dataclass
from tilewave.runtime.cache import default_cache, key_of
from tilewave.runtime.launch_scalars import LaunchTable
from tilewave.runtime.records import Record, packed, restored, unpacked


@dataclass(frozen=True)
class AmdCode:
    """Machine code, and the needs of its launch."""

    arguments: tuple[KernelArgument, ...]
    reaches: tuple[Reach, ...]
    shared_bytes: int
    workgroup_size: int
    workgroups: int | str
    """The number of workgroups, or the name of the launch value that gives it."""
    launch: str
    """The text of the ops computed at each launch, for dynamic shapes."""
    asm: str
    code_object: bytes

    @cached_property
    def launches(self) -> LaunchTable:
        return LaunchTable(self.workgroups, self.launch)

    @property
    def facts(self) -> dict[str, Any]:
        """All fields but the code, for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in ("asm", "code_object")}

    @staticmethod
    def of(facts: Record, asm: str, code_object: bytes) -> AmdCode:
        return restored(AmdCode, facts, asm=asm, code_object=code_object)


def kept(key: str, any_strides: Iterable[str]) -> AmdCode | None:
    """Return the code of a kernel with that key for these `any_strides` from the cache; None where it is incomplete."""
    data = default_cache().get(key_of(key, *sorted(any_strides)))
    if data is None:
        return None
    try:
        facts, (asm, code_object) = unpacked(data)
        return AmdCode.of(facts, asm.decode(), code_object)
    except (SavedKernelError, ValueError):
        return None


def keep(key: str, any_strides: Iterable[str], code: AmdCode) -> None:
    default_cache().put(key_of(key, *sorted(any_strides)), packed(code.facts, [code.asm.encode(), code.code_object]))
