"""Dataclasses whose methods are made late behave as the standard library's, and the package uses no others."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pytest

from tilewave import records

LIBRARY = dataclasses.dataclass
MAKERS = pytest.mark.parametrize("make", [LIBRARY, records.dataclass], ids=["library", "ours"])


def declared(make):
    """Return classes that use all that the package uses of dataclasses."""

    @make(frozen=True, kw_only=True)
    class Base:
        shared: ClassVar[int] = 3
        loc: str = dataclasses.field(default="here", compare=False, repr=False)

    @make(frozen=True)
    class Point(Base):
        """A point."""

        x: int
        y: float = 2.0
        names: list[str] = dataclasses.field(default_factory=list, compare=False)
        norm: float = dataclasses.field(default_factory=float, init=False, compare=False)

        def __post_init__(self):
            object.__setattr__(self, "norm", self.x**2 + self.y**2)

    @make(frozen=True, eq=False)
    class Node:
        of: object

    @make(frozen=True)
    class Own:
        x: int

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 7

        def __repr__(self):
            return "own"

    @make(frozen=True)
    class Compared:
        x: int

        def __eq__(self, other):
            return self.x == other

    @make(frozen=True)
    class Nothing:
        pass

    return Base, Point, Node, Own, Compared, Nothing


def behaviour(make):
    Base, Point, Node, Own, Compared, Nothing = declared(make)
    point, node = Point(1, loc="there"), Node([])
    return {
        "texts": [repr(point).split(".")[-1], repr(Nothing()).split(".")[-1], repr(Own(1))],
        "signatures": [str(inspect.signature(c)) for c in (Base, Point, Node, Own, Nothing)],
        "match": [c.__match_args__ for c in (Base, Point, Node, Nothing)],
        "equal": [
            point == Point(1),
            point == Point(1, 3.0),
            point == 3,
            Own(1) == Own(2),
            Compared(1) == 1,
            Nothing() == Nothing(),
            Node([]) == Node([]),
            node == copy.copy(node),
        ],
        "hashes": [
            hash(point) == hash(Point(1)),
            hash(point) == hash((1, 2.0)),
            hash(Own(1)),
            hash(Compared(1)) == hash((1,)),
        ],
        "values": [dataclasses.asdict(point), dataclasses.astuple(Base()), point.norm],
        "replaced": [dataclasses.asdict(dataclasses.replace(point, x=2))],
        "fields": [(f.name, f.kw_only, f.compare, f.type) for f in dataclasses.fields(Point)],
        "separate": Point(1).names is not Point(1).names,
        "attributes": [hasattr(Point, name) for name in ("x", "y", "names", "norm", "loc", "shared")],
    }


def test_all_of_a_record_is_as_the_library_makes_it():
    assert behaviour(records.dataclass) == behaviour(LIBRARY)


@MAKERS
def test_a_record_refuses_changes_and_wrong_arguments(make):
    _, Point, *_ = declared(make)
    point = Point(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    with pytest.raises(TypeError, match=r"Point.__init__\(\) missing 1 required positional argument: 'x'"):
        Point()
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'z'"):
        Point(1, z=3)


def test_a_record_is_no_other_class_of_the_same_values():
    _, Point, *_ = declared(records.dataclass)

    class Further(Point):
        pass

    assert Further(1) != Point(1) and Further(1) == Further(1) and repr(Further(1)) != repr(Point(1))


def test_a_dataclass_of_the_library_extends_a_record():
    Base, *_ = declared(records.dataclass)

    @LIBRARY(frozen=True)
    class Further(Base):
        more: int = 1

    assert Further(2, loc="x") == Further(2) and Further(2).loc == "here"
    with pytest.raises(TypeError, match="frozen"):

        @LIBRARY
        class Changing(Base):
            more: int = 1


@records.dataclass(frozen=True)
class Kept:
    x: int
    of: "Kept | None" = None


def test_a_record_is_pickled_and_copied():
    kept = Kept(1, Kept(2))
    assert pickle.loads(pickle.dumps(kept)) == copy.deepcopy(kept) == kept


def test_methods_are_made_at_their_first_use():
    declared(records.dataclass)
    script = (
        "from tilewave.ir.remarks import Remark; from tilewave.compiled import Compiled; "
        "print(*(type(c.__dict__['__init__']).__name__ for c in (Remark, Compiled)))"
    )
    said = subprocess.check_output([sys.executable, "-c", script], text=True, cwd=Path(__file__).parents[1])
    assert said.split() == ["_Init", "_Init"]


def test_no_signature_is_written_for_a_record(monkeypatch):
    """The library writes the signature of each class without a docstring, which takes longer than all the rest."""
    asked = []
    monkeypatch.setattr(inspect, "signature", asked.append)
    for record in declared(records.dataclass):
        assert record.__init__
    assert asked == []


def test_the_package_declares_no_frozen_dataclass_of_the_library():
    package = Path(records.__file__).parent
    alone = {"records.py", "llvm_child.py"}  # the second runs where nothing else of the package is imported
    found = [
        path
        for path in package.rglob("*.py")
        if path.name not in alone
        for line in path.read_text().splitlines()
        if line.startswith("from dataclasses import") and "dataclass" in line.replace(",", " ").split()
    ]
    assert found == []
