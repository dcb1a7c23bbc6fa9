"""Retention drops only old messages of quarantine and late table, at any moment, and the proof accounts for it.

The tests' own reader reads the expected rows from the logs and files of the side tables, before and after. The age of a
batch follows from the hour in which the test committed it.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Self
from unittest.mock import patch

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from lockstep import NoIntegrity
from lockstep.engine.driver import planner
from lockstep.engine.protocol import PlannedRange
from lockstep.features.compaction.side_files import compact_side_tables
from lockstep.features.retention import messages as retain_quarantine
from lockstep.features.retention.messages import drop_old_messages, plan_quarantine_retention
from lockstep.features.retention.side_files import drop_side_files
from lockstep.integrity.resume_options import StreamHalted
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import InvariantStatus
from tests.correctness.verify.forging import Forged
from tests.correctness.verify.shelves import Producer, Shelves, shelf_stream
from tests.correctness.verify.test_replayed_tables import CLASSES
from tests.support import offline_stream
from tests.support.examples import scale_examples
from tests.support.minute_stream import Minute, Totals, Value, Window, minutes, totals
from tests.support.offline_proof import prove
from tests.support.offline_stream import Offline
from tests.support.plain_reader import heads, named_files, read_table
from tests.support.proven import PROVEN_OR_LOST

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from lockstep import Record
    from lockstep.verify.report import VerifyReport

CLASSES_USED = ("strict, suspending", "ordered, first message", "window", "reordered, first message")
TABLES = ("quarantine", "late")
STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(1, 12)),
    st.tuples(st.just("send"), st.integers(1, 12)),
    st.tuples(st.just("wait"), st.integers(1, 3)),
    st.tuples(st.just("compact"), st.just(0)),
    st.tuples(st.just("retain"), st.integers(1, 6)),
    st.tuples(st.just("kill"), st.integers(0, 1)),
)
Message = tuple[int, int, str]
"""Batch, offset and cause of a row of a side table."""


@dataclass
class Hours:
    """A stream and its clock.

    Attributes:
        offline: The stream.
        producer: Sends to it.
        clock: The time of all clocks.
        hours: The hour of each batch.
        dropped_up_to: The last old batch of all retentions.
    """

    offline: Offline
    producer: Producer
    clock: datetime = field(default_factory=lambda: datetime.now(UTC) - timedelta(days=60))
    hours: dict[int, datetime] = field(default_factory=dict)
    dropped_up_to: int = 0

    @classmethod
    def make(cls, root: Path, seed: int, class_name: str) -> Self:
        rng = random.Random(seed)  # noqa: S311  # reproducible
        made = cls(
            Offline(shelf_stream(Shelves(), CLASSES[class_name], None), root), Producer(rng, Shelves(), faults=0.3)
        )
        made.do("send", 8)
        return made

    @property
    def folders(self) -> StreamFolders:
        return self.offline.folders

    def do(self, name: str, number: int) -> None:
        with (
            patch.object(time, "time", self.clock.timestamp),
            patch.object(planner, "find_current_hour", self._hour),
            patch.object(retain_quarantine, "find_current_hour", self._hour),
        ):
            getattr(self, name)(number)

    def _hour(self) -> str:
        return f"{self.clock:%Y-%m-%dT%H}"

    def send(self, messages: int) -> None:
        with suppress(StreamHalted):
            self.offline.run({"t": self.producer.send(messages)})
        head = OutputLog(self.folders.table).base().head
        for batch in range(max(self.hours, default=0) + 1, head.batch + 1):
            self.hours[batch] = self.clock.replace(minute=0, second=0, microsecond=0)

    def wait(self, hours: int) -> None:
        self.clock += timedelta(hours=hours)

    def compact(self, _: int) -> None:
        compact_side_tables(self.folders, OutputLog(self.folders.table).base().head)

    def retain(self, hours: int) -> None:
        before = {name: self.read(name) for name in TABLES}
        plan = plan_quarantine_retention(self.folders, timedelta(hours=hours))
        done = drop_old_messages(self.folders, timedelta(hours=hours), cause="a test")
        assert done.plan == plan
        self._note_old(timedelta(hours=hours))
        for name in TABLES:
            kept = [row for row in before[name] if row[0] > self.dropped_up_to]
            assert self.read(name) == kept, name
        dropped = {each.table: each.messages for each in plan.tables}
        assert dropped.get("quarantine", 0) == len(before["quarantine"]) - len(self.read("quarantine"))

    def _note_old(self, keep: timedelta) -> None:
        oldest = self.hours[max(self.hours)] - keep
        old = [batch for batch, hour in self.hours.items() if hour < oldest]
        self.dropped_up_to = max(self.dropped_up_to, *old, 0)

    def kill(self, survived: int) -> None:
        """Kill a retention after the commit of the head and of `survived` side tables."""
        left = [survived]

        def die(side: Path, last_batch: int) -> object:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return drop_side_files(side, last_batch)

        with patch.object(retain_quarantine, "drop_side_files", die), suppress(KeyboardInterrupt):
            drop_old_messages(self.folders, timedelta(hours=1), cause="killed")
        self._note_old(timedelta(hours=1))

    def read(self, name: str) -> list[Message]:
        """Return the rows of a side table, in order of batches and offsets."""
        folder = self.folders.root / self.folders.stream / name
        if not folder.exists() or not named_files(folder):
            return []
        rows = read_table(folder).select(["batch", "offset", "cause"]).to_pylist()
        return sorted((row["batch"], row["offset"], row["cause"]) for row in rows)

    def check(self) -> None:
        """Check that the stream is proven, and that the side tables have the ledger's counts for all later batches."""
        report = prove(self.offline)
        assert report.violations == ()
        assert report.status in PROVEN_OR_LOST or report.notes == ("no message could be read again",), report.notes
        ledger = read_table(self.folders.ledger).select(["batch", "quarantined", "late"]).to_pylist()
        for name, column in (("quarantine", "quarantined"), ("late", "late")):
            kept = Counter(batch for batch, _, _ in self.read(name) if batch > self.dropped_up_to)
            assert kept == Counter({r["batch"]: r[column] for r in ledger if r["batch"] > self.dropped_up_to}), name


