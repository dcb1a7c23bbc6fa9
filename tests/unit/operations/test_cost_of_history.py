"""Requests that are made every few seconds cost the same after a month of batches as on the first day."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction

from lockstep import Kind
from lockstep.features.retention.unreachable_state import find_unreachable_state, raise_floor
from lockstep.operations.inspect.state import StateFilter, read_states
from lockstep.operations.inspect.status import read_status
from lockstep.operations.inspect.streams import read_positions
from lockstep.operations.repair import repair_stream
from lockstep.operations.stream_handle import StreamHandle
from lockstep.settings import KafkaSettings, Settings
from lockstep.table import delta_log, ledger, transactions
from lockstep.table.delta_log import NO_HOOKS
from tests.support.kept_stream import keeping, message
from tests.support.offline_stream import Offline
from tests.support.opened_files import opened_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FEW, MANY = 100, 10_000
"""Files of the ledger; opening a file more for each of them, or for some, makes a difference of thousands."""
BATCHES = 30


def stream_with_history(root: Path, files: int) -> Offline:
    """Return a stream of two partitions, one of them silent, after this number of ledger files of earlier batches."""
    made = Offline(keeping(), root)
    first: dict[str, list[tuple[str, bytes]]] = {
        name: [(name, message(Kind.SNAPSHOT, 1, x=1))] for name in ("kept.busy", "kept.idle")
    }
    made.run(first, *({"kept.busy": [("kept.busy", message(Kind.UPDATE, seq, x=1))]} for seq in range(2, BATCHES)))
    folder = made.folders.ledger
    seed = folder / next(iter(ledger.find_live_files(folder)))
    names = [f"ledger-2026-01-01T00-g1-b0-0-{uuid.uuid4().hex}.parquet" for _ in range(files)]
    for name in names:
        os.link(seed, folder / name)
    _name_in_log(folder, names, seed.stat().st_size)
    return made


def _name_in_log(folder: Path, names: list[str], size: int) -> None:
    """Write one entry, then a log checkpoint."""
    handle = DeltaTable(folder)
    batch = Transaction(transactions.BATCH, handle.transaction_version(transactions.BATCH) or 0)
    handle.create_write_transaction(
        [AddAction(name, size, {}, 1, True, '{"numRecords":1}') for name in names],  # noqa: FBT003  # deltalake's own
        mode="append",
        schema=handle.schema(),
        commit_properties=CommitProperties(
            custom_metadata={delta_log.KIND: "side"}, max_commit_retries=0, app_transactions=[batch]
        ),
        post_commithook_properties=NO_HOOKS,
    )
    DeltaTable(folder).create_checkpoint()


def _handle(made: Offline) -> StreamHandle:
    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1", timeout_seconds=1)
    return StreamHandle(made.stream, Settings(kafka=kafka, table_root=made.folders.root))


def _status(made: Offline) -> object:
    return read_status(_handle(made)).batch


def _sensor(made: Offline) -> object:
    return sorted((row.topic, row.until) for row in _handle(made).subscribed)


def _repair(made: Offline) -> object:
    return [check.condition for check in repair_stream(made.folders, apply=False).checks]


def _state(made: Offline) -> object:
    return len(find_unreachable_state(made.folders, raise_floor(made.folders, 0)))


def _earlier(made: Offline) -> object:
    found = read_states(made.stream, made.folders.root, StateFilter(), BATCHES - 5)
    return [(each.session, each.position) for each in found.sessions]


LOOKS: dict[str, Callable[[Offline], object]] = {
    "the sensor's look": _sensor,
    "status": _status,
    "positions": lambda made: read_positions(_handle(made)).partitions,
    "a start": lambda made: made.claim().head.epoch,
    "repair": _repair,
    "the state of an earlier batch": _earlier,
    "clean-up of state": _state,  # last, as it raises the rewind floor
}


@pytest.fixture(scope="module")
def young(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    return stream_with_history(tmp_path_factory.mktemp("young"), FEW)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Offline:
    return stream_with_history(tmp_path_factory.mktemp("old"), MANY)


@pytest.mark.parametrize("look", LOOKS)
def test_ten_thousand_ledger_files_cost_no_more_than_a_hundred(young: Offline, old: Offline, look: str) -> None:
    opened = {}
    for made in (young, old):
        with opened_files(made.folders.ledger, made.folders.ledger / "_delta_log") as names:
            answer = LOOKS[look](made)
        opened[made.root] = (len(names), answer)
    assert opened[old.root] == opened[young.root]
    assert 0 < opened[old.root][0] < BATCHES


def test_positions_are_read_from_as_many_rows_as_there_are_partitions_twice(young: Offline) -> None:
    """A full set is written when the rows since the last full set are as many."""
    with opened_files(young.folders.ledger) as names:
        assert dict(_sensor(young)) == {"kept.busy": BATCHES - 1, "kept.idle": 1}  # type: ignore[call-overload]  # pairs
    assert len(set(names)) <= 3
