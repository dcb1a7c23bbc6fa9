"""The kinds of commit, and the meaning of each for the rows of its table.

The core has the kinds below; each optional feature registers its own (`Feature.commit_kinds`).
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from itertools import chain

import msgspec

from lockstep.feature import list_installed, load_reference
from lockstep.table.transactions import BATCH as BATCH_ID
from lockstep.table.transactions import EPOCH as EPOCH_ID
from lockstep.table.transactions import VERSION as VERSION_ID

OF_VERSION = frozenset({VERSION_ID})
OF_CLAIM = frozenset({VERSION_ID, EPOCH_ID})
OF_BATCH = frozenset({VERSION_ID, BATCH_ID})
OF_CLAIMED_BATCH = OF_CLAIM | OF_BATCH
OF_SIDE_TABLE = frozenset({BATCH_ID})


class RowChange(Enum):
    """The effect of a commit on rows that readers have read before it."""

    NONE = "none"
    DROPPED = "dropped"
    REPLACED = "replaced"


class CommitKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of commit to a table of a stream.

    Attributes:
        name: Its name in the entry.
        event: Its name in the history of the stream; empty for kinds of side tables, which it does not list.
        row_change: Its effect on earlier rows. `DROPPED`: the oldest ones, or those of a lost commit, whose messages
            are read again. `REPLACED`: any may be gone or restored.
        changes_data: `dataChange` of each of its files (Delta's protocol, "Add File and Remove File"). False only if
            the rows stay the same and only their files change.
        transactions: Ids of the `txn` actions that its entry ends with: without them the entry is torn.
        skips_batches: One commit makes several batches.
        explained_by: Field of the head whose `describe` tells why and by whom; empty without one.
    """

    name: str
    event: str = ""
    row_change: RowChange = RowChange.NONE
    changes_data: bool = True
    transactions: frozenset[str] = OF_VERSION
    skips_batches: bool = False
    explained_by: str = ""


CREATE = CommitKind(name="create", event="created", transactions=frozenset())
CLAIM = CommitKind(name="claim", event="new writer", transactions=OF_CLAIM)
BATCH = CommitKind(name="batch", event="batches", transactions=OF_BATCH)
HALT = CommitKind(name="halt", event="halted", transactions=OF_BATCH)
RESUME = CommitKind(name="resume", event="resumed", transactions=OF_BATCH)
CLOSE = CommitKind(name="close", event="hour closed")
DESIRE = CommitKind(name="desire", event="desired state")
SCHEMA = CommitKind(name="schema", event="columns changed")
FLOOR = CommitKind(name="floor", event="rewind floor")
ACCEPT = CommitKind(name="accept loss", event="loss accepted")
MARK = CommitKind(name="mark", event="mark")
SIDE = CommitKind(name="side", transactions=OF_SIDE_TABLE)
SIDE_UNDO = CommitKind(name="side undo", row_change=RowChange.DROPPED, transactions=OF_SIDE_TABLE)
CORE = (CREATE, CLAIM, BATCH, HALT, RESUME, CLOSE, DESIRE, SCHEMA, FLOOR, ACCEPT, MARK, SIDE, SIDE_UNDO)


@cache
def list_commit_kinds() -> tuple[CommitKind, ...]:
    """The kinds of the core and of all features of this release: an extension adds nothing to tables."""
    references = chain.from_iterable(feature.commit_kinds for feature in list_installed())
    return (*CORE, *map(load_reference, references))


def find_commit_kind(name: object) -> CommitKind | None:
    """The kind of a name in an entry; None for a commit of other tools, or of an absent feature."""
    return next((kind for kind in list_commit_kinds() if kind.name == name), None)
