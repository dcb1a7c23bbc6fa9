"""`TableFold` against a plain dictionary: the same table, and a row for each change, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as some

from lockstep import Envelope, Kind, Record, TableFold
from tests.support.envelopes import RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable

Changes = list[tuple[str, int | None]]


class Message(msgspec.Struct):
    changes: list[tuple[str, int | None]]
    snapshot: bool = False


class Change(msgspec.Struct, frozen=True):
    key: str
    new: int | None
    previous: int | None


class Table(TableFold[Message, str, int, Change]):
    key = ("key",)
    removed = "new"

    def envelope(self, message: Message, record: Record) -> Envelope:
        del record
        return Envelope("s", Kind.SNAPSHOT if message.snapshot else Kind.UPDATE)

    def changes(self, message: Message) -> Iterable[tuple[str, int | None]]:
        return message.changes

    def emit(self, message: Message | None, key: str, new: int | None, previous: int | None) -> Change:
        del message
        return Change(key, new, previous)


class Counting(Table):
    """A table whose updates have only the amount that is added to a row."""

    def merge(self, previous: int | None, change: int) -> int:
        return (previous or 0) + change


class Columns(TableFold[Message, str, list[int], Change]):
    """A table whose rows are lists that grow."""

    key = ()

    def envelope(self, message: Message, record: Record) -> Envelope:
        del message, record
        return Envelope("s")

    def changes(self, message: Message) -> Iterable[tuple[str, list[int] | None]]:
        return [(key, None if value is None else [value]) for key, value in message.changes]

    def emit(self, message: Message | None, key: str, new: list[int] | None, previous: list[int] | None) -> Change:
        del message
        return Change(key, sum(new or []), sum(previous or []))

    def merge(self, previous: list[int] | None, change: list[int]) -> list[int]:
        return [*(previous or []), *change]


keys = some.sampled_from("abcd")
values = some.one_of(some.none(), some.integers(0, 2))  # few values, so that many changes change nothing
changes = some.lists(some.tuples(keys, values), max_size=8)


def oracle(table: dict[str, int], message: Changes) -> list[tuple[str, int | None, int | None]]:
    """Apply an update plainly, and return the rows that it emits."""
    emitted = []
    for key, new in message:
        previous = table.get(key)
        if new is None:
            table.pop(key, None)
        else:
            table[key] = new
        if new != previous:
            emitted.append((key, new, previous))
    return emitted


@given(changes, some.lists(changes, max_size=10))
def test_tables_and_rows_are_those_of_a_plain_dictionary(opening: Changes, updates: list[Changes]) -> None:
    fold = Table()
    state = fold.on_snapshot(Message(opening, snapshot=True), RECORD, None)
    table = {key: value for key, value in dict(opening).items() if value is not None}
    assert state == table
    for update in updates:
        rows = list(fold.on_update(state, Message(update), RECORD))
        assert [(row.key, row.new, row.previous) for row in rows] == oracle(table, update)
        assert state == table


@given(changes, changes)
def test_an_update_that_says_what_is_already_so_emits_nothing(opening: Changes, update: Changes) -> None:
    once = list(dict(update).items())
    fold = Table()
    state = fold.on_snapshot(Message(opening, snapshot=True), RECORD, None)
    list(fold.on_update(state, Message(once), RECORD))
    assert list(fold.on_update(state, Message(once), RECORD)) == []


@given(some.lists(some.tuples(keys, some.integers(0, 2)), max_size=20))
def test_merged_rows_add_up(additions: list[tuple[str, int]]) -> None:
    fold = Counting()
    totals = dict[str, int]()
    state = fold.on_snapshot(Message([], snapshot=True), RECORD, None)
    for key, added in additions:
        before, totals[key] = totals.get(key), totals.get(key, 0) + added
        rows = list(fold.on_update(state, Message([(key, added)]), RECORD))
        assert rows == ([Change(key, totals[key], before)] if totals[key] != before else [])
    assert state == totals


def test_a_snapshot_merges_too_and_leaves_removed_rows_out() -> None:
    state = Counting().on_snapshot(Message([("a", 2), ("b", None), ("c", 0)], snapshot=True), RECORD, None)
    assert state == {"a": 2, "c": 0}


def test_rows_come_in_the_order_of_the_message() -> None:
    fold = Table()
    state = {"c": 1, "a": 1}
    rows = fold.on_update(state, Message([("c", 2), ("b", 1), ("a", None), ("c", 3)]), RECORD)
    assert [(row.key, row.new, row.previous) for row in rows] == [
        ("c", 2, 1),
        ("b", 1, None),
        ("a", None, 1),
        ("c", 3, 2),
    ]


def test_a_removal_of_what_is_not_there_emits_nothing() -> None:
    state: dict[str, int] = {}
    assert list(Table().on_update(state, Message([("a", None)]), RECORD)) == []


def test_a_removed_row_begins_anew() -> None:
    fold = Columns()
    state = fold.on_snapshot(Message([("a", 1)]), RECORD, None)
    rows = list(fold.on_update(state, Message([("a", 2), ("a", None), ("a", 5)]), RECORD))
    assert rows == [Change("a", 3, 1), Change("a", 0, 3), Change("a", 5, 0)]
    assert state == {"a": [5]}
