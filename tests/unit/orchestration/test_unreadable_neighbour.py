"""A stream whose files cannot be read fails alone: each other stream has its turn, its figures and its stop."""

from __future__ import annotations

import dataclasses
import errno
from itertools import chain
from typing import TYPE_CHECKING, Final

import pytest
from dagster import DagsterInstance, DagsterRunStatus, build_sensor_context

from lockstep.control.heartbeat import Heartbeat
from lockstep.features.console import watcher
from lockstep.features.health import exporter
from lockstep.features.host.sensor import HostSupervisor
from lockstep.features.host.termination import stop_streams
from lockstep.orchestration.starts import find_starting_runs
from lockstep.storage.local import LocalStorage
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders
from tests.unit.orchestration.test_supervisor_sensor import Supervised

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

pytestmark = pytest.mark.parametrize("method", ["read", "list_names", "get_status"])
"""The method of the storage that fails, at another step of each entry."""
BROKEN: Final = "a_broken_one"
"""Before the other stream, by name and in each list."""


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> Iterator[Supervised]:
    """Return two running streams, and let no file of the first be read."""
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        made = Supervised(tmp_path, instance, BROKEN)
        for stream in (BROKEN, "order_books"):
            made.claim(stream=stream)
            with Heartbeat(StreamFolders(stream, made.folders.root).control, 1, never_ending=True, run_id="before"):
                pass
        read = getattr(LocalStorage, method)

        def refuse(storage: LocalStorage, path: Path, *more: Any) -> object:
            if BROKEN in path.parts:
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return read(storage, path, *more)

        monkeypatch.setattr(LocalStorage, method, refuse)
        for module in (exporter, watcher):
            monkeypatch.setattr(module, "KAFKA_SECONDS_MAX", 0.2)
        yield made


def test_the_supervisor_starts_the_other_stream(supervised: Supervised) -> None:
    found = supervised.looks()
    requests = chain.from_iterable(each.run_requests or () for each in found)
    assert {request.job_name for request in requests} == {"order_books_stream"}


def test_runs_that_start_are_found(supervised: Supervised) -> None:
    run = supervised.run(DagsterRunStatus.STARTED)
    job = supervised.definitions.resolve_job_def(f"{BROKEN}_stream")
    supervised.instance.create_run_for_job(job, status=DagsterRunStatus.STARTED)
    starting = find_starting_runs(supervised.streams, supervised.folders.root, supervised.instance)
    assert starting["order_books"] == run.run_id


def test_the_stop_of_a_host_stops_the_other_stream(supervised: Supervised) -> None:
    run = supervised.run(DagsterRunStatus.STARTED)
    launched = {BROKEN: "", "order_books": ""}
    stop_streams(supervised.folders.root, "books", launched, supervised.instance, run.run_id)
    assert supervised.head.desired is Desired.STOPPED


def test_the_sensor_of_a_host_wants_the_other_stream(supervised: Supervised) -> None:
    hosted = [dataclasses.replace(each, host_group="books") for each in supervised.streams]
    sensor = HostSupervisor("books", hosted, supervised.settings)
    with build_sensor_context(instance=supervised.instance) as context:
        wanted = sensor._read_demand(context)  # noqa: SLF001
    assert wanted.wanted == ("order_books",)


def test_metrics_have_the_other_stream(supervised: Supervised) -> None:
    collector = exporter.HealthCollector(supervised.streams, supervised.settings)
    (quarantined,) = (metric for metric in collector.collect() if metric.name == "lockstep_quarantine_size")
    found = {sample.labels["stream"]: sample.value for sample in quarantined.samples}
    assert found["order_books"] == 0.0


def test_the_page_has_the_other_stream_and_the_reason(supervised: Supervised) -> None:
    page = watcher.ConsoleWatcher(supervised.streams, supervised.settings)
    with page.watching(BROKEN), page.watching("order_books"):
        page.poll_writers()
        page.poll_tables()
    cards = {card.name: card for card in page.list_cards(0.0)}
    assert cards["order_books"].committed_at is not None
    assert "Permission denied" in cards[BROKEN].reason
