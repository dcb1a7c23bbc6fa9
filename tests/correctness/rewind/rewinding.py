"""A stream that is run, compacted, cleaned up and rewound at random, compared with a model that only remembers.

The model remembers the rows and states after each batch, read with its own reader. After a rewind the table holds the
remembered rows of that batch; at the end `lockstep verify` proves all of it from Kafka.
"""

from __future__ import annotations

import json
import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from lockstep.features.compaction.ledger_files import compact_ledger
from lockstep.features.compaction.run import compact_stream
from lockstep.features.history.rewind import RewindReason, prepare_rewind, rewind_stream
from lockstep.features.history.savepoint import drop_named_savepoint, make_savepoint
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations.inspect.state import NoSuchSession, StateFilter, read_states
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.past_batches import START
from lockstep.table import delta_log
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import OLDEST_FILE_SECONDS, OutputLog, raise_rewind_floor
from lockstep.verify.verify import verify_stream
from tests.support.feed import COLUMNS, folded, session, update
from tests.support.plain_reader import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.head import Head
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

BETWEEN_SECONDS = 1.5 * OLDEST_FILE_SECONDS
FOREVER = 10.0 * 365 * 86_400
Rows = list[tuple[object, ...]]


@dataclass
class Remembered:
    """The content of a stream after a batch."""

    rows: Rows
    states: object
    read: dict[str, int]


