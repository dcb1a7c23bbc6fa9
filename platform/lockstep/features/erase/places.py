"""Every place that can hold the name or the content of a session: `lockstep erase --plan` and docs/erase.md list it."""

from __future__ import annotations

from enum import Enum

import msgspec


class Removal(Enum):
    """When a place has nothing of an erased session any more."""

    COMMIT = "with the erasure"
    HOUSEKEEPING = "with the next housekeeping"
    LATER = "with a housekeeping when readers have ended"
    REFUSED = "before it: an erasure is refused"
    DERIVE = "with the next run of the derived table"
    REFRESH = "with the next refresh"
    RUN = "with the next run of the stream"
    NEVER_NAMED = "never there"
    OUTSIDE = "not by lockstep"


class ErasedPlace(msgspec.Struct, frozen=True):
    """A place that can hold the name or the content of a session.

    Attributes:
        place: The place; a folder is relative to that of the stream.
        folder: Name of the folder in the stream's, or in that of a derived table; empty for none.
        holds: What of a session is there.
        removal: When it is gone.
        remark: The exception, or the next step; empty for none.
    """

    place: str
    folder: str
    holds: str
    removal: Removal
    remark: str = ""

    @property
    def gone(self) -> str:
        """When and how it is gone, in a few words."""
        if not self.remark:
            return self.removal.value
        return f"{self.removal.value}; {self.remark}"


PLACES = (
    ErasedPlace("data files", "table", "rows", Removal.HOUSEKEEPING, "no version that has it is read after the commit"),
    ErasedPlace("log of the table", "table", "least and greatest session and texts of each file, findings in heads",
                Removal.HOUSEKEEPING, "entries with it; log checkpoints an hour later"),
    ErasedPlace("head", "table", "findings of a halt", Removal.REFUSED, "resume the stream first"),
    ErasedPlace("ledger", "ledger", "decisions that skip the session, errors of the stream's code in losses",
                Removal.COMMIT, "a digest stays; `--why` is stored as it is, but for that of such a decision"),
    ErasedPlace("log of the ledger", "ledger", "counts only", Removal.NEVER_NAMED),
    ErasedPlace("quarantine", "quarantine", "messages", Removal.COMMIT,
                "place, batch and cause stay; a file of a killed compaction goes after 36 hours"),
    ErasedPlace("late table", "late", "messages", Removal.COMMIT, "as quarantine"),
    ErasedPlace("archive", "archive", "messages", Removal.COMMIT, "as quarantine"),
    ErasedPlace("logs of quarantine, late table and archive", "quarantine",
                "bounds without session, `expected` and `found`", Removal.NEVER_NAMED),
    ErasedPlace("state", "state", "state, map rows, timers and buffered messages", Removal.HOUSEKEEPING,
                "no file that has it is read after the commit"),
    ErasedPlace("savepoints", "", "rows and state of their batch", Removal.REFUSED, "or `--drop-savepoints`"),
    ErasedPlace("shadows", "", "state and rows", Removal.REFUSED, "drop them first"),
    ErasedPlace("exported hours", "export", "rows", Removal.REFUSED,
                "delete the folders first; hours that retention has dropped are not checked"),
    ErasedPlace("unfinished hours of killed exports", "export", "rows", Removal.LATER, "a day after the kill"),
    ErasedPlace("last check and its report", "quality", "failing rows, newest number of each session", Removal.COMMIT,
                "counts stay; a check that runs meanwhile does the same"),
    ErasedPlace("entries that `lockstep repair` moved away", "control", "as the log of the table", Removal.COMMIT),
    ErasedPlace("derived tables", "derived", "rows", Removal.DERIVE, "`lockstep derive` runs it"),
    ErasedPlace("checkpoints of derived tables", "checkpoints", "state of Spark's queries", Removal.DERIVE),
    ErasedPlace("current table", "current", "rows", Removal.REFRESH,
                "`lockstep current` runs it; files of a killed refresh go an hour later; undeclared, delete it"),
    ErasedPlace("log of the current table", "current", "counts only", Removal.NEVER_NAMED),
    ErasedPlace("positions of followers", "", "versions, batches and classes of errors", Removal.NEVER_NAMED),
    ErasedPlace("targets of deliveries", "", "delivered rows", Removal.OUTSIDE,
                "the plan names each target: its next run deletes the rows, or you erase them there"),
    ErasedPlace("dead letters of deliveries", "", "rows that could not be delivered", Removal.OUTSIDE,
                "the next run of the delivery deletes those of the session"),
    ErasedPlace("histories of deliveries", "", "batches and reasons of halts", Removal.NEVER_NAMED),
    ErasedPlace("local stores of executors", "", "a copy of the state, outside of the table root", Removal.RUN),
    ErasedPlace("events, logs and alarms", "", "topic, partition and offset of a halt or a failing row",
                Removal.NEVER_NAMED, "errors of a state, or of the stream's code, are shown as they are"),
    ErasedPlace("backups, exported savepoints, exports of the quarantine", "", "everything of their time",
                Removal.OUTSIDE, "delete those made before, and make new copies in new folders"),
    ErasedPlace("copies of readers", "", "rows", Removal.OUTSIDE, "the erasure is a change commit for them"),
    ErasedPlace("Kafka", "", "messages", Removal.OUTSIDE,
                "until its retention ends; `lockstep reset STREAM` reads them again"),
)  # fmt: skip
