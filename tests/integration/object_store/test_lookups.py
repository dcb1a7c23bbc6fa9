"""A fold that reads a table in the object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lockstep.engine.executor.lookup_table import LookupUnusable, open_lookup
from lockstep.storage import find_storage
from lockstep.storage.object_store import open_object_storage
from tests.integration.object_store.conftest import assert_proven, rows
from tests.support.feed import session, update
from tests.support.weighing_stream import WEIGHTS, weighed, weighing

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.integration.cli.conftest import Platform

LIGHT = {"a": 1, "b": 1}
HEAVY = {"a": 10, "b": 1}


def write_weights(table: Path, weights: Mapping[str, int]) -> None:
    written = pa.table({"name": [*weights], "factor": [*weights.values()]})
    write_deltalake(find_storage(table).uri(table), written, mode="overwrite")


def test_a_table_that_is_overwritten_and_compacted_changes_later_rows_only(made: Platform) -> None:
    runs = made.runs.of(weighing(made.feed.pattern))
    topic = made.feed.create("values")
    table = runs.folders.root / "weights"
    sent: list[tuple[bytes, Mapping[str, int]]] = []
    for messages, weights in ((session(3), LIGHT), ([update(5, a=2, b=1), update(6, a=1)], HEAVY)):
        write_weights(table, weights)
        DeltaTable(find_storage(table).uri(table)).optimize.compact()
        made.feed.send(topic, messages)
        sent += [(each, weights) for each in messages]
        runs.run()
    assert sorted(weighed(sent), key=repr) == rows(runs, topic)
    assert_proven(runs)


def test_a_store_that_refuses_is_no_other_error(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a worker, any other error would start the search for a message that kills the worker."""
    write_weights(prefix / "weights", LIGHT)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    open_object_storage.cache_clear()
    with pytest.raises(LookupUnusable, match=r"lookup weights \(s3://lockstep/.*/weights, version 0\): .*privileges"):
        open_lookup(WEIGHTS, prefix / "weights", 0)
