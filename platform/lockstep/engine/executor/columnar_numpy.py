"""Plain chunks by NumPy and Arrow, where `lockstep-native` is not installed: columns instead of an object a row.

1. Decode. The columns that an update leaves out are None in a twin of its row type, so that Arrow reads them as null.
2. Compare the numbers of each session with its gate.
3. Find the rows in `TouchedRows`, a matrix of 64-bit words with one line a row: floats by their bits, strings as codes.
4. Sort the changes by row: a column that a change omits keeps the newest value before it, in the chunk or in the
   matrix.
5. Make Arrow columns.
6. Only now keep the values, the numbers and the rows.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, Final, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import astuple
from typing_extensions import override

from lockstep.engine.executor.column_program import ARROW
from lockstep.engine.executor.column_range import (
    NOT_PLAIN,
    ChunkProvenance,
    ColumnRange,
    Pair,
    PlainChunks,
    Words,
    find_offsets,
    has_readable_times,
    pack,
)
from lockstep.engine.executor.rejects import Message
from lockstep.integrity.sequence_numbers import LARGEST
from lockstep.state.decoded_sessions import SessionEntry

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

DICTIONARY_MAX: Final = 50_000
"""Distinct strings up to which Arrow's dictionary of them is renewed: each addition copies it."""
TURNS_MAX: Final = 200
"""Changes of one row in a chunk; each costs a turn of some 10 us, as much as two or three messages."""
MINUS_ZERO: Final = -(2**63)
"""The bits of -0.0 as a signed integer."""


def _unpack_bits(bits: object, size: int) -> Flags:
    return np.unpackbits(np.frombuffer(cast("Any", bits), np.uint8), count=size, bitorder="little").astype(np.bool_)


class StringCodes(dict[str | None, int]):
    """Codes of strings, drawn as they appear; None, for no string, is -1.

    Attributes:
        texts: The strings by code.
    """

    def __init__(self) -> None:
        super().__init__({None: -1})
        self.texts: list[str] = []
        self._arrow: pa.Array[Any] = pa.array([], pa.string())

    def __missing__(self, text: str) -> int:
        """Draw a code."""
        code = self[text] = len(self.texts)
        self.texts.append(text)
        return code

    def decode(self, codes: Words) -> pa.Array[Any]:
        """The strings of codes. Raises ValueError if any string is not valid text (lone surrogates)."""
        if len(self.texts) > DICTIONARY_MAX:
            return pa.array(list(map(self.texts.__getitem__, codes.tolist())), pa.string())
        encoded = len(self._arrow)
        if encoded < len(self.texts):
            self._arrow = pa.concat_arrays([self._arrow, pa.array(self.texts[encoded:], pa.string())])
        return self._arrow.take(cast("Any", pa.array(codes)))


