"""The proof that the rows of a table replay to the states of its sessions. It needs no Kafka.

Of the rows of one session and one key, the newest must be the row of the state. Rows may be missing for a reason that
has a name, such as retention. A difference that such a reason explains is not a violation: the rows replay from a later
batch on, and the report says from which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec
import pyarrow as pa

from lockstep.declare.replay import ReplayKey
from lockstep.errors import StateError
from lockstep.model.position import TopicIdPartition
from lockstep.model.table_schema import make_file_schema
from lockstep.table.head import FIRST_BATCH, Head
from lockstep.table.layout import StreamFolders
from lockstep.verify.current_rows import CurrentRows, RowDifference, StateRows, find_differences, make_replay_schema
from lockstep.verify.declaration import Declared
from lockstep.verify.ledger import LedgerChain, LedgerRange
from lockstep.verify.report import ViolationKind, Violations
from lockstep.verify.rows import TableRows
from lockstep.verify.state import RewindFloor, StoredState, show_short
from lockstep.verify.stored_tables import StoredTables

LOCATED_TOGETHER = 10_000
"""Differences whose batches are read together."""
END = 2**63 - 1
NO_ROW = (-1, 0)


class ReplayLimit(NamedTuple):
    """Why rows of early batches need not replay to the state.

    Attributes:
        batch: The last batch that it concerns.
        reason: In a few words.
    """

    batch: int
    reason: str


class ReplayedRows(msgspec.Struct):
    """The compared rows and states.

    Attributes:
        partitions: How many.
        sessions: Their sessions.
        keys: Their current rows.
        limits: From which batch on the rows of a partition replay to its states, and why not from the first.
        reason: Why the rows of the stream do not replay to its states at all; empty if they do.
    """

    partitions: int = 0
    sessions: int = 0
    keys: int = 0
    limits: dict[TopicIdPartition, str] = {}
    reason: str = ""

    @property
    def is_claimed(self) -> bool:
        """Whether the rows of any partition replay to its states."""
        return not self.reason and (self.partitions > 0 or not self.limits)

    def describe(self) -> str:
        """In a few words."""
        if self.reason:
            return f"not replayable: {self.reason}"
        compared = f"{self.keys} keys of {self.sessions} sessions"
        if self.limits:
            return f"{compared}; {len(self.limits)} partitions with limits"
        return compared


def find_limits(head: Head, absent: Mapping[str, int], key: ReplayKey, chain: LedgerChain) -> list[ReplayLimit]:
    """Why the rows of a partition may lack what its states have."""
    limits = list[ReplayLimit]()
    if head.retention is not None:
        limits.append(ReplayLimit(head.retention.batch, "retention dropped the rows before it"))
    origin = head.taken_over
    if origin is not None and chain.ranges[0].batch == FIRST_BATCH:
        reason = f"it started with the state of batch {origin.batch} of {origin.stream}, whose table has the rows"
        limits.append(ReplayLimit(FIRST_BATCH, reason))
    if head.promotion is not None:
        limits.append(ReplayLimit(head.promotion.first, "another fold wrote the rows before the promotion"))
    for name in (*key.columns, key.removed, *key.values):
        if name in absent:
            limits.append(ReplayLimit(absent[name], f"rows before it have no column {name}"))
    if head.code is not None and head.code.first_batch > FIRST_BATCH:
        limits.append(ReplayLimit(head.code.first_batch - 1, "other code wrote the batches before it"))
    return limits


def find_reason(transform: object, key: ReplayKey | None) -> str:
    """Why the rows of a fold do not replay to its states; empty if they do."""
    if key is not None:
        return ""
    name = type(transform).__name__
    if getattr(transform, "ends_remove", True) is False:
        return f"{name}.ends_remove is off, so the end of a session emits no removals"
    return f"{name} declares no key"


class RowReplay:
    """Compares the current rows of each partition with its newest state.

    Attributes:
        found: The compared rows and states.
    """

    def __init__(
        self,
        declared: Declared,
        key: ReplayKey,
        folders: StreamFolders,
        stored: StoredTables,
        rows: TableRows,
        floor: RewindFloor,
        violations: Violations,
    ) -> None:
        self._declared = declared
        self._key = key
        self._schema = make_replay_schema(key, make_file_schema(declared.row_type))
        self._folders = folders
        self._head = stored.head
        self._absent = stored.absent
        self._rows = rows
        self._floor = floor
        self._violations = violations
        self.found = ReplayedRows()

    def compare(self, chain: LedgerChain) -> None:
        """Compare one partition."""
        limit = self._compare(chain)
        if limit:
            self.found.limits[chain.key] = limit

    def _compare(self, chain: LedgerChain) -> str:
        """Compare a partition; returns the limit of the comparison, empty without one."""
        key = self._key
        last = chain.ranges[-1]
        if last.is_forgotten:
            return f"not replayable: the topic was forgotten in batch {last.batch}, and its state deleted"
        try:
            states = self._read_states(last)
        except StateError as error:
            return self._unread(last, error)
        current = CurrentRows(key, self._schema)
        for batch in self._rows.cursor(chain.key).before(END):
            current.add(batch)
        rows = current.finish()
        self.found.partitions += 1
        self.found.keys += rows.num_rows
        limits = find_limits(self._head, self._absent, key, chain)
        return self._report(find_differences(key, rows, states), chain, limits)

    def _read_states(self, last: LedgerRange) -> pa.Table:
        """The rows of the states after a ledger row; raises StateError."""
        stored = StoredState(self._folders.state, self._declared, self._violations, self._head, self._floor)
        made = StateRows(self._key, self._schema)
        for session, state in stored.read_states(last):
            self.found.sessions += 1
            if state is not None:  # None: its first snapshot is not complete
                made.add(session, self._declared.list_rows(state))
        return made.finish()

    def _unread(self, last: LedgerRange, error: StateError) -> str:
        """Report a state that cannot be read, unless housekeeping deleted it meanwhile, behind a running writer."""
        kind = ViolationKind.STATE_DAMAGED
        if not self._violations.has(kind, last.place) and not self._floor.is_above(last.batch):
            expected = f"the state after batch {last.batch}"
            self._violations.add(kind, last.place, last.until, expected, error.problem)
        return f"not replayable: the state after batch {last.batch} cannot be read"

    def _report(self, differences: Iterator[RowDifference], chain: LedgerChain, limits: Sequence[ReplayLimit]) -> str:
        """Report differences that no limit explains; returns the limit that explains the others."""
        explained = Counter[ReplayLimit]()
        while group := list(islice(differences, LOCATED_TOGETHER)):
            batches = chain.find_batches(each.position or NO_ROW for each in group)
            for difference, batch in zip(group, batches, strict=True):
                of_batch = None if difference.position is None else batch
                limit = _explain(limits, of_batch)
                if limit is None:
                    self._add(difference, chain, of_batch)
                else:
                    explained[limit] += 1
        if not explained:
            return ""
        latest = max(explained)
        count = explained.total()
        differ = f"{count} keys without a row since then differ"
        if count == 1:
            differ = "1 key without a row since then differs"
        return f"replayable from batch {latest.batch + 1}: {latest.reason}; {differ}"

    def _add(self, difference: RowDifference, chain: LedgerChain, batch: int | None) -> None:
        last = chain.ranges[-1]
        of_key = f"session {difference.session!r} key {_show_key(difference.key)}"
        state = f"in the state after batch {last.batch}"
        row = "" if difference.position is None else f"row {difference.position[1]} of batch {batch}"
        if difference.column is not None:
            expected = f"{of_key}: {difference.column} = {show_short(difference.expected)} {state}"
            actual = f"{row}: {difference.column} = {show_short(difference.found)}"
        elif difference.position is None:
            expected = f"{of_key}: a row, as {state}"
            actual = "no row, or a removal"
        else:
            expected = f"{of_key}: none {state}, so a removal"
            actual = f"{row} is the newest"
        offset = last.until if difference.position is None else difference.position[0]
        self._violations.add(ViolationKind.REPLAY_DIFFERS, chain.place, offset, expected, actual)


def _explain(limits: Iterable[ReplayLimit], batch: int | None) -> ReplayLimit | None:
    """The latest limit that explains the difference of a row of a batch; None for a key without a row."""
    reasons = [limit for limit in limits if batch is None or batch <= limit.batch]
    return max(reasons, default=None)


def _show_key(key: tuple[object, ...]) -> str:
    if len(key) == 1:
        return show_short(key[0])
    return show_short(key)
