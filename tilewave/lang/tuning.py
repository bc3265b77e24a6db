"""`Tune(BLOCK_M=(64, 128))` and `@autotune(configs=[…])`: the search space that an author gives next to a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilewave.errors import Loc, SymbolError, TilewaveError, here
from tilewave.lang.kernel import WaveKernel
from tilewave.lang.symbols import Symbol
from tilewave.mapping import as_mapping
from tilewave.records import dataclass
from tilewave.renamed import current_options


@dataclass(frozen=True, init=False)
class Tune:
    """Narrows or widens a kernel's search space: values for tunable symbols, and orders of tiles.

    `num_stages`, `split` and `in_place` narrow what the compiler otherwise chooses, on targets that support it. Symbols
    that are not named keep their default values; without `mapping`, a few orders are tried.
    """

    values: tuple[tuple[str, tuple[int, ...]], ...]
    mapping: tuple[str, ...]
    loc: Loc
    configs: tuple[tuple[tuple[str, int], ...], ...] = ()
    """The configs of `@autotune`, which calls time; empty: all combinations of `values`, which the model ranks."""

    def __init__(
        self,
        *,
        mapping: Sequence[object] | None = None,
        configs: Sequence[Mapping[Symbol | str, int]] | None = None,
        **values: int | Iterable[int],
    ) -> None:
        loc = here()
        named = current_options("Tune", values)
        found = tuple((name, _numbers(name, given, loc)) for name, given in named.items())
        if mapping is not None and (isinstance(mapping, str) or not isinstance(mapping, Iterable) or not [*mapping]):
            remedy = 'write mapping=["grouped(8)", "hilbert()"]'
            raise SymbolError(f"Tune: mapping is {mapping!r}, no list of orders", loc=loc, remedy=remedy)
        object.__setattr__(self, "values", found)
        object.__setattr__(self, "mapping", tuple(str(as_mapping(one)) for one in mapping or ()))
        object.__setattr__(self, "loc", loc)
        object.__setattr__(self, "configs", () if configs is None else _configs(configs, loc))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the symbols that it gives values for."""
        return tuple(dict.fromkeys(name for values in (self.values, *self.configs) for name, _ in values))

    @property
    def called(self) -> str:
        """What its author wrote."""
        return "autotune" if self.configs else "Tune"


def autotune(configs: Sequence[Mapping[Symbol | str, int]]) -> Callable[[WaveKernel], WaveKernel]:
    """Return a decorator of a kernel whose calls time these configs, once for each class of sizes.

        @autotune(configs=[{BLOCK_M: 64, BLOCK_N: 64}, {BLOCK_M: 128, BLOCK_N: 64, "num_stages": 3}])
        @wave(constraints)
        def kernel(…): …

    A class has the sizes from one power of two to the next. The fastest config is kept in a tuning record of this
    machine, which later processes use. Each config gives every tile size that the kernel leaves open; it may give
    `num_stages`, `split` and `in_place`, which targets without them ignore.
    """
    loc, tune = here(), Tune(configs=configs)

    def decorated(kernel: WaveKernel) -> WaveKernel:
        if not isinstance(kernel, WaveKernel):
            raise TilewaveError("autotune: this is no kernel", loc=loc, remedy="write @autotune(…) above @wave(…)")
        return replace(kernel, tune=tune, kept={})

    return decorated


def _configs(given: Sequence[Mapping[Symbol | str, int]], loc: Loc) -> tuple[tuple[tuple[str, int], ...], ...]:
    if isinstance(given, (str, Mapping)) or not all(isinstance(one, Mapping) and one for one in given):
        remedy = "write configs=[{BLOCK_M: 64, BLOCK_N: 64}, {BLOCK_M: 128, BLOCK_N: 64}]"
        raise SymbolError("autotune: configs is no list of configs", loc=loc, remedy=remedy)
    if not given:
        raise SymbolError("autotune: configs is empty", loc=loc, remedy="give two configs at least")
    named = [current_options("autotune", {str(name): n for name, n in one.items()}) for one in given]
    return tuple(tuple((name, _numbers(name, n, loc)[0]) for name, n in one.items()) for one in named)


def _numbers(name: str, given: int | Iterable[int], loc: Loc) -> tuple[int, ...]:
    values = (given,) if isinstance(given, int) else tuple(given) if isinstance(given, Iterable) else ()
    if not values or any(isinstance(v, bool) or not isinstance(v, int) or v < 1 for v in values):
        remedy = f"write {name}=(64, 128), numbers of at least 1"
        raise SymbolError(f"Tune: {name} is {given!r}, which leaves nothing to try", loc=loc, remedy=remedy)
    return tuple(dict.fromkeys(values))
