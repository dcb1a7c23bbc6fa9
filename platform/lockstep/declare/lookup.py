"""Lookup: another Delta table that a fold reads by key, in the version that is pinned for the batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path, PurePath
from typing import Any, Generic, ParamSpec, TypeVar, cast

import msgspec

from lockstep.declare.naming import NAME, NO_NAME
from lockstep.declare.transform import R
from lockstep.errors import DeclarationError, EnvironmentProblem
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_field_types

ROWS_MAX = 1_000_000
"""A million rows of four columns take 0.45 GB in each Python worker, and 1.3 CPU seconds to load."""

P = ParamSpec("P")
T = TypeVar("T")

LookupRows = Mapping[object, msgspec.Struct]
"""The rows of one version of a table, by key."""

_BOUND: ContextVar[Mapping[str, LookupRows] | None] = ContextVar("lookups", default=None)


class LookupNotBound(EnvironmentProblem):
    """A lookup was read while no version of its table was pinned. It proves nothing about any message.

    Attributes:
        lookup: Name of the lookup.
    """

    def __init__(self, lookup: str) -> None:
        super().__init__(
            f"lookup {lookup} was read while no version of its table was pinned: outside of on_snapshot, on_update, "
            "on_timer, on_late and on_end, or in a stream that does not declare it",
            next_step=f"declare it: Stream(lookups=(...)); in a test: run(..., lookups={{{lookup!r}: [...]}}); "
            "envelope, watermark and deadline depend on message and state alone",
        )
        self.lookup = lookup


@dataclass(frozen=True)
class Lookup(Declaration, Generic[R]):
    """A Delta table with one row per key, such as instruments or customers, that a fold reads by key.

    Each batch reads the version that was the newest when it was planned.

    Example: `Lookup("units", "reference/units", key="number", row=Unit)`

    Attributes:
        name: Lower-case name, in the ledger and in errors.
        path: Folder of the table. A relative path is below the table root, such as "order_books/table" of another
            stream.
        key: The field of `row` by which rows are found.
        row: The row type, a frozen Struct. Its fields are the columns that are read.
        rows_max: Most rows of the table; all of them are in the memory of each Python worker.

    Raises:
        DeclarationError: Names the field, the value and a valid alternative.
    """

    name: str
    path: str
    key: str = field(kw_only=True)
    row: type[R] = field(kw_only=True)
    rows_max: int = field(default=ROWS_MAX, kw_only=True)

    def __post_init__(self) -> None:
        """Check everything that needs no table."""
        if not isinstance(cast("object", self.name), str) or not NAME.fullmatch(self.name):
            raise DeclarationError("Lookup.name", self.name, NO_NAME, "for example 'instruments'")
        if (refused := find_path_problem(self.path)) is not None:
            raise DeclarationError("Lookup.path", self.path, *refused)
        _check_row(self.row)
        if self.key not in self.row.__struct_fields__:
            fields = ", ".join(self.row.__struct_fields__)
            raise DeclarationError("Lookup.key", self.key, f"is not a field of {self.row.__name__}", f"one of {fields}")
        check_field_types(self)
        if self.rows_max < 1:
            raise DeclarationError("Lookup.rows_max", self.rows_max, "is not a number of rows", "for example 1_000_000")

    def get(self, key: object) -> R | None:
        """The row of a key; None without a row.

        Raises:
            LookupNotBound: No version is pinned here.
        """
        bound = _BOUND.get()
        if bound is None or self.name not in bound:
            raise LookupNotBound(self.name)
        return cast("R | None", bound[self.name].get(key))

    def find_table(self, root: Path) -> Path:
        """The folder of the table, in an installation with this table root."""
        return root / self.path


@contextmanager
def bind_lookups(rows: Mapping[str, LookupRows] | None) -> Generator[None]:
    """Let `Lookup.get` read these rows, by name of the lookup, on this thread; None for no lookup at all."""
    token = _BOUND.set(rows)
    try:
        yield
    finally:
        _BOUND.reset(token)


def without_lookups(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, in which no lookup can be read.

    The inputs of a message's envelope or of a timer's time must not change between two batches: a buffered
    message has its envelope computed again, and a timer is compared with the state that it was computed from.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # A buffered message has its envelope computed again, perhaps by a batch with another version.
        token = _BOUND.set(None)
        try:
            return function(*args, **kwargs)
        finally:
            _BOUND.reset(token)

    return call


def make_row_index(rows: Iterable[msgspec.Struct], key: str) -> tuple[dict[object, msgspec.Struct], list[object]]:
    """Rows by key, without those whose key is None; and the keys that occur more than once."""
    index = dict[object, msgspec.Struct]()
    twice = dict[object, None]()
    for row in rows:
        value = getattr(row, key)
        # A null key is found by no value.
        if value is not None and index.setdefault(value, row) is not row:
            twice[value] = None
    return index, list(twice)


def check_lookups(lookups: Sequence[Lookup[Any]], stream: str) -> None:
    """Check the lookups of a stream.

    Raises:
        DeclarationError: One is none, two have the same name, or one reads the stream's own tables.
    """
    names = set[str]()
    for each in lookups:
        if not isinstance(cast("object", each), Lookup):
            raise DeclarationError("Stream.lookups", each, "is not a lookup", "for example (INSTRUMENTS,)")
        if each.name in names:
            raise DeclarationError("Stream.lookups", each.name, "is the name of two lookups", "rename one of them")
        names.add(each.name)
        if PurePath(each.path).parts[0] == stream:
            problem = "is a table of the stream itself, which a batch cannot read before it is committed"
            raise DeclarationError("Lookup.path", each.path, problem, "keep what a session must remember in its state")


def find_path_problem(path: object) -> tuple[str, str] | None:
    """Why a value is not a folder of a table, and a right value; None if it is one."""
    instead = "'/data/instruments', or 'customers/derived' under the table root"
    if not isinstance(path, str) or not PurePath(path).parts:
        return "is not a folder", instead
    if "://" in path:
        return "is an address, and tables are read from folders", instead
    if ".." in PurePath(path).parts:
        return "leaves the table root", instead
    return None


def _check_row(row: object) -> None:
    """Refuse a row type that is not made of plain columns, or whose rows a fold could change."""
    if not isinstance(row, type) or not issubclass(row, msgspec.Struct):
        instead = "declare the row as one, with frozen=True"
        raise DeclarationError("Lookup.row", cast("Any", row), "is not a msgspec.Struct", instead)
    if not row.__struct_config__.frozen:
        problem = "can be changed by a fold, and all sessions share it"
        raise DeclarationError("Lookup.row", row, problem, f"class {row.__name__}(msgspec.Struct, frozen=True)")
    from lockstep.model.columns import ColumnKind, make_columns  # it judges declarations, and loads Arrow

    for column in make_columns(row):
        if column.type.kind in {ColumnKind.STRUCT, ColumnKind.LIST, ColumnKind.MAP}:
            problem = f"is a {column.type.kind.value}, and a lookup has plain columns"
            raise DeclarationError(f"{row.__name__}.{column.name}", column.type.kind.value, problem, "leave it out")
