"""A store that does not answer: the token in the log decides whether the commit landed, never a blind retry."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.errors import CommitUnknown, Fenced, NotCommitted
from lockstep.storage import local
from lockstep.table import ledger
from lockstep.table.commit import OutputLog, commit_claim
from lockstep.table.delta_log import create_entry, make_entry_path
from lockstep.table.side_tables import SideLog
from tests.support.protocol_run import ProtocolRun, anything, entries, folders_in, stored_offsets

if TYPE_CHECKING:
    from lockstep.table.delta_log import CreateEntry
    from lockstep.table.layout import StreamFolders


def loses_answers(path: Path, content: bytes) -> None:
    """Write the entry, and break the connection before the answer."""
    create_entry(path, content)
    raise OSError("connection reset by peer")


def answers_that_it_failed(path: Path, content: bytes) -> None:
    """Write the entry, and fail as a retry inside the store's client that meets its own entry."""
    create_entry(path, content)
    raise FileExistsError(path)


class LosesRequests:
    """A request that does not arrive in time, but may arrive later."""

    late: tuple[Path, bytes] | None = None
    requests = 0

    def __call__(self, path: Path, content: bytes) -> None:
        self.late = (path, content)
        self.requests += 1
        raise OSError("timed out")

    def arrives(self) -> None:
        """Deliver the late request."""
        assert self.late is not None
        create_entry(*self.late)


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    folders = folders_in(tmp_path)
    ProtocolRun(folders)
    return folders


@pytest.mark.parametrize("create", [loses_answers, answers_that_it_failed])
def test_a_commit_whose_answer_is_lost_has_landed_once(folders: StreamFolders, create: CreateEntry) -> None:
    run = ProtocolRun(folders, OutputLog(folders.table, create))
    assert run.claim().epoch == 1
    run.batch()
    run.batch()
    assert stored_offsets(folders) == [0, 1, 2, 3]
    assert [entry.kind for entry in entries(folders)] == ["create", "claim", "batch", "batch"]


@pytest.mark.parametrize("create", [loses_answers, answers_that_it_failed])
def test_an_addition_to_a_side_table_whose_answer_is_lost_is_there_once(
    folders: StreamFolders, create: CreateEntry
) -> None:
    run = ProtocolRun(folders)
    run.claim()
    head = run.commit(run.prepared()).head
    assert head.ledger is not None
    side = SideLog(folders.ledger, create)
    assert side.catch_up([head.ledger], 1, after=0)
    assert not side.catch_up([head.ledger], 1, after=0)
    assert [row.batch for row in ledger.read_ledger(folders.ledger)] == [1]


def test_an_addition_to_a_side_table_that_nobody_answers_for_is_found_by_the_next_attempt(
    folders: StreamFolders,
) -> None:
    run = ProtocolRun(folders)
    run.claim()
    head = run.commit(run.prepared()).head
    assert head.ledger is not None
    lossy = LosesRequests()
    with pytest.raises(CommitUnknown, match=r"no answer whether version 1 was written: timed out"):
        SideLog(folders.ledger, lossy).catch_up([head.ledger], 1, after=0)
    lossy.arrives()
    assert not SideLog(folders.ledger).catch_up([head.ledger], 1, after=0)
    assert [row.batch for row in ledger.read_ledger(folders.ledger)] == [1]


def test_a_commit_that_nobody_answers_for_ends_the_run(folders: StreamFolders) -> None:
    run, lossy = lossy_run(folders)
    with pytest.raises(CommitUnknown) as unknown:
        run.commit(run.prepared())
    assert unknown.value.problem == f"{folders.table}: no answer whether version 2 was written: timed out"
    assert unknown.value.next_step == "start the stream again: the next claim finds out"
    assert lossy.requests == 1  # a second request could land besides the first, which may arrive late
    assert stored_offsets(folders) == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free space on the table root"),
        (errno.EROFS, "make the table root writable"),
        (errno.EIO, "lockstep doctor checks the table root: correct what it reports"),
    ],
)
def test_a_commit_that_the_storage_does_not_take_is_known_not_to_be_there(
    folders: StreamFolders, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    run = ProtocolRun(folders)
    run.claim()
    prepared = run.prepared()

    def refuse(descriptor: int) -> None:
        del descriptor
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(NotCommitted) as refused:
            run.commit(prepared)
    assert refused.value.problem == f"{folders.table}: version 2 was not written: {os.strerror(number)}"
    assert refused.value.next_step == f"{remedy}, then repeat the command"
    assert run.commit(prepared).version == 2


@pytest.mark.parametrize("create", [create_entry, loses_answers, answers_that_it_failed])
def test_a_commit_is_on_the_disk_before_anybody_is_told_of_it(
    folders: StreamFolders, monkeypatch: pytest.MonkeyPatch, create: CreateEntry
) -> None:
    """If only the page cache had the entry, rows that were seen could change after a power failure."""
    run = ProtocolRun(folders, OutputLog(folders.table, create))
    run.claim()
    prepared = run.prepared()
    synced = set[Path]()
    monkeypatch.setattr(local, "_sync", synced.add)
    landed = run.commit(prepared)
    entry = make_entry_path(folders.table, landed.version)
    assert {entry, entry.parent} <= synced


def test_the_next_claim_finds_a_commit_that_arrived_late(folders: StreamFolders) -> None:
    run, lossy = lossy_run(folders)
    with pytest.raises(CommitUnknown):
        run.commit(run.prepared(rows=3))
    lossy.arrives()
    successor = ProtocolRun(folders)
    assert (successor.claim().batch, successor.next_offset()) == (1, 3)
    assert stored_offsets(folders) == [0, 1, 2]


def test_a_commit_that_arrives_after_the_next_claim_is_refused(folders: StreamFolders) -> None:
    run, lossy = lossy_run(folders)
    with pytest.raises(CommitUnknown):
        run.commit(run.prepared())
    successor = ProtocolRun(folders)
    assert successor.claim().batch == 0
    with pytest.raises(FileExistsError):
        lossy.arrives()
    successor.batch(rows=5)
    assert stored_offsets(folders) == [0, 1, 2, 3, 4]


def test_a_lost_answer_to_a_lost_race_is_a_lost_race(folders: StreamFolders) -> None:
    """The entry exists, with another token."""
    rival = ProtocolRun(folders)

    class Overtaken(LosesRequests):
        """A rival's claim lands while the request is lost."""

        def __call__(self, path: Path, content: bytes) -> None:
            if rival.head.epoch == 0:
                rival.claim()
            super().__call__(path, content)

    output = OutputLog(folders.table, Overtaken())
    with pytest.raises(Fenced):
        output.commit(commit_claim(0, output.table_id, anything))


def lossy_run(folders: StreamFolders) -> tuple[ProtocolRun, LosesRequests]:
    """Return a run that claimed over a good connection, which then failed, and the failing connection."""
    good = ProtocolRun(folders)
    good.claim()
    lossy = LosesRequests()
    return ProtocolRun(folders, OutputLog(folders.table, lossy)), lossy
