"""Opens the table of a stream for an operation."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.kafka.admin import ClusterAdmin, ClusterView
from lockstep.kafka.client import make_admin_client
from lockstep.settings import KafkaSettings
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.delta_log import Head
from lockstep.table.layout import StreamFolders


class NoTable(LockstepError):
    """The stream has never run with this table root.

    Attributes:
        stream: The stream.
        root: The table root.
    """

    def __init__(self, stream: str, root: Path) -> None:
        super().__init__(
            f"stream {stream} has no table yet in {root}",
            next_step=f"lockstep start {stream} (in Dagster) or lockstep run {stream} (here)",
        )
        self.stream = stream
        self.root = root


def open_table(folders: StreamFolders) -> OutputLog:
    """The log of a stream's table.

    Raises:
        NoTable: The stream has none yet.
    """
    if not delta_log.has_log(folders.table):
        raise NoTable(folders.stream, folders.root)
    return OutputLog(folders.table)


def try_read_head(folders: StreamFolders) -> Head | None:
    """The head of a stream's table; None while it has none.

    Raises:
        TableError: The table does not match its head.
    """
    return open_table(folders).base().head if delta_log.has_log(folders.table) else None


def make_cluster_admin(kafka: KafkaSettings) -> ClusterAdmin:
    """Client for the metadata of the configured cluster."""
    return ClusterAdmin(make_admin_client(kafka), kafka.timeout_seconds)


def make_view(kafka: KafkaSettings, topics: frozenset[str]) -> ClusterView:
    """Ids and offsets of some topics.

    Raises:
        KafkaError: The cluster did not answer.
    """
    return make_cluster_admin(kafka).view(topics)
