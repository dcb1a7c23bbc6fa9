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

BROKEN: Final = "a_broken_one"
"""Before the other stream, by name and in each list."""


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervised]:
    """Return two running streams."""
    with DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        made = Supervised(tmp_path, instance, BROKEN)
        for stream in (BROKEN, "order_books"):
            made.claim(stream=stream)
            with Heartbeat(StreamFolders(stream, made.folders.root).control, 1, never_ending=True, run_id="before"):
                pass
        for module in (exporter, watcher):
            monkeypatch.setattr(module, "KAFKA_SECONDS_MAX", 0.2)
        yield made


@pytest.fixture(params=["read", "list_names", "get_status"])
def supervised(running: Supervised, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Supervised:
    """Let a method of the storage fail for the first stream: at another step of each entry."""
    method = request.param
    read = getattr(LocalStorage, method)

    def refuse(storage: LocalStorage, path: Path, *more: Any) -> object:
        if BROKEN in path.parts:
            raise make_refusal(path)
        return read(storage, path, *more)

    monkeypatch.setattr(LocalStorage, method, refuse)
    return running


def make_refusal(path: Path) -> PermissionError:
    return PermissionError(errno.EACCES, "Permission denied", str(path))


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
    assert read_wanted(supervised) == ("order_books",)


def test_a_request_that_cannot_be_read_is_of_its_stream_alone(
    running: Supervised, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.claim(Desired.STOPPED, stream=BROKEN)

    def refuse(folders: StreamFolders, _: object) -> None:
        raise make_refusal(folders.control)

    monkeypatch.setattr("lockstep.features.host.sensor.read_start_request", refuse)
    assert read_wanted(running) == ("order_books",)


def read_wanted(supervised: Supervised) -> tuple[str, ...]:
    """Return the streams that the sensor of a host wants to run."""
    hosted = [dataclasses.replace(each, host_group="books") for each in supervised.streams]
    sensor = HostSupervisor("books", hosted, supervised.settings)
    with build_sensor_context(instance=supervised.instance) as context:
        return sensor._read_demand(context).wanted  # noqa: SLF001


def test_metrics_have_the_other_stream(supervised: Supervised) -> None:
    collector = exporter.HealthCollector(supervised.streams, supervised.settings)
    (quarantined,) = (metric for metric in collector.collect() if metric.name == "lockstep_quarantine_size")
    found = {sample.labels["stream"]: sample.value for sample in quarantined.samples}
    assert found["order_books"] == 0.0


def test_rates_that_cannot_be_read_hide_no_other_metric(running: Supervised, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(control: Path, _: int) -> None:
        raise make_refusal(control)

    monkeypatch.setattr(exporter, "read_live_report", refuse)
    stream = running.streams[0].name
    control = StreamFolders(stream, running.folders.root).control
    with Heartbeat(control, running.head.epoch, never_ending=True):
        collector = exporter.HealthCollector(running.streams, running.settings)
        metrics = {metric.name: metric for metric in collector.collect()}
    (up,) = (sample.value for sample in metrics["lockstep_up"].samples if sample.labels["stream"] == stream)
    quarantined = {sample.labels["stream"] for sample in metrics["lockstep_quarantine_size"].samples}
    assert (up, stream in quarantined) == (1.0, True)


def test_the_page_has_the_other_stream_and_the_reason(supervised: Supervised) -> None:
    page = watcher.ConsoleWatcher(supervised.streams, supervised.settings)
    with page.watching(BROKEN), page.watching("order_books"):
        page.poll_writers()
        page.poll_tables()
    cards = {card.name: card for card in page.list_cards(0.0)}
    assert cards["order_books"].committed_at is not None
    assert "Permission denied" in cards[BROKEN].reason
