"""Checks of a walk after each step: by the plain fold always, by the proof and by repair every few steps."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from lockstep.features.export.dataset import ExportMismatch, list_exported_hours
from lockstep.features.export.export import plan_export
from lockstep.features.history.rewind import RewindReason, prepare_rewind
from lockstep.operations.inspect.state import StateFilter, read_states
from lockstep.operations.repair import repair_stream
from lockstep.table import delta_log
from lockstep.table.head import Desired
from lockstep.verify.verify import verify_stream
from tests.correctness.walk.walked_stream import Fold, Folded, fold
from tests.correctness.walk.walked_windows import COLUMNS as WINDOW_COLUMNS
from tests.correctness.walk.walked_windows import FoldWindows
from tests.support.delta_protocol import find_broken_rules
from tests.support.proven import PROVEN_OR_LOST

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.head import Head, SideBatch
    from tests.correctness.walk.producing import Place
    from tests.correctness.walk.walking import Walk

COLUMNS = ("_offset", "_row", "_session", "_sequence", "name", "value", "total", "unit")
ALL_EVERY = 4
"""The full check runs every so many steps, as it costs as much as some steps."""
Rows = list[tuple[object, ...]]


def check(walk: Walk, head: Head) -> None:
    """Check the tables after a step."""
    expected = {place: _fold(walk, place) for place in walk.model.segments}
    rows = DeltaTable(walk.folders.table).to_pyarrow_table().to_pylist()
    dropped = head.retention.batch if head.retention is not None else 0
    for place, held in _by_place(rows, _list_columns(walk)).items():
        assert held == sorted(row for batch, row in expected[place].rows if batch > dropped), (place, walk.steps)
    missing = sum(batch > dropped for each in expected.values() for batch, _ in each.rows)
    assert len(rows) == missing, walk.steps
    check_aside(walk, head, expected)
    if len(walk.steps) % ALL_EVERY == 0:
        check_states(walk, expected)
        check_export(walk, head, rows)
        check_files(walk, head)
        prove(walk, head)


def _fold(walk: Walk, place: Place) -> Folded:
    erased = [(session, where[place]) for session, where in walk.model.erased if place in where]
    given_up = walk.model.given_up.get(place, ())
    release = walk.model.release
    folding = FoldWindows(reorders=release.reorders) if release.has_windows else Fold()
    return fold(folding, walk.kafka.logs[place].sent, walk.model.segments[place], erased, given_up)


def _list_columns(walk: Walk) -> tuple[str, ...]:
    return WINDOW_COLUMNS if walk.model.release.has_windows else COLUMNS


def _by_place(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> dict[Place, Rows]:
    found = dict[tuple[str, int], Rows]()
    for row in rows:
        place = (row["_topic_id"], row["_partition"])
        found.setdefault(place, []).append(tuple(row.get(name) for name in columns))
    return {place: sorted(held) for place, held in found.items()}


def check_aside(walk: Walk, head: Head, expected: dict[Place, Folded]) -> None:
    """Check that each message that was not applied is there once, without its key if its session was erased."""
    quarantined = {place: each.quarantined for place, each in expected.items()}
    if not walk.model.release.reorders:  # else messages that were held back are there as well: the proof knows them
        _check_side(walk.folders.quarantine, head, head.quarantine, quarantined)
    if walk.model.release.has_windows:
        _check_side(walk.folders.late, head, head.late, {place: each.late for place, each in expected.items()})


def _check_side(folder: Path, head: Head, newest: SideBatch | None, expected: dict[Place, dict[int, str]]) -> None:
    rows = DeltaTable(folder).to_pyarrow_table().to_pylist() if delta_log.has_log(folder) else []
    if newest is not None and newest.batch not in {row["batch"] for row in rows}:
        return  # a kill left the newest rows out, which the next start adds
    found = Counter(
        (row["topic_id"], row["partition"], row["offset"], (row["key"] or b"").decode())
        for row in rows
        if row["batch"] <= head.valid_batches.get(row["generation"], -1)
    )
    known = Counter((*at, offset, key) for at, each in expected.items() for offset, key in each.items())
    assert found == known, (found - known, known - found)


def check_states(walk: Walk, expected: dict[Place, Folded]) -> None:
    """Check that each active session has its values."""
    for session in {session for each in expected.values() for session in each.states}:
        shown = read_states(walk.runs.stream, walk.folders.root, StateFilter(session=session)).sessions
        held = [(each.topic, each.partition, _show(each.state)) for each in shown]
        for (topic_id, partition), each in expected.items():
            if session in each.states:
                topic = walk.kafka.logs[topic_id, partition].topic
                assert (topic, partition, json.dumps(each.states[session], sort_keys=True)) in held, session


def _show(state: Any) -> str:
    """Return the values, under the name of any release."""
    names = ("values", "held", "rows", "open")
    return json.dumps(next((state[name] for name in names if name in (state or ())), None), sort_keys=True)


def check_export(walk: Walk, head: Head, rows: list[dict[str, Any]]) -> None:
    """Check that each exported hour is unchanged and matches the table, unless the export reports a difference."""
    try:
        plan_export(walk.runs.stream, walk.folders)
    except ExportMismatch:
        return
    for hour in list_exported_hours(walk.export_folder):
        held = read_exported(walk.export_folder, hour)
        assert held == walk.model.exported[hour], hour
        if head.retention is None or hour >= head.retention.hour:
            assert held == _make_comparable([row for row in rows if row["commit_hour"] == hour]), hour


def read_exported(folder: Path, hour: str) -> Rows:
    """Return the rows of an exported hour."""
    paths = sorted((folder / f"commit_hour={hour}").rglob("*.parquet"))
    return _make_comparable([row for path in paths for row in pq.ParquetFile(path).read().to_pylist()])


def _make_comparable(rows: list[dict[str, Any]]) -> Rows:
    columns = (*COLUMNS, *WINDOW_COLUMNS)
    held = [(row["_topic_id"], row["_partition"], *(row.get(name) for name in columns)) for row in rows]
    return sorted(held, key=repr)


def check_files(walk: Walk, head: Head) -> None:
    """Check that all files are there that a start, a savepoint or a rewind to any batch needs."""
    found = {each.condition for each in repair_stream(walk.folders, apply=False).checks}
    assert found <= {"ok", "repairable"} or head.desired is Desired.HALTED, found  # a start repairs a kill's remains
    for each in head.savepoints:
        DeltaTable(walk.folders.table, version=each.version).to_pyarrow_table()
    tables = (walk.folders.table, walk.folders.ledger, walk.folders.quarantine, walk.folders.late)
    broken = {table.name: find_broken_rules(table) for table in filter(delta_log.has_log, tables)}
    assert not any(broken.values()), broken
    targets = [batch for batch in walk.model.after if head.may_rewind_to(batch)]
    for batch in walk.choose.sample(targets, min(2, len(targets))):
        kinds = {each.kind for each in prepare_rewind(walk.runs.handle, str(batch)).plan.obstacles}
        assert kinds <= {RewindReason.NO_CHANGE, RewindReason.EXPIRED}, (batch, kinds)


def prove(walk: Walk, head: Head) -> None:
    """Run `lockstep verify`, as far as Kafka, a promotion and the lookup table allow it.

    It judges all messages by today's class: if the class has changed, it may find violations.
    """
    if len({each.is_ordered for each in walk.model.released.values()}) > 1:
        return
    report = verify_stream(walk.runs.stream, walk.folders, walk.runs.settings.kafka)
    assert report.violations == (), (report.violations, report.notes)
    read = walk.looked_up.is_lost or any(not each.looks_up for each in walk.model.released.values())
    is_open = walk.kafka.loses or head.promotion is not None or (walk.model.release.looks_up and read)
    assert report.status in PROVEN_OR_LOST or is_open, report
