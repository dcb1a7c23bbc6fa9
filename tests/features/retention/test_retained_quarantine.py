"""Retention drops quarantined messages during all other operations on a stream, with a real broker."""

from __future__ import annotations

import dataclasses
import shutil
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from typer.testing import CliRunner

from lockstep import Ordered
from lockstep.cli.__main__ import app
from lockstep.features.copies.backup import make_backup, restore_backup
from lockstep.features.copies.rebuild import rebuild_state
from lockstep.features.erase.erase import EraseContext, EraseRequest, erase_session
from lockstep.features.history.promote import prepare_promotion
from lockstep.features.history.rewind import rewind_stream
from lockstep.features.history.shadow import begin_shadow, name_shadow
from lockstep.features.retention import messages as retain_quarantine
from lockstep.features.retention.commit_kinds import QUARANTINE_RETENTION
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.features.retention.messages import drop_old_messages
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.plan_frame import Refused
from lockstep.operations.stream_table import open_table
from lockstep.table import ledger
from lockstep.table.commit import Proposal
from lockstep.table.head import QuarantineRetention
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import InvariantStatus
from lockstep.verify.verify import verify_stream
from tests.features.retention.killed_retention import KINDS
from tests.support.adding_stream import POISON, adding
from tests.support.feed import snapshot, update
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import named_files, read_table
from tests.support.tiers import keep_usual

if TYPE_CHECKING:
    from lockstep.table.head import Head
    from lockstep.verify.report import VerifyReport
    from tests.support.feed import Feed

ROOT = Path(__file__).parents[3]
HOUR = timedelta(hours=1)


