"""Derived: a table that Structured Streaming makes from the committed rows of streams; validated at import."""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lockstep.cron import find_cron_problem
from lockstep.declare.naming import NAME, NO_NAME
from lockstep.declare.stream import AnyStream, Stream, format_source
from lockstep.errors import DeclarationError
from lockstep.model.declaration import Declaration
from lockstep.model.field_types import check_classes, check_field_types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
else:
    DataFrame = object  # pyspark takes a second to import, and checks of fields need no more than a name

EXAMPLE = "put the function at the top level of a module, for example assets/activity.py"


class OutputMode(Enum):
    """Output modes of Structured Streaming.

    `APPEND` writes rows that never change again; `COMPLETE` all rows of an aggregate in each run.
    """

    APPEND = "append"
    COMPLETE = "complete"


@dataclass(frozen=True)
class Watermark(Declaration):
    """The event-time watermark of the source rows, as `DataFrame.withWatermark` takes it.

    Example: `Watermark("_event_time", timedelta(minutes=10))`

    Attributes:
        column: The column with the event time, of every source.
        delay: How much later than the newest event time a row may arrive.
    """

    column: str = "_event_time"
    delay: timedelta = timedelta(minutes=10)

    def __post_init__(self) -> None:
        """Refuse a delay that Spark would not take."""
        delay = cast("object", self.delay)  # users need no checker
        if not isinstance(delay, timedelta) or delay < timedelta(0):
            raise DeclarationError(
                "Watermark.delay", self.delay, "is not a duration of at least 0", "timedelta(minutes=10)"
            )


@dataclass(frozen=True, kw_only=True)
class Derived(Declaration):
    """A table derived from the committed rows of streams: event-time windows, joins, aggregates across sessions.

    Structured Streaming reads the rows and writes the table (docs/derived.md).

    Example: `Derived(name="activity", sources=(plants,), derive=count_by_hour)`

    Attributes:
        name: Lower-case name; folder of the table and asset key.
        sources: The streams whose tables are read.
        derive: Function of one streaming DataFrame per source, in their order, that returns the DataFrame of the table.
        watermark: The watermark of the sources; None if the function needs none or sets it.
        output_mode: When rows are written.
        partition_by: Columns by which the files of the table are divided; with few values.
        schedule: When Dagster runs it: a cron expression, in UTC.
        description: A sentence for people, shown in the asset catalog.

    Raises:
        DeclarationError: Names the field, the value and a valid alternative.
    """

    name: str
    sources: Sequence[AnyStream]
    derive: Callable[..., DataFrame]
    watermark: Watermark | None = None
    output_mode: OutputMode = OutputMode.APPEND
    partition_by: Sequence[str] = ()
    schedule: str = "*/15 * * * *"
    description: str = ""

    def __post_init__(self) -> None:
        """Check everything that needs neither Spark nor the tables."""
        check_classes(self)
        name = cast("object", self.name)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise DeclarationError("Derived.name", self.name, NO_NAME, "for example 'book_activity'")
        _check_sources(self)
        _check_function(self.derive, len(self.sources))
        _check_options(self)
        _check_watermark(self)
        check_field_types(self)

    def compute_digest(self) -> str:
        """SHA-256 of the options and the module of the function, without comments and docstrings: they decide the rows.

        Modules that it imports are not included.
        """
        code = self.derive
        tree = ast.parse(Path(cast("str", sys.modules[code.__module__].__file__)).read_text(encoding="utf-8"))
        options = {
            each.name: format_source(getattr(self, each.name), with_defaults=True)
            for each in fields(self)
            if each.name in {"name", "watermark", "output_mode", "partition_by"}
        }
        decides = (
            repr(_describe_code(_without_docstrings(tree))),
            code.__qualname__,
            repr(options),
            *(s.name for s in self.sources),
        )
        return hashlib.sha256("\n".join(decides).encode()).hexdigest()


