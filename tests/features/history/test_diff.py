"""Differences between two streams of the same topics."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import LockstepError
from lockstep.features.history.diff import ColumnDifference, compare_streams
from tests.integration.cli.conftest import platform_in
from tests.support.adding_stream import Adding, adding
from tests.support.evolving_streams import OtherRows, RetypedReading, release
from tests.support.feed import session, update

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from lockstep import Record
    from lockstep.features.history.diff import StreamDiff
    from lockstep.features.localdev.broker import Broker
    from tests.support.adding_stream import Panel, Reading, Snapshot, Update
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


class Other(Adding):
    """From a sequence on: another value, a missing row, an added row."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Emit the changed rows."""
        rows = list(super().on_update(state, message, record))
        if message.seq == 3:
            rows[1].total += 10
        if message.seq == 4:
            rows.pop()
        if message.seq == 5:
            rows.append(rows[0])
        return rows


class Texts(OtherRows[RetypedReading]):
    """The fold with totals as texts."""

    def row(self, name: str, value: int, total: int) -> RetypedReading:
        """Return a row with its total as text."""
        return RetypedReading(name, value, str(total))


def named(runs: LocalRuns, name: str, transform: Adding | None = None) -> LocalRuns:
    stream = adding(runs.stream.topics.pattern, transform=transform)
    return runs.of(dataclasses.replace(stream, name=name))


def compared(one: LocalRuns, other: LocalRuns) -> StreamDiff:
    return compare_streams(one.folders, other.folders)


def test_the_same_fold_under_another_name_is_equal_as_far_as_both_have_read(feed: Feed, runs: LocalRuns) -> None:
    shadow = named(runs, "shadow")
    topic = feed.create("values")
    feed.send(topic, session(5))
    runs.run()
    shadow.run()
    feed.send(topic, [update(7, a=1)])
    shadow.run()
    found = compared(runs, shadow)
    assert found.is_equal
    assert (found.equal, found.partitions, found.samples) == (10, 1, ())
    assert found.next_step.startswith("lockstep verify adding, lockstep verify shadow")  # a shadow only by its name


def test_rows_that_are_missing_added_or_changed_are_counted_and_shown(feed: Feed, runs: LocalRuns) -> None:
    shadow = named(runs, "shadow", Other())
    topic = feed.create("values")
    feed.send(topic, session(5))
    runs.run()
    shadow.run()
    found = compared(runs, shadow)
    assert (found.equal, found.missing, found.added, found.changed) == (8, 1, 1, 1)
    assert found.columns == (ColumnDifference("total", 1),)
    kinds = [(each.kind, each.topic, each.emit_offset, each.row) for each in found.samples]
    assert kinds == [("changed", topic, 2, 1), ("missing", topic, 3, 1), ("added", topic, 4, 2)]
    assert found.samples[0].values == {"total": (3, 13)}
    assert found.samples[1].values["name"] == ("b", None)


def test_partitions_and_columns_of_one_stream_alone_are_noted(feed: Feed, runs: LocalRuns) -> None:
    shadow = named(runs, "shadow")
    first = feed.create("a")
    feed.send(first, session(2))
    runs.run()
    feed.send(feed.create("b"), session(2))
    shadow.run()
    found = compared(runs, shadow)
    assert (found.is_equal, found.notes) == (True, ("1 partitions of shadow were not compared",))


def test_a_column_of_another_type_is_noted_and_not_compared(feed: Feed, runs: LocalRuns) -> None:
    """The engine would treat the text "1" and the number 1 as equal, and fail on other texts."""
    topic = feed.create("values")
    shadow = runs.of(dataclasses.replace(release(feed.pattern, Texts()), name="shadow"))
    feed.send(topic, session(3))
    runs.run()
    shadow.run()
    found = compared(runs, shadow)
    assert (found.is_equal, found.notes) == (True, ("of another type in shadow, not compared: total",))


def test_offsets_before_the_later_stream_began_are_not_compared(feed: Feed, runs: LocalRuns) -> None:
    shadow = named(runs, "shadow")
    topic = feed.create("values")
    feed.send(topic, session(3))
    feed.send(topic, session(2), key="t")
    runs.run()
    feed.expire(topic, 4)
    shadow.run()
    found = compared(runs, shadow)
    assert (found.equal, found.missing, found.added, found.changed) == (4, 0, 0, 0)
    assert found.notes == ("shadow started later in 1 partitions: offsets before that were not compared",)


def test_streams_without_a_common_offset_are_not_called_equal(feed: Feed, runs: LocalRuns) -> None:
    feed.create("values")
    shadow = named(runs, "shadow")
    runs.run()
    shadow.run()
    with pytest.raises(LockstepError, match="have read no offset in common"):
        compared(runs, shadow)


def test_the_command_ends_with_0_or_1(broker: Broker, tmp_path: Path) -> None:
    made = platform_in(tmp_path, broker)
    (module,) = (tmp_path / "assets").glob("*.py")
    module.write_text(
        module.read_text() + "\nimport dataclasses\n\nshadow = dataclasses.replace(stream, name='shadow')\n"
    )
    shadow = named(made.runs, "shadow", Other())
    made.feed.send(made.feed.create("values"), session(2))
    made.runs.run()
    shadow.run()
    said = made.call("shadow", "diff", "adding", "shadow")
    assert said.exit_code == 1, said.output
    assert "3 rows equal, 0 missing, 0 added, 1 changed" in said.stdout
    equal = made.call("shadow", "diff", "adding", "adding")
    assert (equal.exit_code, "next: lockstep verify" in equal.stdout) == (0, True)