class TouchedRows:
    """The rows that a range has touched, as words: one line a row, one word a column.

    Attributes:
        words: The newest values, by place.
        codes: Of the strings.
    """

    def __init__(self, of_range: ColumnRange) -> None:
        self._range = of_range
        self._kinds = [kind for kind, _ in of_range.program.columns]
        self.codes = StringCodes()
        self._places: defaultdict[str, dict[object, int]] = defaultdict(dict)
        self._pairs: list[Pair] = []
        self.words: Words = np.empty((0, len(self._kinds)), np.int64)
        self._is_dirty: Flags = np.empty(0, np.bool_)

    def find(self, sessions: Sequence[str], keys: Sequence[object]) -> Places:
        """The places of rows. Raises KeyError if a session has no such row."""
        by_session = self._places
        try:  # nearly all chunks touch rows of earlier chunks only: no second pass that searches missing ones
            places = [by_session[session][key] for session, key in zip(sessions, keys, strict=True)]
        except KeyError:
            rows = dict.fromkeys(zip(sessions, keys, strict=True))
            self._load([(session, key) for session, key in rows if key not in by_session[session]])
            places = [by_session[session][key] for session, key in zip(sessions, keys, strict=True)]
        return pack(places)

    def put(self, places: Places, words: Words) -> None:
        """Set the values of rows; of one that is there more than once, the last."""
        self.words[places] = words
        self._is_dirty[places] = True

    def write_back(self) -> None:
        """Return the changed rows to the states of their sessions, and forget all."""
        if not self._pairs:
            return
        dirty = np.flatnonzero(self._is_dirty[: len(self._pairs)])
        columns = [self._values(kind, self.words[dirty, n]) for n, kind in enumerate(self._kinds)]
        pairs = [self._pairs[place] for place in dirty.tolist()]
        self._range.put_rows((*pair, values) for pair, values in zip(pairs, zip(*columns, strict=True), strict=True))
        self._places.clear()
        self._pairs.clear()

    def make_words(self, kind: type, column: Sequence[object]) -> tuple[Words, Flags | None]:
        """Values as words, and a mask of the present values; None: all are present."""
        if kind is str:
            words = np.fromiter(map(self.codes.__getitem__, cast("Any", column)), np.int64, len(column))
            return words, words >= 0
        if kind is float:
            floats = np.frombuffer(struct.pack(f"{len(column)}d", *column), np.float64)
            return floats.view(np.int64), ~np.isnan(floats)
        array = pa.array(column, ARROW[kind])
        valid, values = array.buffers()
        present = _unpack_bits(valid, len(column)) if array.null_count else None
        if kind is bool:
            return _unpack_bits(values, len(column)).astype(np.int64), present
        return np.frombuffer(cast("Any", values), np.int64, len(column)), present

    def make_arrow(self, kind: type, words: Words) -> pa.Array[Any]:
        """Words as Arrow."""
        if kind is str:
            return self.codes.decode(words)
        if kind is bool:
            return pa.array(words.astype(np.bool_))
        return pa.Array.from_buffers(ARROW[kind], len(words), [None, pa.py_buffer(cast("Any", words))])

    def _values(self, kind: type, words: Words) -> list[object]:
        if kind is str:
            return list(map(self.codes.texts.__getitem__, words.tolist()))
        values = words.view(np.float64) if kind is float else words.astype(kind)
        return cast("list[object]", values.tolist())

    def _load(self, missing: list[Pair]) -> None:
        columns = list(zip(*map(astuple, self._range.find_rows(missing)), strict=True))
        for kind, column in zip(self._kinds, columns, strict=True):
            if set(map(type, column)) != {kind}:
                raise TypeError("the fold left values of other types in a state: Arrow would convert them")
        first = len(self._pairs)
        until = len(self._pairs) + len(missing)
        words = [self.make_words(kind, column)[0] for kind, column in zip(self._kinds, columns, strict=True)]
        self._reserve(until)
        for n, column_words in enumerate(words):
            self.words[first:until, n] = column_words
        self._is_dirty[first:until] = False
        for place, (session, key) in enumerate(missing, first):
            self._places[session][key] = place
        self._pairs += missing

    def _reserve(self, rows: int) -> None:
        if rows > len(self.words):  # doubled: many chunks with a few new rows each copy the matrix rarely
            more = max(rows, 2 * len(self.words)) - len(self.words)
            self.words = np.concatenate([self.words, np.empty((more, len(self._kinds)), np.int64)])
            self._is_dirty = np.concatenate([self._is_dirty, np.empty(more, np.bool_)])


class _Updates(msgspec.Struct, frozen=True):
    """The updates of a chunk, by field.

    Attributes:
        offsets: Their offsets.
        sessions: Their sessions.
        numbers: The producer's numbers.
        times: Their event times; None without.
        rows: Their changes of rows.
        sizes: How many these are; None: one each.
    """

    offsets: Words
    sessions: list[str]
    numbers: Words
    times: Words | None
    rows: list[list[msgspec.Struct]]
    sizes: list[int] | None


class _Sessions(msgspec.Struct, frozen=True):
    """The sessions of a chunk.

    Attributes:
        entries: Their states.
        names: Their names.
        of: For each message the place of its session.
        newest: For each session its newest number.
    """

    entries: list[SessionEntry[object]]
    names: list[str]
    of: npt.NDArray[np.int32]
    newest: list[int]


class _Changed(msgspec.Struct, frozen=True):
    """The rows of a chunk after and before each change, in the order of the changes.

    Attributes:
        after: A line a change.
        before: A line a change.
        places: The rows that were changed.
    """

    after: Words
    before: Words
    places: Places


