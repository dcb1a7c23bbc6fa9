"""Output formats: tables on a terminal, plain columns in a pipe, one JSON document for scripts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

import msgspec
from rich import box
from rich.console import Console, Group, RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from lockstep.operations.plan_frame import Described, Description, Labelled, Records, Unit, Value

T = TypeVar("T")

SHOWN_SCOPES = 50
"""Most partitions in one answer; `--json` has all."""
PIPE_COLUMNS = 100_000
"""A pipe has no width: no line is folded or cut in it."""
NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""In JSON, by Python's text of the float."""
STYLES = {
    "ok": "green",
    "running": "green",
    "writing": "green",
    "warning": "yellow",
    "stopped": "yellow",
    "held": "yellow",
    "error": "red",
    "halted": "red",
    "gone": "red",
}
"""Words that are highlighted on a terminal wherever they fill a cell."""


def print_answer(found: T, show: Callable[[T], RenderableType], *, as_json: bool) -> None:
    """Print the result of an operation: as JSON or as text."""
    if as_json:
        print_json(found)
    else:
        print_out(show(found))


def print_described(found: Described, *, as_json: bool) -> None:
    """Print a plan or a result: as JSON, or as its page."""
    print_answer(found, lambda shown: render_description(shown.describe()), as_json=as_json)


def render_descriptions(found: Iterable[Described]) -> RenderableType:
    """Several descriptions, one below the other."""
    return make_lines(*(render_description(each.describe()) for each in found))


def render_description(page: Description) -> RenderableType:
    """A page as text: title, facts, tables, notes, obstacles, next steps."""
    facts = None
    if page.facts:
        facts = make_facts((f"  {fact.label}", _format_fact(fact)) for fact in page.facts)
    tables = list[RenderableType | None]()
    for records in page.records:
        if records.rows:
            tables += _render_records(records)
    is_open = None
    if page.is_open:
        is_open = style_text("nothing refuses it", "green")
    return make_lines(
        style_text(page.title),
        facts,
        *tables,
        *(style_text(f"note: {note}") for note in page.notes[:SHOWN_SCOPES]),
        make_more(len(page.notes) - SHOWN_SCOPES),
        *(style_text(f"refused: {each.problem}; next: {each.next_step}", "red") for each in page.obstacles),
        is_open,
        *(style_text(f"next: {step}") for step in page.next_steps),
    )


def _render_records(records: Records) -> tuple[RenderableType | None, ...]:
    rows = (tuple(map(format_value, row)) for row in records.rows)
    return style_text(f"{records.label}:"), make_first_rows(records.columns, rows)


def _format_fact(fact: Labelled) -> str:
    note = f" ({fact.note})" if fact.note else ""
    return f"{format_value(fact.value, fact.unit)}{note}"


def format_value(value: Value, unit: Unit = Unit.NONE) -> str:
    """A value with its unit; "-" if it is unknown."""
    if value is None or value == "":
        return "-"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    if unit is Unit.BYTES and isinstance(value, int):
        return decimal(value)
    if unit is Unit.SECONDS and not isinstance(value, str):
        return f"{value:g} s"
    return str(value)


def print_json(found: object) -> None:
    """One JSON document and a newline; the fields are those of the struct. For numbers see `encode_json`."""
    sys.stdout.write(encode_json(found).decode() + "\n")


def encode_json(found: object) -> bytes:
    """A JSON document; NaN and infinity, which JSON lacks, are the strings of `NOT_FINITE`."""
    encoded = msgspec.json.encode(found, enc_hook=str)
    if b"null" not in encoded:  # as which msgspec writes them
        return encoded
    return msgspec.json.encode(_name_not_finite(msgspec.to_builtins(found, enc_hook=str, str_keys=True)))


def _name_not_finite(value: object) -> object:
    """A value of plain types with strings in place of floats that JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return NOT_FINITE[str(value)]
    if isinstance(value, dict):
        return {key: _name_not_finite(held) for key, held in value.items()}
    if isinstance(value, (list, tuple)):
        return [_name_not_finite(held) for held in value]
    return value


def print_out(shown: RenderableType) -> None:
    """Print text: with colours on a terminal, plain elsewhere."""
    console = make_console()
    if console.is_terminal:
        console.print(shown)
        return
    with console.capture() as captured:
        console.print(shown)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in captured.get().splitlines()))


def print_note(line: str, style: str = "") -> None:
    """One line on the error stream, never part of a pipe's input."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(_harmless(line), style=style))


def make_console() -> Console:
    """The console of standard output at its current width; made on each call, as the stream may have changed."""
    # A pipe has no width: no line is folded or cut in it.
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(highlight=False, markup=False, width=width)


def make_grid(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """A table whose cells are folded on a narrow terminal, never cut; None is "-", control characters are escaped."""
    frame = box.SIMPLE_HEAD if sys.stdout.isatty() else None
    table = Table(box=frame, pad_edge=False)
    for name in columns:
        table.add_column(escape_text(name), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    return table


def make_records(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> RenderableType:
    """A grid; or, if its rows do not fit on the terminal, one column per line and an empty line after each row."""
    table = make_grid(columns, rows)
    console = make_console()
    # Measured without folding: a grid that is wider than the terminal would fold its cells.
    if table.__rich_measure__(console, console.options.update(max_width=PIPE_COLUMNS)).maximum <= console.width:
        return table
    parts = list[RenderableType]()
    for row in rows:
        parts += [make_facts(zip(columns, row, strict=True)), Text()]
    return Group(*parts)


def make_facts(pairs: Iterable[tuple[str, object]]) -> Table:
    """Names and values, one per line."""
    table = Table.grid(padding=(0, 2))
    for name, value in pairs:
        table.add_row(Text(escape_text(name), style="dim"), _cell(value))
    return table


def make_lines(*parts: RenderableType | None) -> Group:
    """One below the other; None is left out."""
    return Group(*(part for part in parts if part is not None))


def make_first_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> RenderableType | None:
    """A grid of the first `SHOWN_SCOPES` rows, and how many there are besides; None without any."""
    listed = list(rows)
    if not listed:
        return None
    return make_lines(make_grid(columns, listed[:SHOWN_SCOPES]), make_more(len(listed) - SHOWN_SCOPES))


def order_for_first_rows(found: Sequence[T], worst_first: Callable[[T], float]) -> Sequence[T]:
    """In their own order; the worst first where `make_first_rows` does not show all."""
    if len(found) <= SHOWN_SCOPES:
        return found
    return sorted(found, key=worst_first)


def make_more(left_out: int) -> RenderableType | None:
    """How many there are that are not shown."""
    if left_out > 0:
        return style_text(f"and {left_out} more")
    return None


def style_text(line: str, style: str = "") -> Text:
    """A line of literal text: markup in a name stays."""
    return Text(_harmless(line), style=style)


def escape_text(text: str) -> str:
    """A foreign name or value in one line, with terminal control characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _harmless(text: str) -> str:
    """Text of several lines, with terminal control characters escaped."""
    return "\n".join(map(escape_text, text.split("\n")))


def _cell(value: object) -> Text:
    """A value in one line: a row is a line of a pipe, and no line break in a name makes it two."""
    text = "-" if value is None else escape_text(str(value))
    return Text(text, style=STYLES.get(text, ""))