def _check_sources(derived: Derived) -> None:
    sources = _as_sequence(derived.sources)
    right = "for example (order_books,)"
    if not sources:
        raise DeclarationError("Derived.sources", derived.sources, "is not a sequence of streams", right)
    names = list[str]()
    for source in sources:
        if not isinstance(source, Stream):
            raise DeclarationError("Derived.sources", source, "is not a Stream", right)
        names.append(source.name)
    if len(set(names)) < len(names):
        problem = "names a stream twice"
        step = "name it once; the function may use its DataFrame several times"
        raise DeclarationError("Derived.sources", names, problem, step)
    if derived.name in names:
        raise DeclarationError("Derived.name", derived.name, "is the name of its source", "another name")


def _check_function(derive: object, sources: int) -> None:
    if not inspect.isfunction(derive):
        raise DeclarationError("Derived.derive", derive, "is not a function", EXAMPLE)
    module = sys.modules.get(derive.__module__)
    if derive.__module__ == "__main__" or getattr(module, "__file__", None) is None:
        raise DeclarationError("Derived.derive", derive.__qualname__, "is not in a module with a file", EXAMPLE)
    try:
        inspect.signature(derive).bind(*range(sources))
    except TypeError as error:
        problem = f"cannot be called with {sources} DataFrames, one a source: {error}"
        raise DeclarationError(
            "Derived.derive", derive.__qualname__, problem, "one parameter for each source"
        ) from None


def _check_options(derived: Derived) -> None:
    kinds: dict[str, tuple[type, str]] = {
        "output_mode": (OutputMode, "OutputMode.APPEND or OutputMode.COMPLETE"),
        "schedule": (str, "for example '*/15 * * * *'"),
        "description": (str, "a sentence"),
    }
    for name, (kind, right) in kinds.items():
        value = getattr(derived, name)
        if not isinstance(value, kind):
            raise DeclarationError(f"Derived.{name}", value, f"is not of type {kind.__name__}", right)
    if problem := find_cron_problem(derived.schedule):
        raise DeclarationError("Derived.schedule", derived.schedule, problem, kinds["schedule"][1])
    columns = _as_sequence(derived.partition_by)
    right = "for example ('_topic',)"
    if columns is None or not all(isinstance(each, str) for each in columns):
        raise DeclarationError("Derived.partition_by", derived.partition_by, "is not a sequence of names", right)


def _as_sequence(value: object) -> Sequence[object] | None:
    """The value if it is a sequence; a text is not."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        return None
    return cast("Sequence[object]", value)


def _check_watermark(derived: Derived) -> None:
    watermark = cast("object", derived.watermark)
    if watermark is None:
        return
    if not isinstance(watermark, Watermark):
        right = "Watermark('_event_time', delay=timedelta(minutes=10)), or None"
        raise DeclarationError("Derived.watermark", watermark, "is not a Watermark", right)
    from lockstep.model.table_schema import TIMESTAMP, make_table_schema

    for source in derived.sources:
        schema = make_table_schema(source.types.row)
        times = [name for name, kind in zip(schema.names, schema.types, strict=True) if kind == TIMESTAMP]
        if watermark.column not in times:
            problem = f"is not a time column of {source.name}"
            right = f"one of {', '.join(times)}"
            raise DeclarationError("Watermark.column", watermark.column, problem, right)


def _describe_code(code: object) -> object:
    """A syntax tree as plain values, the same in each version of Python; `ast.dump` has another text in each."""
    if isinstance(code, list):
        return [_describe_code(each) for each in cast("list[object]", code)]
    if not isinstance(code, ast.AST):
        return code
    parts = ((name, value) for name, value in ast.iter_fields(code) if value is not None and value != [])
    return type(code).__name__, [(name, _describe_code(value)) for name, value in parts]


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            is_text = node.body and isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            if is_text:
                node.body = node.body[1:]
    return tree