def find_starts(of: npt.NDArray[Any]) -> Flags:
    """The start of each group in a sorted array."""
    starts = np.empty(len(of), np.bool_)
    starts[0] = True
    np.not_equal(of[1:], of[:-1], out=starts[1:])
    return starts


def apply_changes(places: Places, values: Words, present: Flags, current: Words) -> _Changed | None:
    """Change rows one after the other: a line of `values` each, where `present`.

    All first changes of a row together, then all second changes, and so on: few rows change twice in a chunk.

    Args:
        places: For each change the row.
        values: For each change the new words.
        present: Which of these are new.
        current: The words of all rows before the changes.

    Returns:
        None if a row changes so often that one change after the other costs less.
    """
    order = places.astype(np.int32).argsort(kind="stable")
    starts = find_starts(places[order])
    previous = current[places]
    after = np.where(present, values, previous)
    if not starts.all():
        indices = np.arange(len(order))
        turns = indices - np.maximum.accumulate(np.where(starts, indices, 0))
        last = int(turns.max())
        if last > TURNS_MAX:
            return None
        later = np.flatnonzero(turns)
        later = later[turns[later].argsort(kind="stable")]
        until = np.searchsorted(turns[later], np.arange(1, last + 2)).tolist()
        for first, end in pairwise(until):
            change = order[later[first:end]]
            base = previous[change] = after[order[later[first:end] - 1]]
            after[change] = np.where(present[change], values[change], base)
    return _Changed(after, previous, places)


