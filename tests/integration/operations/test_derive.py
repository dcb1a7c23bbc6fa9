"""Derived tables follow real streams on a real broker: what they hold, when they are rebuilt, who is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.compaction.run import compact_stream
from lockstep.operations.derive import RebuildCause, plan_derived, run_derived
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.rewind import plan_rewind, rewind_stream
from tests.support.adding_stream import adding
from tests.support.derived_tables import Timed, activity, expected_windows, send_each_second, stored_windows
from tests.support.feed import session, update

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.declare.derived import Derived
    from lockstep.operations.derive import DerivedRun
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

Sent = list[tuple[str, bytes]]


def interleaved(*names: str, updates: int) -> Sent:
    """The messages of some sessions in turns."""
    turns = zip(*([(name, value) for value in session(updates)] for name in names), strict=True)
    return [message for turn in turns for message in turn]


class Site:
    """A stream and a table derived from it."""

    def __init__(self, feed: Feed, runs: LocalRuns, spark: SparkSession) -> None:
        self.feed, self.spark = feed, spark
        self.runs = runs.of(adding(feed.pattern, transform=Timed()))
        self.topic, self.sent = feed.create("values"), 0
        self.derived = activity(self.runs.stream)
        self.root = self.runs.settings.table_root
        self.table = self.root / "activity" / "table"

    def send(self, messages: Sent) -> None:
        """A batch of the stream."""
        send_each_second(self.feed, self.topic, messages, self.sent)
        self.sent += len(messages)
        self.runs.run()

    def derive(self, derived: Derived | None = None, *, rebuild: bool = False) -> DerivedRun:
        return run_derived(derived or self.derived, self.root, lambda: self.spark, rebuild=rebuild)

    def assert_equal(self) -> None:
        expected = expected_windows(self.runs.folders.table)
        assert expected
        assert stored_windows(self.table) == expected


@pytest.fixture
def site(feed: Feed, runs: LocalRuns, spark: SparkSession) -> Site:
    return Site(feed, runs, spark)


def test_windows_follow_batches_a_compaction_and_a_rewind(site: Site) -> None:
    site.send(interleaved("ann", "bob", updates=20))
    first = site.derive()
    assert first.rebuilt == (RebuildCause.NEW,)
    site.assert_equal()
    site.send([("ann", update(22, a=1)), *(("bob", update(22 + n, a=1)) for n in range(30))])
    assert site.derive().rebuilt == ()
    site.assert_equal()
    close_hour(site.runs.folders)
    compact_stream(site.runs.folders)
    site.send([("bob", update(52 + n, a=1)) for n in range(30)])
    assert site.derive().rebuilt == ()
    site.assert_equal()
    version = site.derive().version
    assert version == site.derive().version
    plan = plan_rewind(site.runs.handle, "2")
    assert plan.derived == ("activity",)
    rewind_stream(site.runs.handle, "2", who="ann", why="a test")
    assert plan_derived(site.derived, site.root).rebuild is RebuildCause.REWOUND
    assert site.derive().rebuilt == (RebuildCause.REWOUND,)
    site.assert_equal()
    site.runs.run()
    assert site.derive().rebuilt == ()
    site.assert_equal()
