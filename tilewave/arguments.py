"""The arguments of a compiled kernel's calls: arrays and scalars, the sizes that they give, and what is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewave.analysis.index_trace import needed_values
from tilewave.analysis.reads import reads_depend_on
from tilewave.analysis.schedule import Schedule, stores
from tilewave.analysis.size_proofs import Verdicts
from tilewave.backend.targets import quoted, targets_on
from tilewave.errors import CallError, WrongDevice, here
from tilewave.forks import cached_property
from tilewave.ir.core import Kernel, Value
from tilewave.ir.effects import touched
from tilewave.ir.launch import bind, open_sizes
from tilewave.ir.types import INDEX_SCALAR
from tilewave.lang.assumptions import Assumed
from tilewave.lang.kernel import arguments
from tilewave.options import in_place_of_option
from tilewave.records import dataclass
from tilewave.runtime.array_layouts import Placed
from tilewave.runtime.arrays import ArrayView, Parameter
from tilewave.runtime.call_checks import check_host_call
from tilewave.runtime.call_class import CallLook, SeenCall
from tilewave.runtime.signature import Signature
from tilewave.runtime.sizes import SizedCall, Sizes


@dataclass(frozen=True, eq=False)
class KernelArguments:
    """The arguments that the calls of a compiled kernel pass."""

    kernel: Kernel
    dynamic_symbols: tuple[str, ...]
    verdicts: Verdicts
    """What was proved or checked of the sizes that it was called with."""
    assumed: tuple[Assumed, ...]

    @property
    def name(self) -> str:
        return self.kernel.name

    @cached_property
    def sizes(self) -> Sizes:
        return Sizes(self.kernel, touched(self.kernel)[0])

    @property
    def open_sizes(self) -> tuple[str, ...]:
        """The sizes that the arrays of each call give."""
        return self.sizes.passed

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The arrays that the kernel was compiled for; an error where sizes are dynamic."""
        if self.open_sizes:
            raise CallError(
                f"{self.name}: the sizes of its arrays depend on {', '.join(self.open_sizes)}",
                loc=here(),
                remedy=f"any that agree will do; compile it with subs={{{self.open_sizes[0]}: …, …}} to fix them",
            )
        return self.sizes.of_values({v.name: 1 for v in self.numbers}).parameters

    @cached_property
    def numbers(self) -> tuple[Value, ...]:
        """The scalar arguments in the kernel's order: parameters such as `alpha: f32`, sizes and dynamic symbols."""
        return arguments(self.kernel)[1]

    @cached_property
    def takes_numbers(self) -> bool:
        """Whether a call must pass a scalar argument; sizes come with its arrays."""
        return len(self.numbers) > len(self.open_sizes)

    @cached_property
    def signature(self) -> Signature:
        """The author's parameters: arrays and scalars, in order."""
        own = [v for v in self.kernel.body.args if v.name not in (*self.dynamic_symbols, *self.open_sizes)]
        dtypes = {v.name: v.type.dtype for v in own if v in self.numbers}
        return Signature(self.name, tuple(v.name for v in own), dtypes)

    def bind(self, given: Sequence[Any], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arrays of a call, and its scalar arguments by name."""
        names = self.signature.names
        if named.keys() == self._symbol_names and len(given) == len(names) and not self.signature.dtypes:
            for value in named.values():
                if type(value) is not int or value < 1:
                    break
            else:  # the fast path: symbols are positive ints, and there are no scalar parameters
                return tuple(given), dict(named)
        call = self.signature.bind(given, named)
        if call.symbols or self.dynamic_symbols:
            return tuple(call.arrays), {**call.scalars, **self._symbols(call.symbols)}
        return tuple(call.arrays), dict(call.scalars)

    @cached_property
    def _symbol_names(self) -> frozenset[str]:
        return frozenset(self.dynamic_symbols)

    def _symbols(self, given: Mapping[str, Any], wanted: Sequence[str] | None = None) -> dict[str, int]:
        """Return the symbols of a call as ints; an error for a missing or unknown one. Array sizes may be missing."""
        unknown = [name for name in given if name not in (*self.dynamic_symbols, *self.open_sizes)]
        missing = [name for name in (self.dynamic_symbols if wanted is None else wanted) if name not in given]
        if unknown:
            known = f"it takes {', '.join(self.dynamic_symbols)}" if self.dynamic_symbols else "it takes none"
            otherwise = f"{known}; name it in WaveCompileOptions(dynamic_symbols=[{unknown[0]}])"
            remedy = in_place_of_option("kernel", unknown[0], given[unknown[0]]) or otherwise
            raise CallError(f"{self.name} takes no symbol {unknown[0]}", loc=here(), remedy=remedy)
        if missing:
            passed = ", ".join(f"{name}=…" for name in wanted or ())
            remedy = f"give all of them by name: {passed}" if passed else f"write {self.name}(…, {missing[0]}=4)"
            raise CallError(f"{self.name} needs a value for {missing[0]}", loc=here(), remedy=remedy)
        for name, value in given.items():
            least = 1 if name in self.verdicts.proof.positive else 0
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
                raise CallError(f"{self.name}: {name} is {value!r}, no whole number of at least {least}", loc=here())
        return {name: int(value) for name, value in given.items()}

    @property
    def schedule(self) -> Schedule:
        """The tiles of each workgroup, in order."""
        if deciding := list(self.open_sizes) or order_depends_on(self.kernel):
            given = ", ".join(f"{name}=…" for name in dict.fromkeys((*self.dynamic_symbols, *deciding)))
            raise CallError(
                f"{self.name}: the order depends on {', '.join(deciding)}",
                loc=here(),
                remedy=f"write schedule_for({given})",
            )
        return self.verdicts.first(dict.fromkeys(self.dynamic_symbols, 1))

    def schedule_for(self, /, **symbols: Any) -> Schedule:
        """Return the schedule for given dynamic symbols, and for parameters that decide it.

        Raises if a tile is lost or computed twice, if a workgroup reads what another writes, or a tile out of bounds.
        """
        own = self.signature.dtypes
        wanted = {v.name for v in self.deciding} & own.keys()
        scalars = self.signature.of_numbers(wanted | (own.keys() & symbols)).bind((), symbols)
        passed = self._symbols(scalars.symbols, (*self.dynamic_symbols, *self.open_sizes))
        return self.judged(self.of_names({**scalars.scalars, **passed}))

    @cached_property
    def deciding(self) -> tuple[Value, ...]:
        """The scalar arguments that decide which workgroup computes which tiles, and what is read."""
        return deciding_numbers(self.kernel) if self.numbers else ()

    @cached_property
    def sizes_decide(self) -> bool:
        """Whether only sizes and symbols decide the schedule, and no parameter such as `n: i32`."""
        return all(v.type == INDEX_SCALAR for v in self.deciding)

    def want_assumed(self, values: Mapping[str, Any]) -> None:
        for condition in self.assumed:
            condition.want(self.name, values)

    def judged(self, sized: SizedCall) -> Schedule:
        """Return the schedule for these numbers; it is checked once for each class of sizes."""
        self.want_assumed(sized.values)
        return self.verdicts.schedule(sized.numbers, sized.values)

    def bound(self, /, **symbols: int) -> Kernel:
        """Return the kernel on whole tiles with these values of sizes and symbols."""
        passed = self._symbols(symbols, (*self.dynamic_symbols, *self.open_sizes))
        return bind(self.kernel, self.of_names(passed).values)

    def of_names(self, known: Mapping[str, Any]) -> SizedCall:
        """Return the call with these numbers, without its arrays; missing scalars decide nothing, and are 0."""
        return self.sizes.of_values({**dict.fromkeys(self.signature.dtypes, 0), **known})

    def checked(self, arrays: Sequence[Any], sized: SizedCall) -> tuple[ArrayView, ...]:
        try:
            return check_host_call(self.name, sized.parameters, arrays)
        except WrongDevice as error:
            raise with_targets(error) from None

    @cached_property
    def sized(self) -> JudgedSizes:
        return JudgedSizes(self)


class JudgedSizes:
    """The sizes of a kernel's calls; the kernel is checked for them before anything runs."""

    def __init__(self, called: KernelArguments) -> None:
        self.called, self.sizes, self.verdicts = called, called.sizes, called.verdicts
        self._is_proved = self.verdicts.proof.holds

    def __call__(self, arrays: Sequence[Any], given: Mapping[str, Any]) -> SizedCall:
        called = self.called
        sized = self.sizes.of_call(arrays, given)
        if not sized.is_right and called.numbers:
            called.want_assumed(sized.values)
            self.verdicts.want(sized.numbers, sized.values, [p.shape for p in sized.parameters])
            if called.sizes_decide:
                sized.note_right()
        return sized

    @cached_property
    def look(self) -> CallLook:
        called = self.called
        named = {v.name for v in called.numbers}
        deciding = {v.name for v in called.numbers if v.type == INDEX_SCALAR or v in called.deciding}
        telling = named if called.assumed else set() if self._is_proved else deciding
        return self.sizes.look(self.verdicts.surely if self._is_proved else None, telling)

    def knows(self, seen: SeenCall, placed: Placed) -> bool:
        if self.called.assumed and not self._is_assumed(seen.numbers):
            return False
        is_right = self._is_proved or not seen.numbers
        return is_right or self.verdicts.knows(seen.workgroups, seen.passed, [array.lengths for array in placed])

    def with_others(self, numbers: Sequence[int], given: Sequence[int]) -> tuple[int, ...] | None:
        found = list(numbers)
        for (at, decides), number in zip(self._given, given, strict=True):
            if decides and found[at] != number:
                return None
            found[at] = number
        return tuple(found)

    @cached_property
    def _given(self) -> list[tuple[int, bool]]:
        """The position of each scalar argument of a call, and whether it decides more than the values computed."""
        called, limits = self.called, self.sizes.limits
        numbers = [(i, v) for i, v in enumerate(called.numbers) if v.name not in limits]
        free = () if called.assumed else [v for _, v in numbers if v.type != INDEX_SCALAR]
        return [(i, v not in free or v in called.deciding) for i, v in numbers]

    def _is_assumed(self, numbers: Sequence[int]) -> bool:
        values = {v.name: n for v, n in zip(self.called.numbers, numbers, strict=True)}
        return all(condition.holds(values) for condition in self.called.assumed)


def with_targets(error: WrongDevice) -> WrongDevice:
    """Return the error with the targets that run on the array's device."""
    fitting = targets_on(error.device)
    return error.but(f"compile with target={quoted(fitting)}") if fitting else error


def deciding_numbers(kernel: Kernel) -> tuple[Value, ...]:
    """Return the scalar arguments that decide which workgroup computes which tiles, and what is read."""
    names = {*open_sizes(kernel), *order_depends_on(kernel), *reads_depend_on(kernel)}
    return tuple(v for v in arguments(kernel)[1] if v.name in names)


def order_depends_on(kernel: Kernel) -> list[str]:
    """Return the scalar arguments that decide which workgroup computes which tiles, and when."""
    deciding = needed_values(kernel.body, stores)
    return [symbol.name for symbol in arguments(kernel)[1] if symbol in deciding]
