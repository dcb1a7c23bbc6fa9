"""Forgets how far a stream had come, after its table is gone for good."""

from __future__ import annotations

from lockstep.errors import LockstepError
from lockstep.kafka.group import Group
from lockstep.settings import Settings
from lockstep.table import log
from lockstep.table.layout import StreamFolders


def reset_new(stream: str, settings: Settings) -> None:
    """Let the next start of a stream without a table read everything into a new one.

    Raises:
        LockstepError: There is a table.
        KafkaError: Kafka does not answer.
    """
    folders = StreamFolders(stream, settings.table_root)
    if log.exists(folders.table):
        raise LockstepError(
            f"{folders.table} exists: nothing is to be begun anew",
            next_step=f"lockstep status {stream}; to begin with an empty table, move {folders.table.parent} away first",
        )
    Group(settings.kafka, stream).forget()
