"""The commits of an erasure: docs/decisions/0027."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from lockstep.errors import TableError
from lockstep.features.erase.commit_kinds import ERASE, ERASE_END
from lockstep.table.commit import Base, Proposal, Writer, check_hour_open, check_writer
from lockstep.table.delta_log import RemoveAction
from lockstep.table.head import Erasure, Head, SideFile
from lockstep.table.parquet import DataFile
from lockstep.table.session_digest import compute_session_digest

ERASED_MARK = "erased:"
"""Start of the name in the ledger that replaces an erased session; its digest follows."""


class ErasedName:
    """Recognizes the name of an erased session by its digest."""

    def __init__(self, table_id: str, digest: str) -> None:
        self._table_id = table_id
        self._digest = digest
        self._known: dict[str, bool] = {}

    @property
    def mark(self) -> str:
        """The name in its place."""
        return f"{ERASED_MARK}{self._digest}"

    def match(self, name: str | None) -> bool:
        """Whether it is the name."""
        if name is None:
            return False
        if name not in self._known:
            self._known[name] = compute_session_digest(self._table_id, name) == self._digest
        return self._known[name]


class ErasureOvertaken(TableError):
    """The basis of an erasure's plan has changed: a batch, or other files that hold the rows."""


class ErasureCommit(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure to commit.

    Attributes:
        seen: The head for which it was planned.
        digest: Digest of the session.
        topic: The topic to which it is restricted; empty for all.
        commit_hour: Its hour; it is a batch.
        ledger: Its ledger file, already synced: a full set of positions, with the new state.
        adds: The files that replace those with rows of the session.
        removes: These files.
        needs: The ledger file and the state files, with the least size of each.
        drops: Savepoints that it deletes.
        at: Time, in seconds since 1970 (UTC).
        cause: The reason and the operator.
        texts: Texts of the head that name the session, with those that replace them.
    """

    seen: Head
    digest: str
    topic: str
    commit_hour: str
    ledger: SideFile
    adds: tuple[DataFile, ...]
    removes: tuple[RemoveAction, ...]
    needs: Mapping[Path, int]
    drops: tuple[str, ...]
    at: float
    cause: str
    texts: Mapping[str, str] = {}

    @property
    def batch(self) -> int:
        """The batch that it is."""
        return self.seen.batch + 1


def commit_erasure(planned: ErasureCommit, check: Callable[[Base], None]) -> Proposal:
    """Erase a session: a claim, a batch, the rewritten files and the raised rewind floor in one commit.

    Args:
        planned: What to commit.
        check: Refuses a base on which other files hold rows of the session.

    The commit raises:
        Fenced: Another run, or another operation, claimed the table since it was planned.
        ErasureOvertaken: A batch or a savepoint was committed since.
        HourClosed: The hour was closed since.
    """

    def next_head(base: Base) -> Head:
        check(base)
        return _make_head(base, planned)

    return Proposal(
        kind=ERASE,
        next_head=next_head,
        adds=planned.adds,
        removes=planned.removes,
        batch=planned.batch,
        epoch=planned.seen.epoch + 1,
        needs=planned.needs,
    )


def _make_head(base: Base, planned: ErasureCommit) -> Head:
    head = base.head
    seen = planned.seen
    number = planned.batch
    version = base.version + 1
    check_writer(head, Writer(epoch=seen.epoch, generation=seen.generation))
    if head.batch != seen.batch or not {each.name for each in head.savepoints} <= set(planned.drops):
        raise ErasureOvertaken(
            f"batch {head.batch} or a savepoint was committed since the erasure was planned after batch {seen.batch}",
            next_step=f"lockstep stop {head.stream}; then erase again",
        )
    # A compaction or an export of that hour would not see the new files any more.
    check_hour_open(head, planned.commit_hour)
    erasure = Erasure(
        digest=planned.digest,
        topic=planned.topic,
        batch=number,
        version=version,
        at=planned.at,
        cause=planned.cause,
    )
    last = head.last_resumption
    if last is not None:
        last = msgspec.structs.replace(last, cause=planned.texts.get(last.cause, last.cause))
    return msgspec.structs.replace(
        head,
        last_resumption=last,
        reason=planned.texts.get(head.reason, head.reason),
        epoch=head.epoch + 1,
        batch=number,
        batch_version=version,
        hour=planned.commit_hour,
        ledger=planned.ledger,
        full_ledger_batch=number,
        full_ledger_at=planned.at,
        rewind_floor=number,
        rewinds=(),
        savepoints=(),
        erasure=erasure,
    )


def finish_erasure(digest: str, batch: int) -> Proposal:
    """Record that the side tables of an erasure are rewritten, too; by any process."""

    def next_head(base: Base) -> Head:
        erasure = base.head.erasure
        if erasure is None or (erasure.digest, erasure.batch) != (digest, batch):
            return base.head  # a later erasure: it started after this one was finished
        return msgspec.structs.replace(base.head, erasure=msgspec.structs.replace(erasure, is_finished=True))

    return Proposal(kind=ERASE_END, next_head=next_head)