class NumpyChunks(PlainChunks):
    """The plain chunks of one range."""

    def __init__(self, of_range: ColumnRange) -> None:
        self._range = of_range
        self._program = of_range.program
        self._rows = TouchedRows(of_range)

    @override
    def write_back(self) -> None:
        self._rows.write_back()

    @override
    def fold(self, messages: Sequence[Message]) -> bool:
        try:
            updates = self._decode(messages)  # 1
            if updates is None:
                return False
            sessions = self._check(updates)  # 2
            if sessions is None:
                return False
            changes = list(chain.from_iterable(updates.rows))
            if not changes:
                return False  # messages without rows only prove that their producers live
            columns = list(zip(*map(astuple, changes), strict=True))
            changed = self._change(updates, columns)  # 3, 4
            if changed is None:
                return False
            batch, proof = self._encode(updates, sessions, columns[self._program.key], changed)  # 5
        except NOT_PLAIN:  # nothing is changed yet: the plain loop folds these messages and names the reason
            return False
        self._range.append(batch, proof, sessions.entries, sessions.newest)  # 6
        self._rows.put(changed.places, changed.after)
        return True

    def _decode(self, messages: Sequence[Message]) -> _Updates | None:
        """The messages by field; None if one is not an update."""
        program = self._program
        kind = type(messages[0])
        values = list(map(kind.value, messages))
        if max(map(len, cast("list[bytes]", values))) > program.message_bytes_max:
            return None
        bodies = list(map(program.decode, cast("list[bytes]", values)))
        if set(map(type, bodies)) != {program.update}:
            return None
        if self._range.emission.emitted_at(cast("int", messages[0].offset())):
            return None  # rows at this offset before its own
        if program.session is None:
            keys = list(map(kind.key, messages))
            if None in keys:
                return None
            sessions = [key.decode() for key in cast("list[bytes]", keys)]
        else:
            sessions = list(map(program.session, bodies))
        times: Words | None = None
        if program.event_time_us is not None:
            times = pack(list(map(program.event_time_us, bodies)))
            if not has_readable_times(times):
                return None
        rows = list(map(program.rows, bodies))
        sizes = list(map(len, rows))
        return _Updates(
            offsets=find_offsets(messages),
            sessions=sessions,
            numbers=pack(list(map(program.sequence, bodies))),
            times=times,
            rows=rows,
            sizes=None if sizes.count(1) == len(sizes) else sizes,
        )

    def _check(self, updates: _Updates) -> _Sessions | None:
        """The sessions, if each has started and its numbers are consecutive."""
        places = {session: place for place, session in enumerate(dict.fromkeys(updates.sessions))}
        entries = self._range.find_entries(list(places))
        if entries is None:
            return None
        of = np.fromiter(map(places.__getitem__, updates.sessions), np.int32, len(updates.sessions))
        # NumPy sorts 16 bits by radix, in linear time.
        sortable = of.astype(np.int16) if len(places) < 2**15 else of
        order = sortable.argsort(kind="stable")
        numbers = updates.numbers[order]
        starts = find_starts(of[order])
        previous = np.empty_like(numbers)
        previous[1:] = numbers[:-1]
        previous[starts] = pack([cast("int", entry.gate) for entry in entries])
        # The sum below would wrap around at the largest number.
        if previous.max() == LARGEST or not np.array_equal(numbers, previous + 1):
            return None
        ends = np.append(starts[1:], True)  # the last message is the last of its session
        return _Sessions(entries, list(places), of, numbers[ends].tolist())

    def _change(self, updates: _Updates, columns: Sequence[Sequence[Any]]) -> _Changed | None:
        """The rows after and before each change."""
        program = self._program
        sessions = updates.sessions
        if updates.sizes is not None:
            sessions = []
            for session, size in zip(updates.sessions, updates.sizes, strict=True):
                sessions += [session] * size
        places = self._rows.find(sessions, columns[program.key])
        values = np.empty((len(places), len(program.columns)), np.int64)
        present = np.ones(values.shape, np.bool_)
        for n, (kind, place) in enumerate(program.columns):
            values[:, n], is_set = self._rows.make_words(kind, columns[place])
            if is_set is not None:
                present[:, n] = is_set
        changed = apply_changes(places, values, present, self._rows.words)
        if changed is None or program.emits_unchanged or self._is_comparable(changed):
            return changed
        return None

    def _is_comparable(self, changed: _Changed) -> bool:
        """Whether equal values are equal words: not with NaN, nor with -0.0."""
        floats = [n for n, (kind, _) in enumerate(self._program.columns) if kind is float]
        for words in (changed.after[:, floats], changed.before[:, floats]):
            if (words == MINUS_ZERO).any() or np.isnan(words.view(np.float64)).any():
                return False
        return True

    def _encode(
        self, updates: _Updates, sessions: _Sessions, keys: Sequence[object], changed: _Changed
    ) -> tuple[pa.RecordBatch, ChunkProvenance]:
        """The record batch, and the provenance of its rows."""
        program = self._program
        after = changed.after
        previous = changed.before
        key = self._key(keys)
        message = None  # the place of each row's message; None: one row a message
        if updates.sizes is not None:
            message = np.repeat(np.arange(len(updates.sizes)), updates.sizes)
        if not program.emits_unchanged and not (is_changed := (after != previous).any(axis=1)).all():
            after = after[is_changed]
            previous = previous[is_changed]
            key = key.filter(cast("Any", pa.array(is_changed)))
            message = np.flatnonzero(is_changed) if message is None else message[is_changed]
        # Arrow takes each column as one buffer without a copy.
        after = np.ascontiguousarray(after.T)
        previous = np.ascontiguousarray(previous.T)
        kinds = [kind for kind, _ in program.columns]
        width = len(program.columns)
        columns: list[pa.Array[Any]] = []
        for source in program.source:  # 0: the key; then the columns after the change; then those before it
            if source == 0:
                columns.append(key)
                continue
            n = (source - 1) % width
            words = after if source <= width else previous
            columns.append(self._rows.make_arrow(kinds[n], words[n]))
        rows = np.ones(len(updates.rows), np.int64)
        if message is not None:
            rows = np.bincount(message, minlength=len(updates.rows))
        of = sessions.of if message is None else sessions.of[message]
        names = pa.array(sessions.names, pa.string()).take(cast("Any", pa.array(of)))
        proof = ChunkProvenance(updates.offsets, updates.numbers, updates.times, names, message, rows)
        return self._range.build(columns, proof), proof

    def _key(self, keys: Sequence[object]) -> pa.Array[Any]:
        if isinstance(keys[0], int):
            return pa.array(pack(cast("Any", keys)))
        return pa.array(keys, pa.string())
