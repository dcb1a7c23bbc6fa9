"""Topics that were deleted or re-created: what of them was read, from the positions and the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec
import pyarrow.compute as pc

from lockstep.table.head import Head
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import SCHEMA, LedgerRow, read_positions
from lockstep.table.schema_evolution import with_defaults

ENDINGS = ("deleted", "re-created")
"""Values of the ledger's columns `lifecycle` and `ending`."""


class EndedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic that was deleted or re-created, until it is forgotten.

    Attributes:
        topic: Name of the topic.
        topic_id: Kafka's id of the topic that ended.
        how: "deleted" or "re-created".
        missed_at: Time at which a run missed it (UTC); None until a run has.
        partitions: Number of its partitions.
        position: Offsets read, summed over its partitions.
        unread: Offsets between the positions and the last observed ends; None if no run has observed them.
        age_seconds: Age of that observation when the topic was missed; None without one.
    """

    topic: str
    topic_id: str
    how: str
    missed_at: datetime | None
    partitions: int
    position: int
    unread: int | None
    age_seconds: float | None

    def __str__(self) -> str:
        missed = ""
        if self.missed_at is not None:
            missed = f" (missed at {self.missed_at:%Y-%m-%d %H:%M:%S} UTC)"
        return f"{self.topic} was {self.how}{missed}: {self.evidence}"

    @property
    def evidence(self) -> str:
        """The known facts about its messages."""
        if self.unread is None:
            return f"read to offset {self.position}, its end is not known"
        seen = "" if self.age_seconds is None else f", as observed {self.age_seconds:.0f} s before"
        if self.unread:
            return f"read to offset {self.position}, {self.unread} offsets were not read{seen}"
        return f"read to its end at offset {self.position}{seen}"


def list_ended(positions: Iterable[LedgerRow]) -> tuple[EndedTopic, ...]:
    """The topics that ended and are not forgotten, by name."""
    by_topic: dict[tuple[str, str], list[LedgerRow]] = {}
    for row in positions:
        if row.ending is not None:
            by_topic.setdefault((row.topic, row.topic_id), []).append(row)
    return tuple(_make_ended(rows) for _, rows in sorted(by_topic.items()))


def read_ended_by_batch(folders: StreamFolders, head: Head) -> dict[int, tuple[EndedTopic, ...]]:
    """The topics that ended with each batch, from the ledger; none unless the positions still have such a topic.

    Raises:
        TableError: A ledger file is missing or damaged.
    """
    from lockstep.table.dataset import open_dataset  # loads pandas, which code locations do without

    if not any(row.ending for row in read_positions(folders, head).values()):
        return {}
    changes = open_dataset(folders.ledger).to_table(SCHEMA.names, filter=pc.field("lifecycle").isin(ENDINGS))
    batches: dict[int, list[LedgerRow]] = {}
    for row in with_defaults(changes, LedgerRow):
        if row.ending is not None:  # else the first row of a topic that was created again
            batches.setdefault(row.batch, []).append(row)
    return {batch: list_ended(rows) for batch, rows in batches.items()}


def _make_ended(rows: list[LedgerRow]) -> EndedTopic:
    ends = [row.last_end for row in rows]
    observed = [end for end in ends if end is not None]
    unread = None
    # Of a partition that no run has observed, the unread messages are not known.
    if observed == ends:
        unread = sum(max(0, end - row.until) for end, row in zip(observed, rows, strict=True))
    return EndedTopic(
        topic=rows[0].topic,
        topic_id=rows[0].topic_id,
        how=rows[0].ending or "",
        missed_at=max((row.gone_since for row in rows if row.gone_since is not None), default=None),
        partitions=len(rows),
        position=sum(row.until for row in rows),
        unread=unread,
        age_seconds=max((age for row in rows if (age := row.last_end_age_seconds) is not None), default=None),
    )
