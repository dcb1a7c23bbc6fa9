"""Random histories of a stream and its shadow: after a promotion each row is of the fold that owned its offset."""

from __future__ import annotations

import dataclasses
import threading
import time
from typing import TYPE_CHECKING, Self, cast

import pytest
from deltalake import DeltaTable

from lockstep import Every
from lockstep.engine.driver.loop import RunOutcome
from lockstep.errors import Fenced
from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.compaction.run import compact_stream
from lockstep.features.history import promote as promotion
from lockstep.features.history.promote import promote_shadow
from lockstep.features.history.rewind import RewindReason, rewind_stream
from lockstep.features.history.shadow import begin_shadow, drop_shadow
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.past_batches import NotRewindable
from lockstep.operations.plan_frame import Refused
from lockstep.table.commit import OutputLog, raise_rewind_floor
from lockstep.verify.verify import verify_stream
from tests.correctness.rewind.rewinding import FOREVER, Rewinding
from tests.support.adding_stream import Adding, adding
from tests.support.feed import COLUMNS, folded, update
from tests.support.plain_reader import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from lockstep import Record
    from tests.support.adding_stream import Panel, Reading, Snapshot, Update
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NAME = "adding_shadow"
STEPS = 5
WRONG_BY = 1_000
VALUE = COLUMNS.index("value")
WAIT_SECONDS_MAX = 120.0


class Old(Adding):
    """The same fold with a fault in all rows."""

    def on_update(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        """Yield the rows with the fault."""
        for row in super().on_update(state, message, record):
            row.value += WRONG_BY
            yield row


def prove(runs: LocalRuns, steps: object) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes, steps)


def tend(shadow: LocalRuns, stream: Rewinding) -> None:
    """Compact, clean up, rewind or run a shadow, at random."""
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
    """Check that rows before the base are from the old fold and later rows from the new fold, each once."""
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


class LiveWriter:
    """A run of the old code that never ends, and messages that never stop, each on its own thread."""

    def __init__(self, stream: Rewinding) -> None:
        self._stream, self._over = stream, threading.Event()
        self._threads = [threading.Thread(target=target) for target in (self._write, self._send)]
        self.pause_seconds, self.outcome = 0.2, cast("RunOutcome | None", None)

    def __enter__(self) -> Self:
        before = self._stream.head.epoch
        for each in self._threads:
            each.start()
        self.wait_until(lambda: self._stream.head.epoch > before)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()

    def wait_until(self, met: Callable[[], bool]) -> None:
        """Wait for a condition, with a deadline."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not met():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _write(self) -> None:
        try:
            self.outcome = self._stream.runs.run(trigger=Every(seconds=0.05), stop=self._over)
        except Fenced:
            self.outcome = RunOutcome.FENCED

    def _send(self) -> None:
        """Send a message to each topic, in a loop."""
        while not self._over.wait(self._stream.choose.uniform(0, self.pause_seconds)):
            for topic, sent in self._stream.sent.items():
                message = update(len(sent) + 1, a=1)
                self._stream.feed.send(topic, [message])
                sent.append(message)


@pytest.mark.slow
def test_a_promotion_beside_a_live_writer_is_refused_or_fences_it_and_no_row_is_lost(
    feed: Feed, runs: LocalRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that starts after the check for a writer is not seen: the commit alone decides."""
    stream = Rewinding(feed, runs.of(adding(feed.pattern, transform=Old())), 1)
    batch = stream.head.batch
    base = stream.after[stream.head.batch].read
    refusals = 0
    begin_shadow(runs.handle, NAME, str(batch), code="", who="a test", why="a race")
    with LiveWriter(stream) as writer:
        with pytest.raises(Refused) as refused:
            promote_shadow(runs.handle, NAME, who="a test", why="a race", accept_behind=True)
        assert RewindReason.WRITER in {each.kind for each in refused.value.obstacles}

        def look(_: Path, __: int) -> bool:
            if not refusals:  # a batch is committed between plan and commit
                seen = stream.head.batch
                writer.wait_until(lambda: stream.head.batch > seen)
            return False

        monkeypatch.setattr(promotion, "is_writer_alive", look)
        while True:
            try:
                promoted = promote_shadow(runs.handle, NAME, who="a test", why="a race", accept_behind=True)
                break
            except NotRewindable:
                refusals += 1
                writer.pause_seconds *= 1.5  # so that a promotion succeeds, however slow the machine is
        writer.wait_until(lambda: writer.outcome is not None)
    assert refusals >= 1
    assert writer.outcome is RunOutcome.FENCED
    assert (stream.head.batch, stream.head.generation) == (promoted.plan.batch, promoted.plan.generation)
    runs.run()
    check(runs, stream, base)
    prove(runs, refusals)
    stream.runs = runs
    stream.compact()
    run_housekeeping(runs.folders, retention_seconds=FOREVER)
    check(runs, stream, base)
    prove(runs, refusals)