def is_violated(report: VerifyReport) -> bool:
    return report.status is InvariantStatus.VIOLATED


@settings(max_examples=scale_examples(40, usual=8), deadline=None, phases=[Phase.generate])
@given(
    steps=st.lists(STEPS, min_size=4, max_size=16),
    seed=st.integers(0, 10_000),
    class_name=st.sampled_from(CLASSES_USED),
)
def test_messages_are_dropped_by_their_age_and_all_else_is_proven(
    steps: list[tuple[str, int]], seed: int, class_name: str
) -> None:
    with tempfile.TemporaryDirectory() as root:
        made = Hours.make(Path(root) / "stream", seed, class_name)
        for name, number in (*steps, ("wait", 3), ("send", 5), ("retain", 2)):
            made.do(name, number)
            if name in {"retain", "kill"} or (name == "compact" and made.dropped_up_to):
                made.check()
        check_forged(made, Path(root))


def check_forged(made: Hours, root: Path) -> None:
    """Check that unexplained losses are found: a later file, and all dropped messages without the head's record."""
    folders = made.folders
    for name in TABLES:
        files = named_files(folders.root / folders.stream / name)
        if files and made.read(name):
            elsewhere = StreamFolders(folders.stream, root / f"without-{name}")
            Forged.copy(folders.root / folders.stream, elsewhere.root / elsewhere.stream).forget(name, files[-1])
            assert is_violated(prove(made.offline, elsewhere)), name
    newest = heads(folders.table)[-1]
    dropped = newest.get("quarantine_retention")
    if dropped is not None and dropped["quarantined"]:
        elsewhere = StreamFolders(folders.stream, root / "unexplained")
        forged = Forged.copy(folders.root / folders.stream, elsewhere.root / elsewhere.stream)
        forged.state_in_head(quarantine_retention=None)
        assert is_violated(prove(made.offline, elsewhere))


