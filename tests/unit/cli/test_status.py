"""The first lines of `status`, and the age of its figures."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from lockstep.cli.inspect import describe_status
from lockstep.cli.output import make_lines, print_out
from lockstep.control.heartbeat import WriterState
from lockstep.model.finding import Finding
from lockstep.operations.alarms import Alarm, AlarmKind, AlarmSeverity
from lockstep.operations.durations import format_duration
from lockstep.operations.growth import DiskGrowth, FileKind, KindGrowth
from lockstep.operations.inspect.status import PartitionStatus, Status

if TYPE_CHECKING:
    import pytest

LATE = Alarm(kind=AlarmKind.FRESHNESS, severity=AlarmSeverity.ERROR, problem="books is late", next_step="wait")
GAP = Finding(cause="gap", topic="t", topic_id="id", partition=0, offset=4, until=5, session="s")


def make_status(partitions: int, alarms: int, *, halted: bool, age: timedelta | None) -> Status:
    rows = KindGrowth(kind=FileKind.ROWS, files=1, bytes=10)
    at = None if age is None else datetime.now(UTC) - age
    return Status(
        stream="books",
        desired="halted" if halted else "running",
        reason="because",
        findings=(GAP,) if halted else (),
        writer=WriterState.ENDED,
        generation=1,
        epoch=1,
        batch=1,
        hour="",
        closed_hour="",
        lag_messages=0,
        freshness_seconds=None,
        headroom_seconds=None,
        last_resume=None,
        partitions=tuple(PartitionStatus("t", number, 0, 0, None) for number in range(partitions)),
        kafka="",
        alarms=(LATE,) * alarms,
        halted_at=datetime(2026, 1, 1, tzinfo=UTC) if halted else None,
        next_step="lockstep resume books" if halted else "",
        growth=None
        if at is None
        else DiskGrowth(measured_at=at, kinds=(rows,), files=1, bytes=10, bytes_in_30_days=None),
    )


@given(partitions=st.integers(0, 60), alarms=st.integers(0, 3))
def test_the_status_of_a_halted_stream_begins_with_the_halt_and_its_command(partitions: int, alarms: int) -> None:
    said = list(map(str, describe_status(make_status(partitions, alarms, halted=True, age=None)).renderables))
    assert said[0] == "books halted 2026-01-01 00:00:00 UTC"
    assert said[1] == str(GAP)
    assert said[2] == "next: lockstep resume books"


def test_figures_of_the_disk_say_how_old_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """A time of day without its date is ambiguous."""
    for age in (timedelta(seconds=5), timedelta(minutes=50), timedelta(days=3)):
        print_out(make_lines(describe_status(make_status(1, 0, halted=False, age=age))))
        found = re.search(r"on disk (.+?) ago", capsys.readouterr().out)
        assert found is not None
        assert found[1] == format_duration(age.total_seconds())
