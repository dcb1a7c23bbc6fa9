"""Random histories of a stream without a broker, and a model of its current rows that only reads the table."""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from lockstep import Topics
from lockstep.features.compaction.run import compact_stream
from lockstep.features.current.columns import find_current_columns
from lockstep.features.current.prove import prove_current
from lockstep.features.current.refresh import CurrentRefresh, refresh_current
from lockstep.features.erase import erase
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.features.retention import rows
from lockstep.features.retention.rows import Retained, drop_old_rows
from lockstep.integrity.resume_options import StreamHalted
from lockstep.operations.inspect.state import NotRetained
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import Refused
from lockstep.operations.query import AsOf, find_version_at, query_sql
from lockstep.operations.stream_table import open_table
from lockstep.settings import KafkaSettings
from lockstep.table import delta_log
from lockstep.verify.report import InvariantStatus
from tests.correctness.verify.shelves import IDLE, Producer, shelf_stream
from tests.correctness.verify.test_replayed_tables import CLASSES, FOLDS
from tests.support.offline_rewind import rewind
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.head import Head

Row = dict[str, Any]
Model = dict[tuple[Any, ...], Row]
TOPICS = ("t", "u")


@dataclass
class History:
    """A random history of a stream.

    Attributes:
        seed: Seed of all choices.
        root: Folder of tables and local stores.
        models: The current rows after each batch, with the end of each partition.
        steps: The actions so far.
    """

    seed: int
    root: Path
    models: dict[int, tuple[Model, dict[str, tuple[int, int]]]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Run the first batches."""
        self.rng = random.Random(self.seed)  # noqa: S311  # repeatable choices
        classes = list(CLASSES.values())
        fold = FOLDS[self.seed // len(classes) % len(FOLDS)]
        event_time = IDLE if self.rng.random() < 0.5 else None
        stream = shelf_stream(fold, classes[self.seed % len(classes)], event_time)
        stream = dataclasses.replace(stream, topics=Topics(pattern="t|u"), current=True)
        self.offline = Offline(stream, self.root)
        self.columns = find_current_columns(stream)
        faults = self.rng.choice((0.0, 0.1))
        self.producers = {name: Producer(self.rng, fold, faults=faults) for name in TOPICS}
        self.models[0] = ({}, {})
        self.run()

    @property
    def head(self) -> Head:
        """The head of the table."""
        return open_table(self.offline.folders).base().head

    def step(self) -> None:
        """Take a random step."""
        often = (self.run, self.refresh, self.ask)
        seldom = (self.compact, self.rewind, self.erase, self.drop)
        action = self.rng.choice([*often * 4, *seldom])
        action()
        self.steps.append(f"{action.__name__} -> {self.head.batch}")

    def run(self) -> None:
        """Run one to three batches."""
        for _ in range(self.rng.randrange(1, 4)):
            topics = self.rng.sample(TOPICS, self.rng.choice((1, 2)))
            batch = {name: self.producers[name].send(self.rng.choice((1, 3, 8))) for name in topics}
            before = self.head.batch if self.models.keys() != {0} else 0
            with suppress(StreamHalted):
                self.offline.run(batch)
            if self.head.batch > before:
                self.learn(before)

    def learn(self, before: int) -> None:
        """Apply the rows after an earlier batch to the model."""
        model = dict(self.models[before][0])
        ends = dict(self.models[before][1])
        found = DeltaTable(self.offline.folders.table).to_pyarrow_table().to_pylist()
        for row in sorted(found, key=lambda row: (row["_topic"], row["_emit_offset"], row["_row"])):
            place = (row["_emit_offset"], row["_row"])
            if place > ends.get(row["_topic"], (-1, 0)):
                ends[row["_topic"]] = place
                key = tuple(row[name] for name in self.columns.identity)
                model.pop(key, None)
                if row[self.columns.replay.removed] is not None:
                    model[key] = row
        self.models[self.head.batch] = (model, ends)

    def refresh(self) -> CurrentRefresh:
        """Refresh and compare."""
        done = refresh_current(self.offline.stream, self.offline.folders, remake=self.rng.random() < 0.1)
        self.check(done)
        return done

    def check(self, done: CurrentRefresh) -> None:
        """Compare the current table with the model."""
        batch = self.head.batch
        assert done.batch == batch, self.steps
        table = DeltaTable(self.offline.folders.current).to_pyarrow_table()
        assert table.schema.names == self.columns.schema.names
        expected = self.expect(batch)
        assert sorted(map(self.show, table.to_pylist())) == expected, (done, self.steps)
        assert done.rows == len(expected)
        (proof,) = prove_current(self.offline.stream, self.offline.folders, KafkaSettings())
        assert proof.status is InvariantStatus.PROVEN, (proof, self.steps)

    def show(self, row: Row) -> str:
        """Return a row without its hour, which a remake changes."""
        return repr([row[name] for name in self.columns.schema.names if name != "commit_hour"])

    def ask(self) -> None:
        """Compare the current rows in SQL, refreshed or not, and the rows of an earlier version with the model."""
        head = self.head
        assert self.query(AsOf()) == self.expect(head.batch), self.steps
        versions = delta_log.list_versions(self.offline.folders.table)
        entry = delta_log.read_entry(self.offline.folders.table, self.rng.choice(versions))
        if entry is None or entry.head is None or entry.written_at is None or not entry.head.batch:
            return
        version = find_version_at(self.offline.folders.table, entry.written_at)
        then = delta_log.read_head(self.offline.folders.table, version)
        assert then is not None
        if head.may_rewind_to(then.batch):
            assert self.query(AsOf(time=entry.written_at)) == self.expect(then.batch), (then.batch, self.steps)
        else:
            with pytest.raises(NotRetained):
                self.query(AsOf(time=entry.written_at))

    def query(self, as_of: AsOf) -> list[str]:
        """Return the rows of the current table in SQL."""
        stream = self.offline.stream
        sql = f"SELECT * FROM {stream.name}_current"  # noqa: S608  # a name set by the test
        found = query_sql(sql, {stream.name: stream}, self.offline.folders.root, as_of, limit=None)
        return sorted(self.show(dict(zip(found.columns, row, strict=True))) for row in found.rows)

    def expect(self, batch: int) -> list[str]:
        """Return the rows of the model after a batch."""
        return sorted(self.show(row) for row in self.models[batch][0].values())

    def compact(self) -> None:
        """Close the hour: the next batch is in a later hour."""
        close_hour(self.offline.folders)
        compact_stream(self.offline.folders)

    def rewind(self) -> None:
        """Rewind to a random batch."""
        head = self.head
        batches = [batch for batch in self.models if batch and head.may_rewind_to(batch) and batch != head.batch]
        if batches:
            batch = self.rng.choice(batches)
            self.models[rewind(self.offline, batch)] = self.models[batch]

    def erase(self) -> None:
        """Erase a session of all topics."""
        session = self.rng.choice("abc")
        request = EraseRequest(session=session, drop_state=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(erase, "is_writer_alive", lambda *_: False)
            before = self.head.batch
            try:
                done = erase_session(
                    self.offline.folders, request, EraseContext(self.offline.stream), who="a", why="test"
                )
            except Refused:  # it has no rows
                return
        model, ends = self.models[before]
        left = {key: row for key, row in model.items() if row["_session"] != session}
        self.models[done.batch] = (left, ends)

    def drop(self) -> None:
        """Drop the rows of old hours."""
        drop_rows(self.offline)


def drop_rows(offline: Offline) -> Retained:
    """Drop the rows an hour older than the newest batch, whose hour may be later than the clock's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "find_current_hour", lambda: "2099-01-01T00")
        return drop_old_rows(offline.folders, timedelta(hours=1), cause="test")
