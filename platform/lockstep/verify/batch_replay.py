"""The rows of the fold replayed batch by batch: after each batch they must equal the states of its sessions.

After a batch, the keys that its rows touched are compared with the states, and the number of keys of each session that
it touched; if a snapshot emitted rows, all keys of the session. The current rows are in memory, as the states of the
fold are. Their number is bounded: without room for more, the rest of a partition is compared at the end only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any, cast

import msgspec
import pyarrow as pa

from lockstep.declare.replay import ReplayKey
from lockstep.model.table_schema import make_row_schema
from lockstep.verify.declaration import Declared
from lockstep.verify.ledger import LedgerRange
from lockstep.verify.report import ViolationKind, Violations
from lockstep.verify.rows import Emitted, is_equal
from lockstep.verify.sessions import SNAPSHOT, Session
from lockstep.verify.state import show_short

ROWS_MAX = 1_000_000
"""Current rows of the partitions that are read together; some 200 bytes each."""
KeyParts = tuple[object, ...]
"""The values of the key columns of a row."""
CurrentOfSession = dict[KeyParts, msgspec.Struct | None]
"""The current rows of a session by key; None for a row of a stored state."""


class RowBudget:
    """The number of current rows that may still be held.

    Attributes:
        left: The number.
    """

    def __init__(self) -> None:
        self.left = ROWS_MAX


class BatchReplay:
    """The current rows of one partition, as the fold emits them.

    Attributes:
        batches: Number of compared batches.
        is_on: Whether there is room for the current rows.
    """

    def __init__(self, declared: Declared, budget: RowBudget, violations: Violations) -> None:
        self._list_rows = declared.list_rows
        self._key = declared.replay_key or _NO_KEY
        self._budget = budget
        self._violations = violations
        self._current: dict[str, CurrentOfSession] = {}
        self._touched: dict[str, dict[KeyParts, msgspec.Struct]] = {}
        self._snapshots: set[str] = set()
        self._noted = 0
        self._make_key: Callable[[KeyParts], object] | None = None
        self._values_of: Callable[[object], object] = _make_getter(self._key.values)
        self.batches = 0
        self.is_on = declared.replay_key is not None and not _has_nested_key(declared.row_type, self._key)

    def begin(self, sessions: Mapping[str, Session]) -> None:
        """Start with stored states, the rows of which are unknown."""
        if self.is_on:
            for session, entry in sessions.items():
                self._adopt(session, entry.state)

    def forget(self, session: str) -> None:
        """Forget a removed session."""
        self._budget.left += len(self._current.pop(session, ()))

    def note(self, emitted: Emitted) -> None:
        """Note the rows that the fold has emitted since the last call."""
        if not self.is_on:
            return
        find_parts = _make_getter(self._key.columns)
        proof = emitted.proof
        for number in range(self._noted, len(emitted.rows)):
            row = emitted.rows[number]
            self._touched.setdefault(proof["_session"][number], {})[find_parts(row)] = row
            if proof["_cause"][number] == SNAPSHOT:
                self._snapshots.add(proof["_session"][number])
        self._noted = len(emitted.rows)

    def drop(self, rows: int) -> None:
        """The first rows of the fold were compared with the table, and are dropped."""
        self._noted -= rows

    def compare(self, row: LedgerRange, sessions: Mapping[str, Session], touched: Iterable[str]) -> None:
        """Compare the current rows of the sessions of a batch with their states."""
        if not self.is_on:
            return
        self.batches += 1
        for session in sorted(self._touched.keys() | set(touched)):
            entry = sessions.get(session)
            state = None if entry is None else entry.state
            self._compare(row, session, state)
        self._touched = {}
        self._snapshots = set()
        # The current rows are in memory: without room for more, only the end is compared.
        if self._budget.left < 0:
            self._stop()

    def _compare(self, row: LedgerRange, session: str, state: object) -> None:
        current = self._current.setdefault(session, {})
        newest = self._touched.get(session, {})
        rows_before = len(current)
        self._apply(current, newest)
        self._budget.left -= len(current) - rows_before
        rows = self._read_rows(state)
        # The keys that the batch touched; all keys after a snapshot, or if their number differs.
        compared: Iterable[KeyParts] = newest
        if session in self._snapshots or len(rows) != len(current):
            compared = current
        wrong = self._find_wrong(compared, current, rows)
        if wrong is None and len(rows) != len(current):
            wrong = next(parts for parts in map(self._key.parts_of, rows) if parts not in current)
        if wrong is not None:
            expected, actual = self._describe(wrong, current, rows)
            where = f"session {session!r} {expected} in the state after batch {row.batch}"
            self._violations.add(ViolationKind.REPLAY_DIFFERS, row.place, row.until, where, actual)
            self._adopt(session, state)
        elif not current:
            del self._current[session]

    def _apply(self, current: CurrentOfSession, newest: dict[KeyParts, msgspec.Struct]) -> None:
        """Put the newest rows of a batch among the current rows."""
        for parts, row in newest.items():
            if getattr(row, self._key.removed) is None:
                current.pop(parts, None)
            else:
                current[parts] = row

    def _find_wrong(
        self, compared: Iterable[KeyParts], current: CurrentOfSession, rows: Mapping[Any, object]
    ) -> KeyParts | None:
        """The first of some keys whose current row is not the row of the state."""
        make_key = self._make_key
        values_of = self._values_of
        removed = self._key.removed
        for parts in compared:
            value = _NOTHING if make_key is None else rows.get(make_key(parts), _NOTHING)
            if value is _NOTHING or parts not in current:
                if (value is _NOTHING) is (parts in current):
                    return parts
                continue
            row = current[parts]
            if row is None:
                continue
            expected = value if self._key.is_scalar else values_of(value)
            actual = getattr(row, removed) if self._key.is_scalar else values_of(row)
            if not is_equal(expected, actual):
                return parts
        return None

    def _describe(self, parts: KeyParts, current: CurrentOfSession, rows: Mapping[Any, object]) -> tuple[str, str]:
        """The value of a key in the state, and in the rows."""
        key = parts[0] if len(parts) == 1 else parts
        of_key = f"key {show_short(key)}"
        value = _NOTHING
        if self._make_key is not None:
            value = rows.get(self._make_key(parts), _NOTHING)
        if value is _NOTHING:
            return f"{of_key}: none", "a row of it is the newest"
        row = current.get(parts)
        if row is None:
            return f"{of_key}: a row, as", "no row, or a removal"
        if self._key.is_scalar:
            return f"{of_key}: {show_short(value)}", show_short(getattr(row, self._key.removed))
        names = [name for name in self._key.values if not is_equal(getattr(value, name), getattr(row, name))]
        of_row = {name: getattr(row, name) for name in names}
        of_state = {name: getattr(value, name) for name in names}
        return f"{of_key}: {show_short(of_state)}", show_short(of_row)

    def _adopt(self, session: str, state: object) -> None:
        """Continue with the keys of a state; their rows are unknown until the next ones."""
        self.forget(session)
        self._current[session] = dict.fromkeys(map(self._key.parts_of, self._read_rows(state)))
        self._budget.left -= len(self._current[session])

    def _read_rows(self, state: object) -> Mapping[Any, object]:
        """The rows of a state by key."""
        rows: Mapping[Any, object] = {}
        if isinstance(state, Mapping):
            rows = cast("Mapping[Any, object]", state)
        elif state is not None:
            rows = dict(self._list_rows(state))
        if self._make_key is None and rows:
            self._make_key = _find_key_maker(next(iter(rows)))
        return rows

    def _stop(self) -> None:
        self.is_on = False
        self._budget.left += sum(map(len, self._current.values()))
        self._current = {}


_NOTHING = object()
_NO_KEY = ReplayKey((), "")


def _find_key_maker(key: object) -> Callable[[KeyParts], object]:
    """Makes keys like one of a state from the values of the key columns."""
    if isinstance(key, tuple):
        return lambda parts: parts
    if isinstance(key, msgspec.Struct):
        kind = type(key)
        return lambda parts: kind(**dict(zip(kind.__struct_fields__, parts, strict=True)))
    return lambda parts: parts[0]


def _make_getter(columns: tuple[str, ...]) -> Callable[[object], KeyParts]:
    """The values of some fields, as a tuple also of one."""
    if not columns:
        return lambda _: ()
    values: Callable[[object], Any] = attrgetter(*columns)
    if len(columns) > 1:
        return values
    return lambda row: (values(row),)


def _has_nested_key(row_type: type[msgspec.Struct], key: ReplayKey) -> bool:
    """Whether the key has lists or dicts, which cannot be keys of a dict."""
    schema = make_row_schema(row_type)
    return any(pa.types.is_nested(schema.field(name).type) for name in key.columns)