@pytest.fixture
def hours(feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalRuns:
    """Four hours of one batch each: a raising message, a later message of its session, a message of another session."""
    topic = feed.create("values")
    began = ledger.read_clock()
    runs = LocalRuns(adding(feed.pattern, Ordered()), feed.bootstrap_servers, tmp_path / "runs")
    for number in range(4):
        monkeypatch.setattr(ledger, "read_clock", lambda hours=number: began + hours * HOUR)
        send(feed, topic, number)
        runs.run()
        close_hour(runs.folders)
    newest = head_of(runs).hour
    monkeypatch.setattr(retain_quarantine, "find_current_hour", lambda: newest)
    return runs


def send(feed: Feed, topic: str, number: int) -> None:
    feed.send(topic, [snapshot(1, a=1), update(2, a=POISON), update(3, a=1)], key=f"s{number}")
    feed.send(topic, [snapshot(1, a=1), update(2, a=1)], key="good")


def head_of(runs: LocalRuns) -> Head:
    return open_table(runs.folders).base().head


def read_batches(runs: LocalRuns, folders: StreamFolders | None = None) -> list[int]:
    quarantine = (folders or runs.folders).quarantine
    rows = read_table(quarantine).select(["batch"]).to_pylist() if named_files(quarantine) else []
    return sorted(row["batch"] for row in rows)


def proof(runs: LocalRuns, folders: StreamFolders | None = None) -> VerifyReport:
    report = verify_stream(runs.stream, folders or runs.folders, runs.settings.kafka)
    assert report.violations == ()
    assert report.status is InvariantStatus.PROVEN, report.notes
    return report


@pytest.mark.parametrize("moment", keep_usual(("before the removal",), KINDS))
def test_a_killed_retention_is_proven_at_any_moment_and_completed_by_housekeeping(
    hours: LocalRuns, feed: Feed, moment: str
) -> None:
    folders = hours.folders
    command = [sys.executable, "-m", "tests.features.retention.killed_retention"]
    arguments = [str(folders.root), folders.stream, head_of(hours).hour, "1", moment]
    killed = subprocess.run([*command, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)  # our own
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    dropped = {"before the head": 0, "inside the head": 2, "before the removal": 2, "inside the removal": 2}[moment]
    assert head_of(hours).quarantine_dropped_up_to == dropped
    left = [3, 3, 4, 4] if moment == "inside the removal" else [1, 1, 2, 2, 3, 3, 4, 4]
    assert read_batches(hours) == left
    report = proof(hours)
    assert any("await their removal" in note for note in report.notes) == (dropped > 0 and len(left) > 4)
    declared = dataclasses.replace(hours.stream, quarantine_retention=HOUR)
    run_housekeeping(folders, retention_seconds=72 * 3600, stream=declared)
    assert read_batches(hours) == [3, 3, 4, 4]
    send(feed, feed.create("more"), 9)
    hours.run()
    report = proof(hours)
    text = "4 quarantined and 0 late messages of batches up to 2 were dropped by retention, as the ledger counts them"
    assert any(text in scope.note for scope in report.scopes)
    assert sum(read_table(folders.ledger)["quarantined"].to_pylist()) == 10  # type: ignore[arg-type]  # never null


def test_copies_rewinds_and_erasures_after_a_retention_are_proven(hours: LocalRuns, feed: Feed, tmp_path: Path) -> None:
    done = drop_old_messages(hours.folders, HOUR, cause="a test").retention
    make_backup(hours.folders, tmp_path / "backup")
    restored = StreamFolders(hours.folders.stream, tmp_path / "restored")
    restore_backup(restored, tmp_path / "backup")
    assert read_batches(hours, restored) == [3, 3, 4, 4]
    proof(hours, restored)
    erase_session(hours.folders, EraseRequest(session="s1", drop_state=True), EraseContext(), who="ann", why="a test")
    assert (head_of(hours).quarantine_retention, read_batches(hours)) == (done, [3, 3, 4, 4])
    proof(hours)
    send(feed, feed.create("more"), 9)
    hours.run()
    proof(hours)
    rewind_stream(hours.handle, "5", who="ann", why="a test")
    assert head_of(hours).quarantine_retention == done
    hours.run()
    proof(hours)


def test_lost_state_is_rebuilt_unless_a_dropped_message_cannot_be_judged_again(hours: LocalRuns) -> None:
    drop_old_messages(hours.folders, HOUR, cause="a test")
    shutil.rmtree(hours.folders.state)
    hours.folders.state.mkdir()
    dropped = head_of(hours).quarantine_retention
    assert dropped is not None
    state_unknown(hours, msgspec.structs.replace(dropped, unknown_up_to=2))
    with pytest.raises(Refused, match="batch 1 quarantined 2 messages that retention has dropped"):
        rebuild_state(hours.handle)
    state_unknown(hours, dropped)
    assert rebuild_state(hours.handle).files
    proof(hours)


def state_unknown(runs: LocalRuns, dropped: QuarantineRetention) -> None:
    """Record the retention in the head."""
    open_table(runs.folders).commit(
        Proposal(
            kind=QUARANTINE_RETENTION,
            next_head=lambda base: msgspec.structs.replace(base.head, quarantine_retention=dropped),
        )
    )


def test_a_shadow_whose_messages_were_dropped_is_not_promoted(hours: LocalRuns, feed: Feed) -> None:
    begin_shadow(hours.handle, "candidate", "1", code="", who="ann", why="a test")
    shadow = hours.of(name_shadow(hours.stream, "candidate"))
    send(feed, feed.create("more"), 8)
    shadow.run()
    close_hour(shadow.folders)
    send(feed, feed.create("most"), 9)
    shadow.run()
    state_unknown(shadow, QuarantineRetention(hour="2026-01-01T00", batch=1, at=0.0, cause="a test"))
    obstacles = prepare_promotion(hours.handle, "candidate").plan.obstacles
    assert any("has dropped messages of quarantine and late table" in each.problem for each in obstacles)


def test_the_command_shows_what_goes_and_drops_it(hours: LocalRuns, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.features.retention.commands.find_folders", lambda _: hours.folders)
    monkeypatch.setattr("lockstep.features.retention.commands.timedelta", lambda days: timedelta(hours=days))
    arguments = ["expire", "adding", "--days", "1", "--quarantine"]
    shown = CliRunner().invoke(app, [*arguments, "--plan"]).stdout
    assert "messages to drop" in shown
    assert read_batches(hours) == [1, 1, 2, 2, 3, 3, 4, 4]
    shown = CliRunner().invoke(app, [*arguments, "--why", "a test", "--yes"]).stdout
    assert "adding: messages dropped" in shown
    assert read_batches(hours) == [3, 3, 4, 4]
