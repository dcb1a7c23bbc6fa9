"""A session in every place below the table root: no byte of it is left after erasure, ageing and housekeeping."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.features.compaction.run import compact_stream
from lockstep.features.erase import erase
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.features.export.publish import make_staging_folder
from lockstep.features.quality import check
from lockstep.features.quality.check import Checked, Coverage, LastCheck, make_result_path, read_last_check
from lockstep.features.quality.increment import TableVersions, make_state_path
from lockstep.features.quality.report import make_report_path
from lockstep.features.quality.rules import RuleOutcome, RuleResult
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.operations import quarantine
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.quarantine import ExportRefused, QuarantineFilter, export_quarantined
from lockstep.operations.repair import SET_ASIDE
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from tests.features.erase.test_erase import HOURS, add_quarantine, count_violations
from tests.features.quality.stream_tables import CLEAN, Batch, clean_batches, write
from tests.support.traces import find_traces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO

    import pyarrow as pa

    from lockstep.table.layout import StreamFolders

NAMES = ["maria@example.org", "münchen/7", "a'b\"c\\d", "x" * 40 + "-tail", "日本語-セッション"]
AGE_SECONDS = 3 * 86_400.0


@pytest.fixture(autouse=True)
def no_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report that the writer is dead: the real check takes seconds."""
    monkeypatch.setattr(erase, "is_writer_alive", lambda *_: False)


def write_named(root: Path, name: str, batches: int) -> StreamFolders:
    """Write tables with another name for the session s1."""
    made: list[Batch] = clean_batches(batches)
    for batch in made:
        for part in batch.values():
            for row in part.files[0]:
                row["_session"] = name if row["_session"] == "s1" else row["_session"]
    return write(root, made, hours=HOURS[:batches])


def put_last_check(folders: StreamFolders, name: str, *, batch: int = 1) -> None:
    """Store a check with a failing row of a session, its report, and the state for the next check."""
    failed = RuleResult(
        rule="r", sentence="s", outcome=RuleOutcome.FAILED, observed=1, sample=({"session": name},), reason=name
    )
    checked = Checked(
        stream=folders.stream,
        versions=TableVersions(1, 1, batch),
        coverage=Coverage(full=True, reason="", since=None, files=1, rows=1, size=1),
        partitions=(),
        results=(failed,),
    )
    kept = LastCheck(checked, (), (msgspec.Raw(msgspec.json.encode({"unexpected": [name]})),))
    make_result_path(folders).parent.mkdir(parents=True, exist_ok=True)
    make_result_path(folders).write_bytes(msgspec.json.encode(kept))
    make_report_path(folders).write_text(name)
    make_state_path(folders).write_bytes(name.encode())


def put_everywhere(folders: StreamFolders, name: str) -> None:
    """Put the session in quarantine, last check, entries set aside, an unfinished export and a dropped shadow."""
    add_quarantine(folders, name, found=f"found {name}")
    add_quarantine(folders, "s2")
    put_last_check(folders, name)
    dropped = folders.root / ".sensors_shadow.dropped"
    staged = make_staging_folder(folders.export, HOURS[0])
    for folder in (folders.control / SET_ASIDE, staged, dropped / "state"):
        folder.mkdir(parents=True)
        (folder / "one").write_text(name)


def age(root: Path) -> None:
    """Age every file below a folder by three days."""
    for path in [*root.rglob("*"), root]:
        at = path.stat().st_mtime - AGE_SECONDS
        os.utime(path, (at, at))


def erase_and_clean(folders: StreamFolders, name: str) -> None:
    erase_session(folders, EraseRequest(session=name), EraseContext(), who="ann", why="test")
    for _ in range(2):
        age(folders.root)
        run_housekeeping(folders, retention_seconds=3600.0)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), batches=st.integers(1, 3), compacted=st.booleans())
def test_nothing_of_a_session_is_left_below_the_table_root(
    tmp_path_factory: pytest.TempPathFactory, *, name: str, batches: int, compacted: bool
) -> None:
    root = tmp_path_factory.mktemp("places")
    folders = write_named(root, name, batches)
    put_everywhere(folders, name)
    if compacted:
        close_hour(folders)
        compact_stream(folders)
    assert len(find_traces(root, name)) > 6, "the search finds nothing"
    erase_and_clean(folders, name)
    assert find_traces(root, name) == []
    scratch = root / "scratch"
    scratch.mkdir()
    assert count_violations(folders, scratch) == []


def test_the_head_and_the_logs_of_side_tables_never_name_a_session(tmp_path: Path) -> None:
    folders = write_named(tmp_path, NAMES[0], 1)
    add_quarantine(folders, NAMES[0], found=f"found {NAMES[0]}")
    assert NAMES[0] not in OutputLog(folders.table).base().head.encode()
    assert find_traces(folders.quarantine / "_delta_log", NAMES[0]) == []


def test_a_filter_on_a_session_still_finds_its_messages(tmp_path: Path) -> None:
    """Readers skip a file without bounds of the filtered column."""
    folders = write_named(tmp_path, NAMES[0], 1)
    add_quarantine(folders, *NAMES)
    table = delta_log.open_delta_table(folders.quarantine)
    for name in NAMES:
        assert table.to_pyarrow_table(filters=[("session", "=", name)])["session"].to_pylist() == [name]


def test_a_check_that_stores_its_result_after_an_erasure_forgets_the_sessions(tmp_path: Path) -> None:
    folders = write_named(tmp_path, NAMES[0], 2)
    erase_session(folders, EraseRequest(session=NAMES[0]), EraseContext(), who="ann", why="test")
    erased = OutputLog(folders.table).base().head.batch
    for batch, is_kept in ((erased - 1, False), (erased, True)):
        put_last_check(folders, NAMES[0], batch=batch)
        check._forget_if_erased(folders, TableVersions(1, 1, batch))  # noqa: SLF001  # the last step of a check
        last = read_last_check(folders)
        assert last is not None
        assert (len(last.checked.results[0].sample) == 1, len(last.great_expectations) == 1) == (is_kept, is_kept)
        assert make_state_path(folders).exists() is is_kept


def test_places_of_all_partitions_are_read(tmp_path: Path) -> None:
    """The session is in every partition: otherwise the tests above search too few places."""
    folders = write_named(tmp_path, NAMES[0], 1)
    plan = erase.prepare_erasure(folders, EraseRequest(session=NAMES[0]), EraseContext()).plan
    assert len(plan.partitions) == len(CLEAN)


def test_an_export_of_the_quarantine_that_an_erasure_overtakes_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = write_named(tmp_path, NAMES[0], 1)
    add_quarantine(folders, NAMES[0])
    really_write = quarantine._write_lines  # noqa: SLF001  # the moment of the erasure

    def write_before_erasure(out: BinaryIO, batches: Iterator[pa.RecordBatch]) -> int:
        messages = really_write(out, batches)
        erase_session(folders, EraseRequest(session=NAMES[0]), EraseContext(), who="ann", why="test")
        return messages

    monkeypatch.setattr(quarantine, "_write_lines", write_before_erasure)
    with pytest.raises(ExportRefused, match="a session was erased meanwhile"):
        export_quarantined(folders, QuarantineFilter(), tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()
    monkeypatch.setattr(quarantine, "_write_lines", really_write)
    assert export_quarantined(folders, QuarantineFilter(), tmp_path / "out.jsonl").messages == 1
    assert NAMES[0] not in (tmp_path / "out.jsonl").read_text()
