"""Mappings from workgroups to tiles: pure integer arithmetic that is composed, proved and measured."""

from tilewave.mapping.algebra import Chain, Formula, Mapping, Renumbering, from_function
from tilewave.mapping.balance import Balance, Causal, XcdWork, balance, even_rounds
from tilewave.mapping.coverage import Counterexample, Coverage
from tilewave.mapping.curves import Hilbert, Morton, hilbert, morton
from tilewave.mapping.grid import Deal, Grid, MappingError, MappingHasNoEffect, OpenGrid, ParameterError
from tilewave.mapping.index import Index, choose, larger, smaller
from tilewave.mapping.locality import Locality, XcdReads, XcdShare, locality
from tilewave.mapping.orders import (
    Grouped,
    Linear,
    Order,
    Paired,
    Snake,
    Supertiles,
    grouped,
    linear,
    paired,
    snake,
    supertiles,
)
from tilewave.mapping.proof import PersistentFormula, Proof, find_counterexample, is_right_on_every_grid, prove
from tilewave.mapping.renumberings import (
    Folded,
    LastFirst,
    XcdChunked,
    XcdContiguous,
    folded,
    last_first,
    xcd_chunked,
    xcd_contiguous,
)
from tilewave.mapping.text import as_mapping, parse

__all__ = [
    "Balance",
    "Causal",
    "Chain",
    "Counterexample",
    "Coverage",
    "Deal",
    "Folded",
    "Formula",
    "Grid",
    "Grouped",
    "Hilbert",
    "Index",
    "LastFirst",
    "Linear",
    "Locality",
    "Mapping",
    "MappingError",
    "MappingHasNoEffect",
    "Morton",
    "OpenGrid",
    "Order",
    "Paired",
    "ParameterError",
    "PersistentFormula",
    "Proof",
    "Renumbering",
    "Snake",
    "Supertiles",
    "XcdChunked",
    "XcdContiguous",
    "XcdReads",
    "XcdShare",
    "XcdWork",
    "as_mapping",
    "balance",
    "choose",
    "even_rounds",
    "find_counterexample",
    "folded",
    "from_function",
    "grouped",
    "hilbert",
    "is_right_on_every_grid",
    "larger",
    "last_first",
    "linear",
    "locality",
    "morton",
    "paired",
    "parse",
    "prove",
    "smaller",
    "snake",
    "supertiles",
    "xcd_chunked",
    "xcd_contiguous",
]
