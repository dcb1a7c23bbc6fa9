"""A killed rebuild is named by status and start, and completed by the next rebuild."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from lockstep.delivery import TargetRefused
from lockstep.features.delivery.deliver import run_delivery
from lockstep.features.delivery.rebuild import RebuildMethod, prepare_rebuild
from lockstep.features.delivery.status import plan_delivery
from lockstep.features.delivery.stop_order import is_stopped, read_order, start_delivery, stop_delivery
from lockstep.settings import Settings
from lockstep.verify.report import InvariantStatus
from tests.features.delivery import killed_rebuild
from tests.features.delivery.postgres_rows import VARIABLE, prove, read_rows
from tests.features.delivery.receiver import AUTHORIZATION, SECRET, URL, receiving
from tests.support.kept_stream import keeping, script
from tests.support.offline_rewind import rewind
from tests.support.offline_stream import Offline
from tests.support.plain_reader import read_table
from tests.support.postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.features.delivery.rebuild import TargetRebuilt
    from tests.features.delivery.receiver import Receiver


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres.start() as server:
        yield server


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    with receiving() as server:
        monkeypatch.setenv(URL, server.url)
        monkeypatch.setenv(AUTHORIZATION, SECRET)
        yield server


@pytest.fixture
def offline(tmp_path: Path) -> Offline:
    """Tables of a stream with four batches and four rows."""
    made = Offline(keeping(), tmp_path)
    (tmp_path / "tables").mkdir()
    made.run(*script())
    return made


class Killed:
    """A delivery whose rebuild is killed at some steps."""

    def __init__(self, offline: Offline, kind: str) -> None:
        self.declared = killed_rebuild.declare(str(offline.root), kind)
        self.settings = Settings(table_root=offline.folders.root)
        self.root = offline.folders.root
        self.name = self.declared.delivery.name
        self._offline = offline
        self._kind = kind

    def deliver(self) -> int:
        return run_delivery(self.declared, self.settings, stop=threading.Event()).rows

    def kill(self, *steps: str, replaces: bool) -> None:
        """Rebuild and die at each step."""
        arguments = (str(self._offline.root), self._kind, "yes" if replaces else "", ",".join(steps))
        command = [sys.executable, "-m", "tests.features.delivery.killed_rebuild", *arguments]
        done = subprocess.run(command, check=True, timeout=150, stdout=subprocess.PIPE, text=True)
        assert done.stdout.split() == ["-9"] * len(steps)

    def resume(self, method: RebuildMethod) -> TargetRebuilt:
        """Complete the rebuild without its options, after status and start have named it."""
        assert "a rebuild that has not ended" in plan_delivery(self.declared, self.root).next_run
        with pytest.raises(TargetRefused, match="has not ended") as refused:
            start_delivery(self.root, self.name, 0)
        assert f"lockstep delivery rebuild {self.name} ends it" in refused.value.next_step
        assert self.deliver() == 0
        prepared = prepare_rebuild(self.declared, self.settings)
        assert (prepared.plan.resumes, prepared.plan.method) == (True, method)
        return prepared.commit()


@pytest.mark.slow
def test_a_killed_replacement_of_a_table_is_ended_by_name(
    postgres: Postgres, offline: Offline, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.make_database("killed")
    monkeypatch.setenv(VARIABLE, url)
    killed = Killed(offline, "appended")
    killed.deliver()
    killed.kill(*killed_rebuild.STEPS, replaces=True)
    assert killed.resume(RebuildMethod.REPLACE).rows == 4
    assert (len(read_rows(url)), is_stopped(killed.root, killed.name)) == (4, False)
    assert prove(offline, killed.declared).status is InvariantStatus.PROVEN


@pytest.mark.parametrize("step", [pytest.param("ordered", marks=pytest.mark.slow), "committed", "positioned"])
def test_a_killed_retraction_is_ended_also_if_it_was_done(
    postgres: Postgres, offline: Offline, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    url = postgres.make_database("killed")
    monkeypatch.setenv(VARIABLE, url)
    killed = Killed(offline, "appended")
    killed.deliver()
    rewind(offline, 2)
    left = [row["_number"] for row in read_rows(url) if row["_batch"] <= 2]  # the batches before the rewind
    killed.kill(step, replaces=False)
    assert killed.resume(RebuildMethod.RETRACT).deleted == (4 - len(left) if step == "ordered" else 0)
    assert [row["_number"] for row in read_rows(url)] == left
    killed.deliver()
    assert prove(offline, killed.declared).status is InvariantStatus.PROVEN


def test_a_killed_repetition_of_a_webhook_is_ended_by_name(receiver: Receiver, offline: Offline) -> None:
    killed = Killed(offline, "webhook")
    killed.deliver()
    receiver.arrivals.clear()
    killed.kill(*killed_rebuild.STEPS, replaces=False)
    assert killed.resume(RebuildMethod.REPEAT).rows == 4
    assert len(set(receiver.list_ids())) == read_table(offline.folders.table).num_rows == 4
    assert not is_stopped(killed.root, killed.name)
    assert killed.deliver() == 0


@pytest.mark.slow
def test_a_killed_rebuild_can_be_given_up_and_a_stopped_delivery_stays_stopped(
    receiver: Receiver, offline: Offline
) -> None:
    killed = Killed(offline, "webhook")
    killed.deliver()
    killed.kill("claimed", replaces=False)
    assert stop_delivery(killed.root, killed.name, 0)
    killed.kill("claimed", replaces=False)
    killed.resume(RebuildMethod.REPEAT)
    order = read_order(killed.root, killed.name)
    assert order is not None
    assert order.rebuild is None
    assert start_delivery(killed.root, killed.name, 0)
    assert killed.deliver() == 0
    assert len(set(receiver.list_ids())) == 4
