"""A savepoint is exported from a table root, and the stream continues with it in another root."""

from __future__ import annotations

import dataclasses
import re
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import Topics
from lockstep.errors import TableError
from lockstep.features.copies import relocate
from lockstep.features.copies.copied_files import CopyDamaged, CopyInProgress, lock_copy
from lockstep.features.copies.relocate import export_savepoint, import_savepoint, prepare_import
from lockstep.features.history.rewind import RewindReason, rewind_stream
from lockstep.features.history.savepoint import drop_named_savepoint, make_savepoint
from lockstep.features.history.shadow import list_shadows
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.kafka.consumer_group import ConsumerGroup
from lockstep.model.position import TopicNamePartition
from lockstep.operations.past_batches import NotRewindable
from lockstep.operations.plan_frame import Refused
from lockstep.progress import send_progress
from lockstep.state.codec import StateTypeChanged
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import make_entry_path
from lockstep.table.ledger import read_ledger
from lockstep.verify.report import ViolationKind
from lockstep.verify.verify import verify_stream
from tests.integration.cli.conftest import ROOT, platform_in
from tests.support.evolving_streams import Unmigrated, release
from tests.support.feed import folded, session
from tests.support.meter_stream import Read, Start, reordered
from tests.support.plain_reader import read_table

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from lockstep.features.copies.relocate import SavepointImported
    from lockstep.features.localdev.broker import Broker
    from tests.support.feed import Feed
    from tests.support.local_runs import LocalRuns

NAME = "before-release"


def elsewhere(runs: LocalRuns, folder: Path) -> LocalRuns:
    """Return the same stream with another table root."""
    return dataclasses.replace(runs, root=folder, reports=[])


def import_into(runs: LocalRuns, folder: Path, *, accept_expired: bool = False) -> SavepointImported:
    return import_savepoint(runs.handle, folder, who="ann", why="the new disk", accept_expired=accept_expired)


def expected(values: list[bytes], since: int = 0) -> list[tuple[object, ...]]:
    """Return the rows of the fold from an offset on."""
    whole = folded([(offset, "s", value) for offset, value in enumerate(values)])
    return [row for row in whole if int(str(row[0])) >= since]


def prove(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)


def kinds(refused: pytest.ExceptionInfo[Refused]) -> list[str]:
    return [each.kind for each in refused.value.obstacles]


@pytest.fixture
def exported(feed: Feed, runs: LocalRuns, tmp_path: Path) -> Path:
    """An exported savepoint of batch 2 of three, of two messages each."""
    topic = feed.create("values")
    values = session(6)
    for at in (0, 2, 4):
        feed.send(topic, values[at : at + 2])
        runs.run()
    make_savepoint(runs.folders, NAME, who="ann", why="version 2", at="2")
    export_savepoint(runs.handle, NAME, tmp_path / "export")
    return tmp_path / "export"


def test_a_stream_goes_on_in_another_root_from_where_its_savepoint_stood(
    exported: Path, runs: LocalRuns, feed: Feed, tmp_path: Path
) -> None:
    other = elsewhere(runs, tmp_path / "new")
    topic = f"{feed.family}.values"
    values = session(8)
    noted = list[tuple[str, int, int]]()
    with send_progress(lambda *progress: noted.append(progress)):
        import_into(other, exported)
    assert noted[-1] == ("copying state of partitions", 1, 1)
    assert [path.name for path in other.folders.root.iterdir()] == ["adding"]
    assert ConsumerGroup(runs.settings.kafka, "adding").published([TopicNamePartition(topic, 0)]) == {
        TopicNamePartition(topic, 0): 4
    }
    assert [row.lifecycle for row in read_ledger(other.folders.ledger)] == ["imported"]
    prove(other)
    feed.send(topic, values[6:])
    other.run()
    assert other.rows(topic) == expected(values, since=4)
    prove(other)
    assert list_shadows("adding", other.folders.root) == ()
    with pytest.raises(NotRewindable):
        rewind_stream(other.handle, "0", who="ann", why="to before the import")
    rewind_stream(other.handle, "1", who="ann", why="to the import")
    other.run()
    assert other.rows(topic) == expected(values, since=4)
    prove(other)


def test_a_message_that_was_buffered_before_the_savepoint_and_is_quarantined_after_it_is_proven(
    runs: LocalRuns, feed: Feed, tmp_path: Path
) -> None:
    topic = feed.create("values")
    runs = runs.of(dataclasses.replace(reordered, topics=Topics(pattern=feed.pattern)))
    feed.send(topic, map(msgspec.json.encode, (Start(1, 0), Read(3, 20, -1))))
    runs.run()
    make_savepoint(runs.folders, NAME, who="ann", why="version 2")
    export_savepoint(runs.handle, NAME, tmp_path / "export")
    other = elsewhere(runs, tmp_path / "new")
    import_into(other, tmp_path / "export")
    feed.send(topic, [msgspec.json.encode(Read(4, 100, 1))])
    other.run()
    assert [row["offset"] for row in read_table(other.folders.quarantine).to_pylist()] == [1, 2]
    prove(other)


