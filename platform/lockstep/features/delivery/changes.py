"""Changes of the past of a table or of a target, and the effect on a delivery: one table, event by kind of target.

docs/deliver.md shows this table; the tests go through it cell by cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from lockstep.declare.delivery import Delivery, KafkaTopic
from lockstep.declare.postgres_table import PostgresTable
from lockstep.declare.webhook import Webhook


class TargetKind(StrEnum):
    """Kinds of targets, whose rows can be changed in different ways."""

    TOPIC = "Kafka topic"
    COMPACTED = "Kafka topic with a key"
    APPENDED = "table in Postgres"
    KEYED = "table in Postgres with a key"
    WEBHOOK = "webhook"
    OWN = "your own target"


TOPICS: Final = (TargetKind.TOPIC, TargetKind.COMPACTED)


class HaltReason(StrEnum):
    """Why a delivery halts until an operator acts."""

    UNDONE = "batches that it has delivered were undone"
    REPLACED = "the table is not the one that it has delivered"
    DROPPED = "retention has dropped rows that it has not delivered"
    INCOMPLETE = "the table and its ledger count different rows"
    ROW = "a row cannot be delivered"


class PastEvent(StrEnum):
    """Events that change the past of a table or of a target."""

    MAINTENANCE = "compaction, vacuum, closed hours"
    UNREAD_UNDONE = "rewind or promotion of batches that it has not delivered"
    REWIND = "rewind of batches that it has delivered"
    PROMOTION = "promotion that replaces batches that it has delivered"
    ERASURE = "erasure of a session"
    RETENTION = "retention of delivered rows"
    UNREAD_RETENTION = "retention of rows that it has not read, after `holds_rows`"
    OLDER_SOURCE = "the table of the stream was restored from a backup, or replaced"
    NEW_SOURCE_TOPIC = "a source topic was deleted and created again, or grew"
    NEW_FIELD = "a new optional field of the row"
    GROWN_TARGET = "the target topic grew"
    NEW_TARGET = "the target was deleted, or created again"
    OLDER_TARGET = "the target was restored from a backup"


class Effect(StrEnum):
    """The effect of an event on a delivery."""

    CONTINUES = "continues"
    HALTS = "halts"
    IS_REFUSED = "is refused"
    DELETES = "deletes the rows of the session"
    TOMBSTONES = "writes tombstones if the key has `_session`; otherwise names the rows, to be erased by you"
    LISTS = "names the rows, to be erased by you"
    DELIVERS_AGAIN = "delivers the missing rows again"
    ADDS_COLUMN = "adds a column, or is refused (`new_columns`)"
    IS_NOT_NOTICED = "is not noticed"
    CANNOT_BE = "-"


class Remedy(StrEnum):
    """An act of an operator after a halt or a refusal."""

    ACCEPT = "accept"
    REBUILD = "rebuild"
    RENAME = "another name"


class Outcome(msgspec.Struct, frozen=True):
    """The effect of an event on a delivery to a kind of target.

    Attributes:
        effect: The effect.
        remedies: The remedies, in the order in which they are offered.
        reason: Reason of a halt.
    """

    effect: Effect
    remedies: tuple[Remedy, ...] = ()
    reason: HaltReason | None = None

    def describe(self) -> str:
        """Describe it as a cell of the table in docs/deliver.md."""
        reason = "" if self.reason is None else f" (`{self.reason.name}`)"
        remedies = f": {', '.join(self.remedies)}" if self.remedies else ""
        return f"{self.effect}{reason}{remedies}"


Row = Mapping[TargetKind, Outcome]
_CONTINUES: Final = Outcome(Effect.CONTINUES)
_NEVER: Final = Outcome(Effect.CANNOT_BE)
_UNNOTICED: Final = Outcome(Effect.IS_NOT_NOTICED, (Remedy.REBUILD,))


def _same(outcome: Outcome) -> dict[TargetKind, Outcome]:
    """A row with one outcome for all kinds."""
    return dict.fromkeys(TargetKind, outcome)


def _halts(reason: HaltReason, *remedies: Remedy) -> Outcome:
    return Outcome(Effect.HALTS, remedies, reason)


def _refuses(*remedies: Remedy) -> Outcome:
    return Outcome(Effect.IS_REFUSED, remedies)


_UNDONE: Final = {
    TargetKind.TOPIC: _halts(HaltReason.UNDONE, Remedy.ACCEPT, Remedy.REBUILD),
    TargetKind.COMPACTED: _halts(HaltReason.UNDONE, Remedy.REBUILD),
    TargetKind.APPENDED: _halts(HaltReason.UNDONE, Remedy.REBUILD, Remedy.ACCEPT),
    TargetKind.KEYED: _halts(HaltReason.UNDONE, Remedy.REBUILD),
    TargetKind.WEBHOOK: _halts(HaltReason.UNDONE, Remedy.ACCEPT, Remedy.REBUILD),
    TargetKind.OWN: _halts(HaltReason.UNDONE, Remedy.ACCEPT, Remedy.RENAME),
}
CHANGES: Final[Mapping[PastEvent, Row]] = {
    PastEvent.MAINTENANCE: _same(_CONTINUES),
    PastEvent.UNREAD_UNDONE: _same(_CONTINUES),
    PastEvent.REWIND: _UNDONE,
    PastEvent.PROMOTION: _UNDONE,
    PastEvent.ERASURE: {
        TargetKind.TOPIC: Outcome(Effect.LISTS),
        TargetKind.COMPACTED: Outcome(Effect.TOMBSTONES),
        TargetKind.APPENDED: Outcome(Effect.DELETES),
        TargetKind.KEYED: Outcome(Effect.DELETES),
        TargetKind.WEBHOOK: Outcome(Effect.LISTS),
        TargetKind.OWN: Outcome(Effect.LISTS),
    },
    PastEvent.RETENTION: _same(_CONTINUES),
    PastEvent.UNREAD_RETENTION: _same(_halts(HaltReason.DROPPED, Remedy.ACCEPT)),
    PastEvent.OLDER_SOURCE: _same(_halts(HaltReason.REPLACED, Remedy.REBUILD, Remedy.RENAME))
    | {TargetKind.OWN: _halts(HaltReason.REPLACED, Remedy.RENAME)},
    PastEvent.NEW_SOURCE_TOPIC: _same(_CONTINUES),
    PastEvent.NEW_FIELD: _same(_CONTINUES)
    | dict.fromkeys((TargetKind.APPENDED, TargetKind.KEYED), Outcome(Effect.ADDS_COLUMN)),
    PastEvent.GROWN_TARGET: _same(_NEVER) | dict.fromkeys(TOPICS, _refuses(Remedy.REBUILD, Remedy.RENAME)),
    PastEvent.NEW_TARGET: _same(_refuses(Remedy.REBUILD, Remedy.RENAME))
    | {TargetKind.WEBHOOK: _UNNOTICED, TargetKind.OWN: _NEVER},
    PastEvent.OLDER_TARGET: _same(Outcome(Effect.DELIVERS_AGAIN))
    | dict.fromkeys(TOPICS, _NEVER)
    | {TargetKind.WEBHOOK: _UNNOTICED},
}
_EVENTS: Final = {
    HaltReason.UNDONE: PastEvent.REWIND,
    HaltReason.REPLACED: PastEvent.OLDER_SOURCE,
    HaltReason.DROPPED: PastEvent.UNREAD_RETENTION,
}


def find_kind(delivery: Delivery) -> TargetKind:
    """The kind of target of a delivery."""
    target = delivery.target
    if isinstance(target, KafkaTopic):
        return TargetKind.COMPACTED if target.key else TargetKind.TOPIC
    if isinstance(target, PostgresTable):
        return TargetKind.KEYED if target.key else TargetKind.APPENDED
    return TargetKind.WEBHOOK if isinstance(target, Webhook) else TargetKind.OWN


def may_delete_sessions(delivery: Delivery) -> bool:
    """Whether a run deletes the rows of an erased session in the target."""
    effect = CHANGES[PastEvent.ERASURE][find_kind(delivery)].effect
    is_tombstone = isinstance(delivery.target, KafkaTopic) and "_session" in delivery.target.key
    return effect is Effect.DELETES or (effect is Effect.TOMBSTONES and is_tombstone)


def list_remedies(delivery: Delivery, reason: HaltReason) -> tuple[Remedy, ...]:
    """List the remedies of a halt, in the order in which they are offered."""
    if reason not in _EVENTS:
        return ()
    remedies = CHANGES[_EVENTS[reason]][find_kind(delivery)].remedies
    if reason is HaltReason.UNDONE and not delivery.target.joins_batches:
        return tuple(each for each in remedies if each is not Remedy.ACCEPT)  # undone rows have replaced others
    return remedies


def describe_remedies(delivery: Delivery, reason: HaltReason, batch: int) -> str:
    """Describe the remedies of a halt, as a next step.

    Args:
        delivery: The delivery.
        reason: Reason of the halt.
        batch: The batch after which the delivery would continue.
    """
    stays = "without them" if reason is HaltReason.DROPPED else "and they stay in the target, with their generation"
    texts = {
        Remedy.ACCEPT: f"lockstep deliver {delivery.name} --accept continues after batch {batch}, {stays}",
        Remedy.REBUILD: f"lockstep delivery rebuild {delivery.name} --plan shows how the target is corrected",
        Remedy.RENAME: "deliver by another name to another target, from the first row on",
    }
    return "; or ".join(texts[each] for each in list_remedies(delivery, reason))
