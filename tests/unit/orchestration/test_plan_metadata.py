"""One description, two renderers: a terminal and Dagster's metadata show each of its facts, tables and notes."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from lockstep.cli.output import format_value, render_description
from lockstep.operations.plan_frame import Description, Labelled, Obstacle, Records, Unit
from lockstep.orchestration.plan_metadata import ROWS_SHOWN, make_metadata

WORDS = st.text("abcdefghij ", min_size=1, max_size=12).map(str.strip).filter(bool)
VALUES = st.one_of(
    st.none(),
    st.integers(0, 10**13),
    st.floats(0, 1e6),
    st.text("xyz\x1b\n", max_size=8),
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),  # noqa: DTZ001  # hypothesis demands it
)
FACTS = st.builds(Labelled, WORDS, VALUES, st.sampled_from(Unit), WORDS)
RECORDS = st.integers(1, 4).flatmap(
    lambda width: st.builds(
        Records,
        WORDS,
        st.lists(WORDS, min_size=width, max_size=width, unique=True).map(tuple),
        st.lists(st.tuples(*[VALUES] * width), max_size=60).map(tuple),
    )
)


def unique_labels(parts: tuple[Labelled | Records, ...]) -> bool:
    return len({part.label for part in parts}) == len(parts)


DESCRIPTIONS = st.builds(
    Description,
    title=WORDS,
    facts=st.lists(FACTS, max_size=6).map(tuple),
    records=st.lists(RECORDS, max_size=2).map(tuple),
    notes=st.lists(WORDS, max_size=3).map(tuple),
    obstacles=st.lists(st.builds(Obstacle, WORDS, WORDS, WORDS), max_size=3).map(tuple),
    is_open=st.booleans(),
    next_steps=st.lists(WORDS, max_size=2).map(tuple),
).filter(lambda made: unique_labels((*made.facts, *made.records)))


class Shown(msgspec.Struct, frozen=True):
    described: Description

    def describe(self) -> Description:
        return self.described


@given(made=DESCRIPTIONS)
def test_metadata_have_every_fact_table_and_note(made: Description) -> None:
    metadata = make_metadata(Shown(made))
    labels = {fact.label for fact in made.facts} | {each.label for each in made.records if each.rows}
    assert {label.replace(" ", "_") for label in labels} <= metadata.keys()
    for fact in made.facts:
        if isinstance(fact.value, int) and fact.unit is not Unit.PATH:
            assert metadata[fact.label.replace(" ", "_")] == fact.value
    for each in made.records:
        if each.rows:
            table = metadata[each.label.replace(" ", "_")]
            assert len(getattr(table, "records")) == min(len(each.rows), ROWS_SHOWN)  # noqa: B009  # a table
    assert ("notes" in metadata) == bool(made.notes)


@given(made=DESCRIPTIONS)
def test_a_terminal_shows_every_part_one_fact_a_line(made: Description) -> None:
    console = Console(width=10_000, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(render_description(made))
    text = captured.get()
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0].rstrip() == made.title
    for fact, line in zip(made.facts, lines[1:], strict=False):
        assert line.startswith(f"  {fact.label}")
        assert line.rstrip().endswith(f"({fact.note})")
    assert all(f"note: {note}" in text for note in made.notes)
    assert all(f"refused: {each.problem}; next: {each.next_step}" in text for each in made.obstacles)
    assert ("nothing refuses it" in text) == made.is_open
    assert all(f"next: {step}" in text for step in made.next_steps)


class Colour(Enum):
    RED = "red"


class Part(msgspec.Struct, frozen=True):
    first_hour: str
    files: tuple[int, ...]
    colour: Colour


def test_a_table_of_structs_has_their_fields_as_columns() -> None:
    made = Records.of("parts", [Part("2026-01-01T00", (1, 2), Colour.RED)], "first_hour files colour")
    assert (made.columns, made.rows) == (("first hour", "files", "colour"), (("2026-01-01T00", 2, "red"),))


def test_units_are_written_once_for_all_plans() -> None:
    assert format_value(1_234_567, Unit.BYTES) == "1.2 MB"
    assert format_value(12, Unit.BYTES) == "12 bytes"
    assert format_value(1.5, Unit.SECONDS) == "1.5 s"
    assert format_value(datetime(2026, 11, 20, 14, tzinfo=UTC)) == "2026-11-20 14:00:00 UTC"
    assert format_value(None) == format_value("") == "-"
    assert format_value(0) == "0"