def test_the_command_line_plans_exports_and_imports(broker: Broker, tmp_path: Path) -> None:
    made = platform_in(tmp_path, broker)
    values = session(4)
    folder = str(tmp_path / "export")
    topic = made.feed.create("values")
    made.feed.send(topic, values[:3])
    made.runs.run()
    assert made.call("savepoint", "make", "adding", NAME, "--why", "version 2").exit_code == 0
    made.feed.send(topic, values[3:])
    planned = msgspec.json.decode(made.call("savepoint", "export", "adding", NAME, folder, "--plan", "--json").stdout)
    assert (planned["batch"], planned["partitions"], planned["plan_only"]) == (1, 1, True)
    assert not (tmp_path / "export").exists()
    said = made.call("savepoint", "export", "adding", NAME, folder)
    assert re.search(r"savepoint +before-release\n +batch +1\n +partitions +1\n", said.stdout), said.output
    root = tmp_path / "new"
    made.environment["LOCKSTEP_TABLE_ROOT"] = str(root)
    shown = made.call("savepoint", "import", "adding", folder, "--plan")
    assert "nothing refuses it" in shown.stdout, shown.output
    assert not root.exists()
    done = msgspec.json.decode(
        made.call("savepoint", "import", "adding", folder, "--why", "new disk", "--yes", "--json").stdout
    )
    assert (done["plan"]["to_read"], done["published"]) == (2, True)
    assert "savepoint imported" in made.call("history", "adding").stdout
    assert made.call("verify", "adding").exit_code == 0
    again = made.call("savepoint", "import", "adding", folder, "--yes")  # as after a kill behind its last step
    assert again.exit_code == 1
    assert "started with this savepoint already: new disk (" in again.stderr
    assert "next: lockstep verify adding, then lockstep start adding" in again.stderr


def test_an_export_that_is_not_whole_is_refused_by_name_and_leaves_nothing(
    exported: Path, runs: LocalRuns, tmp_path: Path
) -> None:
    other = elsewhere(runs, tmp_path / "new")
    state = next(exported.rglob("*.state"))
    kept = state.read_bytes()
    state.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(CopyDamaged, match="not as it was written"):
        import_into(other, exported)
    state.unlink()
    with pytest.raises(CopyDamaged, match="gone from the export"):
        prepare_import(other.handle, exported)
    state.write_bytes(kept)
    manifest = (exported / "manifest.json").read_text()
    digest = msgspec.json.decode(manifest)["digest"]
    (exported / "manifest.json").write_text(manifest.replace(digest, "0" * 64))
    with pytest.raises(CopyDamaged, match="not those of the manifest"):
        import_into(other, exported)
    (exported / "manifest.json").write_text(manifest.replace('"adding"', '"other"'))
    with pytest.raises(CopyDamaged, match="a savepoint of stream other"):
        import_into(other, exported)
    (exported / "manifest.json").unlink()
    with pytest.raises(CopyDamaged, match=r"there is no manifest\.json"):
        import_into(other, exported)
    assert not other.folders.root.exists() or list(other.folders.root.iterdir()) == []


def test_what_does_not_agree_refuses_an_import_by_name(
    exported: Path, runs: LocalRuns, feed: Feed, tmp_path: Path
) -> None:
    other = elsewhere(runs, tmp_path / "new")
    topic = f"{feed.family}.values"
    with pytest.raises(StateTypeChanged):
        prepare_import(other.of(release(feed.pattern, Unmigrated())).handle, exported)
    with pytest.raises(Refused, match="something already") as refused:
        import_into(runs, exported)
    assert kinds(refused) == [RewindReason.TABLE]
    feed.expire(topic, until=5)
    with pytest.raises(Refused, match=rf"{topic}/0: expected offset 4, found log start 5") as refused:
        import_into(other, exported)
    assert kinds(refused) == [RewindReason.EXPIRED]
    assert "--accept-expired" in refused.value.next_step
    feed.delete(topic)
    with pytest.raises(Refused, match="no such topic") as refused:
        import_into(other, exported, accept_expired=True)
    assert kinds(refused) == [RewindReason.TOPIC]
    feed.create_again("values")
    with pytest.raises(Refused, match="found topic id") as refused:
        import_into(other, exported)
    assert kinds(refused) == [RewindReason.TOPIC]
    assert not other.folders.root.exists() or list(other.folders.root.iterdir()) == []


