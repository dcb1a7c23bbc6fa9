"""Random histories of a stream and its shadow: after a promotion each row is of the fold that owned its offset."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.compaction.ledger_files import compact_ledger
from lockstep.compaction.run import compact_stream
from lockstep.operations.housekeeping import run_housekeeping
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.promote import promote_shadow
from lockstep.operations.rewind import rewind_stream
from lockstep.operations.shadow import begin_shadow, drop_shadow
from lockstep.table.commit import OutputLog, raise_rewind_floor
from lockstep.verify.verify import verify_stream
from tests.correctness.rewind.rewinding import FOREVER, Rewinding
from tests.support.adding_stream import Adding, adding
from tests.support.feed import COLUMNS, folded
from tests.support.plain_reader import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lockstep import Record
    from tests.support.adding_stream import Panel, Reading, Snapshot, Update
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NAME, STEPS, WRONG_BY, VALUE = "adding_shadow", 5, 1_000, COLUMNS.index("value")


class Old(Adding):
    """The same fold with a fault in all rows."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Rows."""
        for row in super().on_update(state, message, record):
            row.value += WRONG_BY
            yield row


def prove(runs: LocalRuns, steps: object) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes, steps)


def tend(shadow: LocalRuns, stream: Rewinding) -> None:
    """Something that happens to a shadow."""
    head = OutputLog(shadow.folders.table).base().head
    match stream.choose.randint(0, 4):
        case 0:
            close_hour(shadow.folders)
            compact_stream(shadow.folders)
            compact_ledger(shadow.folders, head)
        case 1:
            OutputLog(shadow.folders.table).commit(raise_rewind_floor(head.generation, head.batch))
            run_housekeeping(shadow.folders, retention_seconds=FOREVER)
        case 2 if head.batch > head.rewind_floor:
            to = stream.choose.randint(head.rewind_floor, head.batch - 1)
            rewind_stream(shadow.handle, str(to), who="a test", why="at random")
        case _:
            stream.send()
            shadow.run()


def check(runs: LocalRuns, stream: Rewinding, base: dict[str, int]) -> None:
    """Rows before the base are the old fold's, those from there on the new one's, each once."""
    table = DeltaTable(runs.folders.table).to_pyarrow_table()
    read = {row.topic: row.until for row in runs.handle.positions.values()}
    for topic, sent in stream.sent.items():
        right = folded([(offset, "s", value) for offset, value in enumerate(sent[: read.get(topic, 0)])])
        expected = [
            (*row[:VALUE], int(str(row[VALUE])) + WRONG_BY, *row[VALUE + 1 :])
            if int(str(row[0])) < base.get(topic, 0)
            else row
            for row in right
        ]
        assert sorted(rows_of(table, topic, COLUMNS)) == sorted(expected), (topic, stream.steps)


def go(feed: Feed, runs: LocalRuns, seed: int) -> None:
    stream = Rewinding(feed, runs.of(adding(feed.pattern, transform=Old())), seed)
    for _ in range(STEPS):
        stream.step()
    batch = stream.choose.choice([each for each in stream.after if stream.head.may_rewind_to(each)])
    base = stream.after[batch].read
    begin_shadow(runs.handle, NAME, str(batch), code="", who="a test", why="at random")
    shadow = runs.of(dataclasses.replace(runs.stream, name=NAME))
    for _ in range(STEPS):
        stream.choose.choice((stream.read_more, stream.compact, lambda: tend(shadow, stream)))()
    stream.send()
    shadow.run()
    prove(shadow, stream.steps)
    promote_shadow(runs.handle, NAME, who="a test", why="at random", accept_behind=True)
    check(runs, stream, base)
    prove(runs, stream.steps)
    if stream.choose.random() < 0.5:
        drop_shadow("adding", NAME, runs.settings, who="a test")
    stream.send()
    runs.run()
    stream.runs = runs
    stream.compact()
    run_housekeeping(runs.folders, retention_seconds=FOREVER)
    check(runs, stream, base)
    prove(runs, stream.steps)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_after_a_promotion_each_row_is_of_the_fold_that_owned_its_offset(
    feed: Feed, runs: LocalRuns, seed: int
) -> None:
    go(feed, runs, seed)
