"""Hours exported before the rewind floor: a rewind withdraws them or is refused; no row is duplicated."""

from __future__ import annotations

import dataclasses
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.dataset as ds
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.derived import Export, OnRewind
from lockstep.errors import DeclarationError
from lockstep.features.compaction.run import compact_stream
from lockstep.features.export import publish, write
from lockstep.features.export import undone as undone_hours
from lockstep.features.export.dataset import (
    ExportMismatch,
    list_exported_hours,
    publish_hour,
    read_manifest,
    take_back_hour,
)
from lockstep.features.export.export import (
    WaitingHours,
    WaitReason,
    describe_missing,
    export_stream,
    list_proven_hours,
    plan_export,
)
from lockstep.features.export.publish import STAGING
from lockstep.features.export.status import read_exports
from lockstep.features.export.undone import UNDONE, find_undone_rows
from lockstep.features.history.promote import prepare_promotion, promote_shadow
from lockstep.features.history.rewind import prepare_rewind, rewind_stream
from lockstep.features.history.rewind_commit import list_undone
from lockstep.features.history.shadow import begin_shadow
from lockstep.operations.followers import DeclaredFollowers, list_effects
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.past_batches import read_head_of_batch
from lockstep.operations.plan_frame import Refused
from lockstep.storage import LocalStorage
from lockstep.table.commit import raise_rewind_floor
from lockstep.table.head import Retention
from lockstep.table.live_files import is_closed
from tests.features.export.declared import make_stream
from tests.features.export.exporting import WITHDRAWAL_STEPS
from tests.features.export.no_rename import use_no_rename
from tests.features.export.test_export import Rewound
from tests.support.feed import session, update
from tests.support.follower_looks import Killed, die
from tests.support.protocol_run import ProtocolRun, folders_in
from tests.support.stream_table import stored_rows
from tests.support.tiers import first_usual, keep_usual

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from lockstep.features.export.dataset import HourManifest
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

STREAM = make_stream(Export(on_rewind=OnRewind.REWRITE))
WAITS = make_stream(Export())


def begin(root: Path) -> Rewound:
    """Return a stream with four hours of three batches; the last hour is open."""
    run = ProtocolRun(folders_in(root))
    run.claim()
    made = Rewound(run, STREAM)
    made.hours(4)
    return made


def count_rows(rows: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    return Counter((str(row["commit_hour"]), row["_offset"]) for row in rows)


def read_dataset(made: Rewound) -> Counter[tuple[str, int]]:
    """Count the rows by hour and offset."""
    found = ds.dataset(made.run.folders.export, format="parquet", partitioning="hive").to_table()
    return count_rows(found.to_pylist())


def assert_exact(made: Rewound) -> None:
    """Assert that the dataset has each row of the table's closed hours once."""
    head = made.run.output.base().head
    rows = [row for row in stored_rows(made.run.folders) if is_closed(str(row["commit_hour"]), head)]
    assert read_dataset(made) == count_rows(rows)


def export(made: Rewound) -> tuple[str, ...]:
    """Compact, export and return the written hours."""
    compact_stream(made.run.folders)
    return export_stream(made.stream, made.run.folders).hours


def test_a_closed_and_compacted_hour_is_exported_without_a_wait(tmp_path: Path) -> None:
    made = begin(tmp_path)
    compact_stream(made.run.folders)
    waiting = plan_export(WAITS, made.run.folders).waiting
    assert (WaitReason.REWIND, 3) in [(each.reason, each.hours) for each in waiting]
    hours = export(made)
    assert len(hours) == 3
    assert [read_manifest(made.run.folders.export, hour).below_batch for hour in hours] == [4, 7, 10]
    assert_exact(made)


def make_dying(after: int) -> Callable[[Path, str, Callable[[], bool]], bool]:
    """Return a withdrawal that dies after some hours."""
    left = iter(range(after))

    def take_back(folder: Path, hour: str, is_wanted: Callable[[], bool]) -> bool:
        if next(left, None) is None:
            die()
        return take_back_hour(folder, hour, is_wanted)

    return take_back


def run_history(root: Path, monkeypatch: pytest.MonkeyPatch, seed: int, steps: int) -> None:
    """Interrupt withdrawals at random; until the next export each hour is complete and no row is duplicated."""
    choose = random.Random(seed)  # noqa: S311  # repeatable choices
    made = begin(root)
    for _ in range(steps):
        export(made)
        assert_exact(made)
        head = made.run.output.base().head
        if choose.random() < 0.3:
            made.run.output.commit(raise_rewind_floor(head.generation, choose.randint(head.rewind_floor, head.batch)))
        low = max(1, made.run.output.base().head.rewind_floor)
        made.rewind(choose.randint(low, head.batch))
        made.hours(choose.randint(1, 2))
        whole = read_dataset(made)
        if choose.random() < 0.5:
            compact_stream(made.run.folders)
            with monkeypatch.context() as killed, suppress(Killed):
                killed.setattr(undone_hours, "take_back_hour", make_dying(choose.randint(0, 2)))
                export_stream(made.stream, made.run.folders)
                whole = read_dataset(made)
            assert read_dataset(made) <= whole
    export(made)
    assert_exact(made)


@pytest.mark.parametrize("seed", first_usual(1, [1, 2]))
def test_after_rewinds_the_dataset_is_the_table_and_has_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run_history(tmp_path, monkeypatch, seed, 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3, 23))
def test_after_many_rewinds_the_dataset_is_the_table_and_has_no_row_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run_history(tmp_path, monkeypatch, seed, 10)