@dataclass
class Rewinding:
    """A stream with a random history.

    Attributes:
        feed: Its producer.
        runs: Its runs.
        seed: Seed of all choices.
        sent: The messages of each topic.
        after: Its content after each batch.
        written: Simulated write time of each log entry and data file, in seconds since 1970.
    """

    feed: Feed
    runs: LocalRuns
    seed: int
    sent: dict[str, list[bytes]] = field(default_factory=dict)
    after: dict[int, Remembered] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    written: dict[Path, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.choose = random.Random(self.seed)  # noqa: S311  # choices of a test
        self.after[START] = Remembered([], [], {})
        self.send()
        self.run()

    @property
    def head(self) -> Head:
        """The head of the table."""
        return OutputLog(self.runs.folders.table).base().head

    @property
    def is_archived(self) -> bool:
        """Whether messages stay readable after their deletion in Kafka."""
        return self.runs.stream.archive is not None

    def step(self) -> None:
        """Take a random step, and check the table after it."""
        often = (self.read_more, self.rewind, self.clean_up)
        seldom = (self.compact, self.keep, self.drop)
        others = [self.read_more, self.checkpoint, *([self.start_over, self.expire] if self.is_archived else [])]
        action = self.choose.choice([*often * 3, *seldom, *others])
        action()
        self.steps.append(f"{action.__name__} -> {self.head.batch}")
        assert self.now() == self.after[self.head.batch], self.steps

    def read_more(self) -> None:
        """Send messages, and run to read them."""
        self.send()
        self.run()

    def send(self) -> None:
        """Send some messages; create a new topic now and then."""
        if not self.sent or self.choose.random() < 0.25:
            topic = self.feed.create(f"t{len(self.sent)}")
            self.sent[topic] = []
        for topic, sent in self.sent.items():
            if not sent or self.choose.random() < 0.7:
                count = self.choose.randint(1, 4)
                more = [update(len(sent) + 1 + n, a=n, b=self.choose.randint(1, 9)) for n in range(count)]
                more = more if sent else session(count)
                self.feed.send(topic, more)
                sent.extend(more)

    def run(self) -> None:
        """Read all messages, in a batch."""
        self.runs.run()
        self.after[self.head.batch] = self.now()

    def rewind(self) -> None:
        """Go to any batch that is not refused: an earlier batch, or a batch that was undone."""
        head = self.head
        batch = self.choose.choice(sorted(self.after))
        if self.choose.random() < 0.5 and head.savepoints:
            batch = self.choose.choice(head.savepoints).batch
        if batch != head.batch and head.may_rewind_to(batch):
            self.rewind_to(batch)

    def start_over(self) -> None:
        """Go back to before the first batch, at any rewind floor."""
        self.rewind_to(START)

    def expire(self) -> None:
        """Delete read messages of a topic from Kafka; a rewind reads them from the archive."""
        topic = self.choose.choice(list(self.sent))
        if count := self.after[self.head.batch].read.get(topic, 0):
            self.feed.expire(topic, count)

    def rewind_to(self, batch: int) -> None:
        """Go to a batch."""
        head = self.head
        plan = prepare_rewind(self.runs.handle, str(batch)).plan
        assert [each.kind for each in plan.obstacles] in ([], [RewindReason.WRITER]), self.steps
        done = rewind_stream(self.runs.handle, str(batch), who="a test", why="at random")
        assert done.published
        assert done.plan.rows == len(self.after[head.batch].rows) - len(self.after[batch].rows)
        self.after[done.batch] = self.after[batch]

    def compact(self) -> None:
        """Compact the tables, the open hour too."""
        close_hour(self.runs.folders)
        compact_stream(self.runs.folders)
        compact_ledger(self.runs.folders, self.head)

    def checkpoint(self) -> None:
        """Write a checkpoint of the log."""
        write_checkpoint(self.runs.folders.table)

    def keep(self) -> None:
        """Make a savepoint of a batch to which a rewind may go."""
        head = self.head
        batches = [batch for batch in self.after if head.may_rewind_to(batch)]
        batch = self.choose.choice(batches)
        make_savepoint(self.runs.folders, f"s{len(self.steps)}", who="a test", why="at random", at=str(batch))

    def drop(self) -> None:
        """Drop a savepoint."""
        if savepoints := self.head.savepoints:
            name = self.choose.choice(savepoints).name
            drop_named_savepoint(self.runs.folders, name, who="a test", why="at random")

    def clean_up(self) -> None:
        """Raise the floor to some batch, long after everything in the folders was written."""
        head = self.head
        floor = self.choose.choice([batch for batch in self.after if batch >= head.rewind_floor])
        OutputLog(self.runs.folders.table).commit(raise_rewind_floor(head.generation, floor))
        self.let_time_pass()
        run_housekeeping(self.runs.folders, retention_seconds=FOREVER)
        self.check_what_is_kept()

    def let_time_pass(self) -> None:
        """Set file times: commits are further apart than a file may wait for its commit, and the first was long ago."""
        table = self.runs.folders.table
        began = time.time() - FOREVER
        for version in delta_log.list_versions(table):
            entry = delta_log.make_entry_path(table, version)
            actions = map(json.loads, entry.read_text().splitlines())
            added = [table / action["add"]["path"] for action in actions if "add" in action]
            self.written = dict.fromkeys([entry, *added], began + version * BETWEEN_SECONDS) | self.written
        for path in table.parent.rglob("*"):
            if path in self.written or (path.is_file() and path.suffix != ".json"):
                os.utime(path, (self.written.get(path, began),) * 2)

    def check_what_is_kept(self) -> None:
        """Check that each batch to which a rewind may go has its rows and its states."""
        head = self.head
        for batch, remembered in self.after.items():
            if head.may_rewind_to(batch):
                assert self.states(batch) == remembered.states, (batch, self.steps)
                plan = prepare_rewind(self.runs.handle, str(batch)).plan
                kinds = {each.kind for each in plan.obstacles} - {RewindReason.NO_CHANGE}
                assert not kinds, (batch, plan.obstacles, self.steps)
        for each in head.savepoints:
            assert _rows(self.runs, each.version) == self.after[each.batch].rows

    def now(self) -> Remembered:
        """Return the current content of the stream."""
        read = {row.topic: row.until for row in self.runs.handle.positions.values() if row.until}
        return Remembered(_rows(self.runs, None), self.states(self.head.batch), read)

    def states(self, batch: int) -> object:
        """Return the states as of a batch."""
        try:
            found = read_states(self.runs.stream, self.runs.folders.root, StateFilter(session="s"), batch).sessions
        except NoSuchSession:  # before the first batch
            return []
        return sorted((each.topic, each.position, str(each.state)) for each in found)

    def finish(self) -> None:
        """Read to the end, and check that every row is there once and is proven."""
        self.send()
        self.run()
        table = DeltaTable(self.runs.folders.table).to_pyarrow_table()
        for topic, sent in self.sent.items():
            expected = folded([(offset, "s", value) for offset, value in enumerate(sent)])
            assert expected == sorted(rows_of(table, topic, COLUMNS)), self.steps
        report = verify_stream(self.runs.stream, self.runs.folders, self.runs.settings.kafka)
        assert report.status.value == "proven", (report.violations, report.notes, self.steps)


def _rows(runs: LocalRuns, version: int | None) -> Rows:
    """Return the rows of a version, sorted."""
    found = DeltaTable(runs.folders.table, version=version).to_pyarrow_table().to_pylist()
    return sorted(tuple((name, str(value)) for name, value in sorted(row.items())) for row in found)