def test_an_export_needs_a_savepoint_its_state_and_a_folder_of_its_own(
    exported: Path, runs: LocalRuns, tmp_path: Path
) -> None:
    with pytest.raises(TableError, match="no savepoint"):
        export_savepoint(runs.handle, "unknown", tmp_path / "other")
    with pytest.raises(CopyDamaged, match="there is an export or a backup already"):
        export_savepoint(runs.handle, NAME, exported)
    with lock_copy(tmp_path / "other"), pytest.raises(CopyInProgress):
        export_savepoint(runs.handle, NAME, tmp_path / "other")
    drop_named_savepoint(runs.folders, NAME, who="ann", why="exported")
    with pytest.raises(TableError, match="no savepoint"):
        export_savepoint(runs.handle, NAME, tmp_path / "other")
    other = elsewhere(runs, tmp_path / "new")
    import_into(other, exported)
    other.run()
    prove(other)


def test_an_export_does_not_replace_one_that_ended_just_before_it(
    exported: Path, runs: LocalRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lock_late(folder: Path) -> AbstractContextManager[None]:
        shutil.copytree(exported, folder)
        return lock_copy(folder)

    monkeypatch.setattr(relocate, "lock_copy", lock_late)
    with pytest.raises(CopyDamaged, match="there is an export or a backup already"):
        export_savepoint(runs.handle, NAME, tmp_path / "other")


def test_expired_messages_are_left_to_the_class_where_the_operator_says_so(
    exported: Path, runs: LocalRuns, feed: Feed, tmp_path: Path
) -> None:
    feed.expire(f"{feed.family}.values", until=5)
    other = elsewhere(runs, tmp_path / "new")
    import_into(other, exported, accept_expired=True)
    with pytest.raises(IntegrityLost, match="expired unread"):
        other.run()


def test_the_proof_finds_another_state_than_the_imported_one(exported: Path, runs: LocalRuns, tmp_path: Path) -> None:
    other = elsewhere(runs, tmp_path / "new")
    import_into(other, exported)
    other.run()
    head = OutputLog(other.folders.table).base().head
    assert head.imported is not None
    entry = make_entry_path(other.folders.table, OutputLog(other.folders.table).base().version)
    entry.write_text(entry.read_text().replace(head.imported.digest, "0" * 64))
    report = verify_stream(other.stream, other.folders, other.settings.kafka)
    assert {each.kind for each in report.violations} == {ViolationKind.ORIGIN_DIFFERS}


KILLED = """
import os, signal, sys
from pathlib import Path
from lockstep.features.copies import relocate
from lockstep.storage import LocalStorage
from tests.support.adding_stream import adding
from tests.support.local_runs import LocalRuns
servers, root, pattern, folder, verb, moment = sys.argv[1:]
def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
places = {"positions": (relocate, "write_manifest"), "evidence": (relocate, "collect_evidence"),
    "commit": (relocate, "commit_first_batch"), "ledger": (relocate.side_tables.SideLogs, "catch_up"),
    "move": (LocalStorage, "move"), "offsets": (relocate, "publish_positions")}
setattr(*places[moment], die)
runs = LocalRuns(adding(pattern), servers, Path(root))
if verb == "export":
    relocate.export_savepoint(runs.handle, "before-release", Path(folder))
else:
    relocate.import_savepoint(runs.handle, Path(folder), who="a test", why="to be killed")
"""


def kill(runs: LocalRuns, feed: Feed, folder: Path, verb: str, moment: str) -> None:
    arguments = (feed.bootstrap_servers, str(runs.root), feed.pattern, str(folder), verb, moment)
    died = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert died.returncode == -signal.SIGKILL, died.stderr


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["positions", "evidence"])
def test_an_export_that_is_killed_passes_for_nothing_and_is_made_again(
    exported: Path, runs: LocalRuns, feed: Feed, tmp_path: Path, moment: str
) -> None:
    folder = tmp_path / "again"
    other = elsewhere(runs, tmp_path / "new")
    kill(runs, feed, folder, "export", moment)
    with pytest.raises(CopyDamaged, match=r"there is no manifest\.json"):
        import_into(other, folder)
    with pytest.raises(CopyDamaged, match="files or folders are in it"):
        export_savepoint(runs.handle, NAME, folder)
    shutil.rmtree(folder)
    export_savepoint(runs.handle, NAME, folder)
    assert len(list((folder / "files").rglob("*.*"))) == len(list((exported / "files").rglob("*.*")))
    import_into(other, folder)
    prove(other)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["commit", "ledger", "move", "offsets"])
def test_an_import_that_is_killed_has_happened_or_not(
    exported: Path, runs: LocalRuns, feed: Feed, tmp_path: Path, moment: str
) -> None:
    other = elsewhere(runs, tmp_path / "new")
    kill(other, feed, exported, "import", moment)
    assert other.folders.table.parent.exists() is (moment == "offsets")
    if moment != "offsets":
        import_into(other, exported)
    assert [path.name for path in other.folders.root.iterdir()] == ["adding"]
    prove(other)
    other.run()
    assert other.rows(f"{feed.family}.values") == expected(session(6)[:6], since=4)
    prove(other)