def test_late_messages_that_are_dropped_are_folded_again_without_their_rows(tmp_path: Path) -> None:
    """The gate itself finds that they are late: the proof starts at the first offset."""
    made = Hours(Offline(minutes(reorder=False), tmp_path), Producer(random.Random(0), Shelves()))  # noqa: S311  # not used
    seconds = iter((100, 200, 5, 300, 10, 400))

    def send(messages: int) -> list[tuple[str, bytes]]:
        return [("k", b'{"t":%d,"v":1}' % at) for at in islice(seconds, messages)]

    made.producer.send = send  # type: ignore[method-assign]  # values by event time
    for messages in (3, 2, 1):
        made.do("send", messages)
        made.do("wait", 2)
    assert [len(made.read(name)) for name in TABLES] == [0, 2]
    made.do("retain", 1)
    assert [batch for batch, _, _ in made.read("late")] == []
    report = prove(made.offline)
    assert (report.status, report.violations, report.messages) == (InvariantStatus.PROVEN, (), 6)
    text = "0 quarantined and 2 late messages of batches up to 2 were dropped by retention, as the ledger counts them"
    assert text in report.scopes[0].note


def test_a_message_that_may_have_killed_its_worker_is_not_decoded_by_the_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause of a dropped message is unknown, so the fold starts behind its batch."""
    made = Hours(Offline(totals("t", NoIntegrity()), tmp_path), Producer(random.Random(0), Shelves()))  # noqa: S311  # not used

    def send(messages: int) -> list[tuple[str, bytes]]:
        return [("k", b'{"t":1,"v":1}')] * messages

    made.producer.send = send  # type: ignore[method-assign]  # plain messages
    with monkeypatch.context() as patched:
        patched.setattr(offline_stream, "PlannedRange", partial(PlannedRange, killing=(1,)))
        made.do("send", 3)
    made.do("wait", 3)
    made.do("send", 3)
    before = prove(made.offline)
    assert (before.status, before.counts["quarantined"]) == (InvariantStatus.PROVEN, 1)
    made.do("retain", 1)
    report = prove(made.offline)
    assert (report.status, report.violations, report.messages) == (InvariantStatus.PROVEN, (), 3)
    assert "the fold needs quarantined messages up to batch 1: order and counts only" in report.scopes[0].note


def test_a_dropped_message_whose_row_no_table_can_hold_is_refused_by_the_proof_too(tmp_path: Path) -> None:
    """Only the count of the ledger shows the proof that the stream refused it."""
    made = Hours(Offline(totals("t", NoIntegrity(), Naming()), tmp_path), Producer(random.Random(0), Shelves()))  # noqa: S311  # not used
    values = iter((1, 13, 1, 1))

    def send(messages: int) -> list[tuple[str, bytes]]:
        return [("k", b'{"t":1,"v":%d}' % value) for value in islice(values, messages)]

    made.producer.send = send  # type: ignore[method-assign]  # one of them has no text
    made.do("send", 3)
    made.do("wait", 3)
    made.do("send", 1)
    assert [cause for _, _, cause in made.read("quarantine")] == ["value not storable"]
    made.do("retain", 1)
    report = prove(made.offline)
    assert (report.status, report.violations, report.messages) == (InvariantStatus.PROVEN, (), 4)


class Naming(Totals):
    """At times names a value by a text that UTF-8 cannot encode."""

    def on_update(self, state: Minute, message: Value, record: Record) -> Iterable[Window]:
        list(super().on_update(state, message, record))
        yield Window("\ud800" if message.v == 13 else "value", None, state.total)
