"""A current table in an object store: refreshed, queried and proven without a lock or a renamed file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockstep.features.current.prove import prove_current
from lockstep.features.current.refresh import refresh_current
from lockstep.operations.query import AsOf, query_sql
from lockstep.settings import KafkaSettings
from lockstep.table import delta_log
from lockstep.table.layout import StreamFolders
from lockstep.verify.report import InvariantStatus
from tests.features.current.test_refresh import LONG, NAMES, make_stream, send
from tests.support.offline_stream import Offline


@dataclass
class InStore(Offline):
    """A stream whose tables are below a prefix; local stores are not."""

    place: Path = Path()

    @property
    def folders(self) -> StreamFolders:
        """The folders of the tables."""
        return StreamFolders(self.stream.name, self.place)


def test_a_current_table_in_a_store_is_refreshed_queried_and_proven(prefix: Path, tmp_path: Path) -> None:
    made = InStore(make_stream(), tmp_path, place=prefix)
    made.run({"t": [(name, send("snapshot", name)) for name in (*NAMES, LONG)]})
    assert refresh_current(made.stream, made.folders).rows == len(NAMES) + 1
    made.run({"t": [("a", send("update", "a", 7)), ("b", send("update", "b", None))]})
    asked = query_sql("SELECT * FROM shelves_current", {"shelves": made.stream}, prefix, AsOf(), limit=None)
    assert len(asked.rows) == len(NAMES)
    done = refresh_current(made.stream, made.folders)
    assert (done.changed, done.rows, done.remade) == (2, len(NAMES), None)
    assert delta_log.open_delta_table(made.folders.current).to_pyarrow_table().num_rows == len(NAMES)
    (proof,) = prove_current(made.stream, made.folders, KafkaSettings())
    assert proof.status is InvariantStatus.PROVEN
