"""A real object store for this folder's tests, set by environment variables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.features.localdev.processes import find_free_ports
from lockstep.storage import find_storage
from lockstep.storage.object_store import open_object_storage
from lockstep.verify.verify import verify_stream
from tests.integration.cli.conftest import Platform, platform_in
from tests.support.feed import COLUMNS
from tests.support.link import Link, open_link
from tests.support.object_store import BUCKET, ObjectStore
from tests.support.plain_reader import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lockstep.features.localdev.broker import Broker
    from tests.support.local_runs import LocalRuns


@pytest.fixture(scope="session")
def running_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    """One store for all modules; a test that stops it restarts it."""
    store = ObjectStore.start(tmp_path_factory.mktemp("object-store"))
    yield store
    store.stop()


@pytest.fixture(scope="module")
def object_store(running_store: ObjectStore) -> Iterator[ObjectStore]:
    """The store, set in this process's environment during a module's tests."""
    open_object_storage.cache_clear()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in running_store.environment.items():
            patched.setenv(name, value)
        yield running_store
    open_object_storage.cache_clear()


@pytest.fixture
def link(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """A network between this process and the store."""
    address = object_store.environment["AWS_ENDPOINT_URL"]
    (port,) = find_free_ports(1)
    with open_link(port) as link:
        link.target = int(address.rpartition(":")[2])
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
        open_object_storage.cache_clear()
        yield link
    open_object_storage.cache_clear()


@pytest.fixture
def prefix(object_store: ObjectStore, tmp_path: Path) -> Path:  # noqa: ARG001  # it runs
    """A table root of one test."""
    return Path("s3:") / BUCKET / tmp_path.name


@pytest.fixture
def made(broker: Broker, tmp_path: Path, prefix: Path) -> Platform:
    """A platform whose table root is in the store."""
    found = platform_in(tmp_path, broker)
    environment = {**found.environment, "LOCKSTEP_TABLE_ROOT": find_storage(prefix).uri(prefix)}
    return dataclasses.replace(found, runs=dataclasses.replace(found.runs, tables=prefix), environment=environment)


def rows(runs: LocalRuns, topic: str) -> list[tuple[object, ...]]:
    """Return the rows as delta-rs reads them."""
    table = DeltaTable(find_storage(runs.folders.table).uri(runs.folders.table)).to_pyarrow_table()
    return sorted(rows_of(table, topic, COLUMNS), key=repr)


def assert_proven(runs: LocalRuns) -> None:
    report = verify_stream(runs.stream, runs.folders, runs.settings.kafka)
    assert report.status.value == "proven", (report.violations, report.notes)
