"""What Kafka no longer has is read from the archive, on a real broker whose log is deleted."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from deltalake import DeltaTable

from lockstep.declare.archive import Archive
from lockstep.features.history.rewind import rewind_stream
from lockstep.verify.verify import verify_stream
from tests.features.history.test_rewind_end_to_end import Wrong
from tests.support.adding_stream import adding
from tests.support.feed import folded, session
from tests.support.local_runs import read_in_batches

if TYPE_CHECKING:
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns


def archived(runs: LocalRuns) -> LocalRuns:
    return runs.of(dataclasses.replace(runs.stream, archive=Archive()))


def test_a_bug_of_last_month_is_repaired_on_a_topic_whose_log_has_gone(feed: Feed, runs: LocalRuns) -> None:
    topic = feed.create("values")
    values = session(9)
    wrong = archived(runs.of(adding(feed.pattern, transform=Wrong())))
    read_in_batches(feed, wrong, topic, values)
    feed.expire(topic, 9)
    mended = archived(runs)
    assert verify_stream(mended.stream, mended.folders, mended.settings.kafka).status.value == "violated"
    rewind_stream(mended.handle, "2", who="ann", why="off by one")
    mended.run()
    assert mended.rows(topic) == folded([(offset, "s", value) for offset, value in enumerate(values)])
    report = verify_stream(mended.stream, mended.folders, mended.settings.kafka)
    assert report.status.value == "proven", report.violations
    rows = DeltaTable(mended.folders.archive).to_pyarrow_table().sort_by("offset")
    assert rows["offset"].to_pylist() == list(range(len(values)))
    assert rows["value"].to_pylist() == values