@pytest.mark.parametrize("step", keep_usual(("after an hour is withdrawn",), WITHDRAWAL_STEPS))
def test_a_withdrawal_that_is_killed_is_finished_by_the_next_export(tmp_path: Path, step: str) -> None:
    made = begin(tmp_path)
    first = export(made)
    made.rewind(5)
    made.hours(2)
    compact_stream(made.run.folders)
    before = read_dataset(made)
    command = [sys.executable, "-m", "tests.features.export.exporting", str(tmp_path), step]
    killed = subprocess.run(command, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    left = sorted(list_exported_hours(made.run.folders.export))
    assert left == list(first[: 3 - WITHDRAWAL_STEPS.index(step)])
    assert read_dataset(made) <= before
    assert export(made)[0] == first[1]
    assert_exact(made)


@pytest.mark.parametrize("deletions", first_usual(1, range(1, 4)))
def test_a_withdrawal_in_an_object_store_that_is_killed_is_finished_by_the_next_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    """Killed after the deletion of the hour's manifest, files or claim: undone rows are not duplicated."""
    use_no_rename(monkeypatch)
    made = begin(tmp_path)
    export(made)
    made.rewind(5)
    made.hours(2)
    compact_stream(made.run.folders)
    left = iter(range(deletions))

    def limit(delete: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: die() if next(left, None) is None else delete(*given)

    with monkeypatch.context() as killed:
        for name in ("delete", "delete_files", "delete_folder"):
            killed.setattr(LocalStorage, name, limit(getattr(LocalStorage, name)))
        with pytest.raises(Killed):
            export_stream(made.stream, made.run.folders)
    monkeypatch.setattr(publish, "WITHDRAWING_SECONDS", -1.0)
    export(made)
    assert_exact(made)


def test_an_hour_is_withdrawn_from_a_dataset_without_its_staging_folder(tmp_path: Path) -> None:
    """A copy of a dataset may lack empty folders."""
    made = begin(tmp_path)
    export(made)
    made.rewind(5)
    made.hours(2)
    compact_stream(made.run.folders)
    shutil.rmtree(made.run.folders.export / STAGING)
    export(made)
    assert_exact(made)


def test_an_undone_hour_of_a_killed_export_is_withdrawn_though_a_newer_export_saw_the_rewind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was published after the withdrawals of the newer export: only its manifest names its batches."""
    made = begin(tmp_path)
    compact_stream(made.run.folders)

    def publish_late(folder: Path, staged: Path, manifest: HourManifest) -> bool:
        monkeypatch.setattr(write, "publish_hour", publish_hour)
        made.rewind(2)
        made.hours(2)
        compact_stream(made.run.folders)
        export_stream(made.stream, made.run.folders)
        take_back_hour(folder, manifest.hour)
        publish_hour(folder, staged, manifest)
        die()
        return True

    monkeypatch.setattr(write, "publish_hour", publish_late)
    with pytest.raises(Killed):
        export_stream(made.stream, made.run.folders)
    hour = plan_export(made.stream, made.run.folders).undone
    assert len(hour) == 1
    assert not set(hour) & list_proven_hours(Export(on_rewind=OnRewind.REWRITE), made.run.folders)
    export(made)
    assert_exact(made)


def test_an_export_that_is_overtaken_leaves_an_hour_that_another_has_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begin(tmp_path)
    compact_stream(made.run.folders)
    hours = list[str]()

    def publish_and_pause(folder: Path, staged: Path, manifest: HourManifest) -> bool:
        monkeypatch.setattr(write, "publish_hour", publish_hour)
        published = publish_hour(folder, staged, manifest)
        made.rewind(2)
        hours.extend(export(made))
        return published

    monkeypatch.setattr(write, "publish_hour", publish_and_pause)
    slower = export_stream(made.stream, made.run.folders)
    assert (slower.hours, slower.hours_lost) == ((), 3)
    assert list_exported_hours(made.run.folders.export) == set(hours) != set()
    assert_exact(made)


def test_a_rewind_that_undoes_no_exported_batch_touches_no_hour(tmp_path: Path) -> None:
    made = begin(tmp_path)
    hours = export(made)
    made.rewind(9)
    head = made.run.output.base().head
    assert plan_export(made.stream, made.run.folders).undone == ()
    made.rewind(8)
    assert plan_export(made.stream, made.run.folders).undone == hours[2:]
    with pytest.raises(ExportMismatch, match="were rewound"):
        plan_export(WAITS, made.run.folders)
    assert head.batch == 13


def test_an_hour_whose_rows_retention_has_dropped_stays(tmp_path: Path) -> None:
    """Only the dataset still has the rows."""
    made = begin(tmp_path)
    hours = export(made)
    head = made.run.output.base().head
    declared = dataclasses.replace(made.stream, export=Export(on_rewind=OnRewind.REFUSE))
    target = read_head_of_batch(made.run.folders, head, 5)
    found = find_undone_rows(list_undone(made.run.folders, declared, head, target))
    assert [each.kind for each in found.obstacles] == [UNDONE]
    assert f"2 exported hours, from {hours[1]} to {hours[2]}" in found.obstacles[0].problem
    dropped = msgspec.structs.replace(target, retention=retention_before(hours[2]))
    later = find_undone_rows(list_undone(made.run.folders, declared, head, dropped))
    assert f"1 exported hours, from {hours[2]} to {hours[2]}" in later.obstacles[0].problem


def retention_before(hour: str) -> Retention:
    return Retention(hour=hour, batch=1, at=0.0, cause="a test")


HOURS = st.sets(st.integers(0, 4).map("2026-01-01T0{}".format))


@given(HOURS, HOURS, HOURS)
@example({"2026-01-01T01"}, {"2026-01-01T01"}, set())
def test_missing_rows_are_named_until_later_hours_have_them(
    withdrawn: set[str], written: set[str], waiting: set[str]
) -> None:
    groups = [WaitingHours(WaitReason.OPEN, len(waiting), min(waiting), max(waiting))] if waiting else []
    notes = describe_missing(sorted(withdrawn, reverse=True), written, groups)
    first = min(withdrawn, default="")
    later = {hour for hour in (min(waiting), max(waiting)) if hour > first} if waiting else set[str]()
    is_written = any(hour > first for hour in written)
    assert len(notes) == (bool(withdrawn) and (bool(later) or not is_written))
    for note in notes:
        assert f"withdrawn hours {first} to {max(withdrawn)} are missing" in note
        assert ("the stream has read them again" in note) is not bool(later)
        assert f"until hours {min(later)} to {max(later)} are written" in note if later else True


def test_a_declaration_names_the_choices() -> None:
    wrong: Any = "rewrite"
    with pytest.raises(DeclarationError, match=r"Export.on_rewind.*is not one of OnRewind"):
        Export(on_rewind=wrong)


def test_a_rewind_and_a_promotion_are_refused_or_rewrite_the_hours_as_declared(feed: Feed, runs: LocalRuns) -> None:
    refusing = runs.of(dataclasses.replace(runs.stream, export=Export(on_rewind=OnRewind.REFUSE)))
    topic = feed.create("values")
    for values in (session(2), [update(4, a=1)], [update(5, a=1)]):
        feed.send(topic, values)
        refusing.run()
        close_hour(refusing.folders)
    begin_shadow(refusing.handle, "adding_shadow", "1", code="", who="ann", why="off by one")
    prepared = prepare_rewind(refusing.handle, "1")
    assert not prepared.plan.obstacles
    compact_stream(refusing.folders)
    assert len(export_stream(refusing.stream, refusing.folders).hours) == 3
    with pytest.raises(Refused, match="2 exported hours"):
        prepared.commit()  # they were exported after the plan
    assert UNDONE in {each.kind for each in prepare_rewind(refusing.handle, "1").plan.obstacles}
    assert UNDONE in {each.kind for each in prepare_promotion(refusing.handle, "adding_shadow").plan.obstacles}

    rewriting = runs.of(dataclasses.replace(runs.stream, export=Export(on_rewind=OnRewind.REWRITE)))
    export_stream(rewriting.stream, rewriting.folders)
    (effect,) = [each for each in list_effects("adding", runs.folders.root, undone_after=1) if each.kind == "export"]
    assert effect.effect.startswith("its next run rebuilds it")
    done = rewind_stream(rewriting.handle, "1", who="ann", why="off by one")
    assert done.plan.copies[0].endswith("the next export withdraws them; their rows return with later hours")
    rewriting.run()
    close_hour(rewriting.folders)
    compact_stream(rewriting.folders)
    again = export_stream(rewriting.stream, rewriting.folders)
    assert (len(again.hours_withdrawn), len(again.hours)) == (2, 1)
    assert_same(rewriting)
    promote_and_export(rewriting)


def promote_and_export(rewriting: LocalRuns) -> None:
    """Promote a shadow: it undoes an hour, whose rows return with the hour of the promotion."""
    declared = dataclasses.replace(rewriting.stream, name="again", export=None)
    begin_shadow(rewriting.handle, "again", "1", code="", who="ann", why="off by one")
    rewriting.of(declared).run()
    plan = prepare_promotion(rewriting.handle, "again").plan
    assert plan.copies[0].endswith("their rows return with later hours")
    promote_shadow(rewriting.handle, "again", who="ann", why="off by one")
    plan_now = plan_export(rewriting.stream, rewriting.folders)
    (status,) = read_exports(DeclaredFollowers((rewriting.stream,), (), rewriting.folders.root))
    assert (len(plan_now.undone), status.behind, status.next_run) == (1, 1, "withdraws 1 hour")
    withdrawn = export_stream(rewriting.stream, rewriting.folders)
    hour = plan_now.undone[0]
    assert withdrawn.describe().notes[0].startswith(f"rows of the withdrawn hours {hour} to {hour} are missing")
    close_hour(rewriting.folders)
    compact_stream(rewriting.folders)
    assert len(export_stream(rewriting.stream, rewriting.folders).hours) == 1
    assert_same(rewriting)


def assert_same(runs: LocalRuns) -> None:
    """Assert that the dataset has the rows of the table, whose hours are all closed."""
    found = ds.dataset(runs.folders.export, format="parquet", partitioning="hive").to_table()
    assert count_rows(found.to_pylist()) == count_rows(stored_rows(runs.folders))
