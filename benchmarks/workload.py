"""The messages of every benchmark: seeded, the same bytes for every system and on every run.

A family of topics carries the snapshot and the updates of many sessions, as plants, markets and
fleets send them. The first messages of a topic are its sessions' snapshots (all rows, all columns),
every later message changes `CHANGED_COLUMNS` columns of one row of one session drawn at random.

Random numbers come from a counter (SplitMix64 of topic, message and lane), not from a library's
generator: they stay the same on every version of Python and numpy, and each topic can be
generated apart from the others. A value column takes 65,536 values, as a 16-bit converter gives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
import numpy.typing as npt

COLUMNS = ("status", "name", "v0", "v1", "v2", "v3", "q", "flag")
CHANGED_COLUMNS = 3
SEED = 20_260_101
FIRST_TS_US = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
TS_STEP_US = 100  # 10,000 messages a second over all topics, in event time
BLOCK_MESSAGES = 1_000

_GOLDEN = 0x9E3779B97F4A7C15
_CODES = 1 << 16
_STATUSES = ("ok", "idle", "running", "stopped", "starting", "degraded", "fault", "unknown")
_KINDS = ("pump", "valve", "motor", "boiler", "conveyor", "compressor", "fan", "mixer")
_CHOICES = tuple(combinations(COLUMNS, CHANGED_COLUMNS))

Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Size:
    """How much of the workload: every figure is over all topics.

    Attributes:
        name: Part of the topics' names, so that several sizes live in one broker.
        messages: Messages, snapshots included.
        topics: Topics of one partition each.
        sessions: Sessions, spread evenly; one snapshot each.
        rows: Rows of a snapshot.
    """

    name: str
    messages: int
    topics: int = 8
    sessions: int = 200
    rows: int = 200

    @property
    def pattern(self) -> str:
        """The regular expression that matches this size's topics and no other's."""
        return rf"sensors\.{self.name}\.\d+"

    @property
    def messages_per_topic(self) -> int:
        """Messages of each topic."""
        return self.messages // self.topics

    @property
    def sessions_per_topic(self) -> int:
        """Sessions of each topic."""
        return self.sessions // self.topics

    @property
    def updates(self) -> int:
        """Messages that change a row; one output row each."""
        return self.messages - self.sessions

    def topic_names(self) -> list[str]:
        """All topics, `sensors.<size>.<number>`."""
        return [f"sensors.{self.name}.{number}" for number in range(self.topics)]


SMOKE = Size("smoke", 20_000)
MAIN = Size("main", 5_000_000)
# Eight systems in turns, some of which take ten times as long as others: less than MAIN, so that it ends.
PEERS = Size("peers", 2_400_000)
# Only the number of topics differs: the same messages in all, the same sessions, the same rows.
TOPICS = tuple(Size(f"topics-{n}", 2_000_000, topics=n, sessions=8_000, rows=20) for n in (1, 8, 64, 400, 1_000))
# Only the number of sessions differs; 2 rows each, as 200 would measure the memory of a million tables.
SESSIONS = tuple(Size(f"sessions-{n}", 3_000_000, sessions=n, rows=2) for n in (1_000, 10_000, 100_000, 1_000_000))
SIZES = {size.name: size for size in (SMOKE, MAIN, PEERS, *TOPICS, *SESSIONS)}


@dataclass(frozen=True)
class Block:
    """Successive messages of one topic.

    Attributes:
        topic: The topic's name.
        messages: Key (the session's name) and JSON value of each message, in order.
    """

    topic: str
    messages: list[tuple[bytes, bytes]]


def blocks(size: Size) -> Iterator[Block]:
    """All messages of a size, `BLOCK_MESSAGES` of each topic in turn."""
    topics = [_Topic(size, number) for number in range(size.topics)]
    for first in range(0, size.messages_per_topic, BLOCK_MESSAGES):
        for topic in topics:
            yield topic.block(first, min(first + BLOCK_MESSAGES, size.messages_per_topic))


def messages_of_topic(size: Size, number: int) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of the messages of a topic, in order."""
    topic = _Topic(size, number)
    for first in range(0, size.messages_per_topic, BLOCK_MESSAGES):
        yield from topic.block(first, min(first + BLOCK_MESSAGES, size.messages_per_topic)).messages


def interleaved(size: Size, first: int, until: int) -> Iterator[tuple[str, bytes, bytes]]:
    """Topic, key and value of the messages [first, until) of each topic, all topics taking turns.

    As live producers send. The messages are those of `blocks`, in the same order within a topic.
    """
    topics = [_Topic(size, number) for number in range(size.topics)]
    for topic in topics:
        topic.skip(first)
    for start in range(first, until, BLOCK_MESSAGES):
        parts = [topic.block(start, min(start + BLOCK_MESSAGES, until)) for topic in topics]
        for turn in zip(*(part.messages for part in parts), strict=True):
            for part, (key, value) in zip(parts, turn, strict=True):
                yield part.topic, key, value


def digest(size: Size) -> str:
    """SHA-256 over topic, key and value of all messages: equal digests, equal workloads."""
    total = hashlib.sha256()
    for block in blocks(size):
        total.update(block.topic.encode())
        for key, value in block.messages:
            total.update(b"%d:%d:" % (len(key), len(value)) + key + value)
    return total.hexdigest()


class _Topic:
    """The messages of one topic; remembers only each session's next sequence number."""

    def __init__(self, size: Size, number: int) -> None:
        self._size = size
        self._name = f"sensors.{size.name}.{number}"
        self._number = number
        self._source = f"site-{number % 10}/gateway-{number:03d}"
        first_session = number * size.sessions_per_topic
        self._sessions = [f"s{first_session + n:07d}" for n in range(size.sessions_per_topic)]
        self._sequences = [0] * size.sessions_per_topic

    def block(self, first: int, until: int) -> Block:
        """The messages [first, until) of this topic; blocks must be asked for in order."""
        snapshots = range(first, min(until, len(self._sessions)))
        updates = range(max(first, len(self._sessions)), until)
        messages = [self._snapshot(index) for index in snapshots]
        return Block(self._name, messages + self._updates(updates))

    def skip(self, until: int) -> None:
        """Go on behind the first messages: only sequence numbers of the updates among them are to be known."""
        updates = range(len(self._sessions), until)
        for session in _draws(self._number, updates, 1)[:, 0] % np.uint64(len(self._sessions)):
            self._sequences[session] += 1

    def _snapshot(self, index: int) -> tuple[bytes, bytes]:
        session = self._sessions[index]
        draws = _draws(self._number, range(index, index + 1), self._size.rows * len(COLUMNS), lanes_from=8)
        codes = (draws % np.uint64(_CODES)).reshape(self._size.rows, len(COLUMNS)).tolist()
        fragments = [_fragments(column) for column in COLUMNS]
        rows = ",".join(
            f'{{"id":{row + 1},{",".join(f[c] for f, c in zip(fragments, code, strict=True))}}}'
            for row, code in enumerate(codes)
        )
        return session.encode(), self._message("snapshot", index, session, 0, rows)

    def _updates(self, indexes: range) -> list[tuple[bytes, bytes]]:
        drawn = _draws(self._number, indexes, 3 + CHANGED_COLUMNS)
        bounds = (len(self._sessions), self._size.rows, len(_CHOICES), *[_CODES] * CHANGED_COLUMNS)
        lanes = (drawn % np.array(bounds, dtype=np.uint64)).tolist()
        return [self._update(index, *lane) for index, lane in zip(indexes, lanes, strict=True)]

    def _update(self, index: int, session: int, row: int, choice: int, *codes: int) -> tuple[bytes, bytes]:
        self._sequences[session] += 1
        one, two, three = _choice_fragments()[choice]
        a, b, c = codes
        changed = f'{{"id":{row + 1},{one[a]},{two[b]},{three[c]}}}'
        name = self._sessions[session]
        return name.encode(), self._message("update", index, name, self._sequences[session], changed)

    def _message(self, kind: str, index: int, session: str, sequence: int, rows: str) -> bytes:
        ts = FIRST_TS_US + (index * self._size.topics + self._number) * TS_STEP_US
        head = f'{{"type":"{kind}","session":"{session}","seq":{sequence},"ts":{ts}'
        return f'{head},"source":"{self._source}","rows":[{rows}]}}'.encode()


def _draws(topic: int, indexes: range, lanes: int, lanes_from: int = 0) -> Words:
    """Random words, one row a message, one column a lane: SplitMix64 of a counter."""
    message = np.arange(indexes.start, indexes.stop, dtype=np.uint64)[:, None]
    lane = np.arange(lanes_from, lanes_from + lanes, dtype=np.uint64)[None, :]
    stream = mix(np.array([[SEED + topic]], dtype=np.uint64))
    return mix(mix(stream + message) + lane)


def mix(words: Words) -> Words:
    """SplitMix64: the next word of a generator whose state is the given word.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


@cache
def _choice_fragments() -> list[tuple[list[str], ...]]:
    """For each choice of changed columns the three lists of `_fragments`."""
    return [tuple(_fragments(column) for column in choice) for choice in _CHOICES]


@cache
def _fragments(column: str) -> list[str]:
    """The JSON member `"column":value` for each of the 65,536 codes of a column."""
    return [f'"{column}":{_value(column, code)}' for code in range(_CODES)]


def _value(column: str, code: int) -> str:
    """The JSON text of one value: readings always with a decimal point, so that they stay floats."""
    match column:
        case "status":
            return f'"{_STATUSES[code % len(_STATUSES)]}"'
        case "name":
            return f'"{_KINDS[code % len(_KINDS)]}-{code % 1_000:03d}"'
        case "q":
            return str(code % 10_001)
        case "flag":
            return "true" if code % 2 else "false"
        case _:
            return _reading(column, code)


def _reading(column: str, code: int) -> str:
    """A converter's code as a physical value, each column with its own range and resolution."""
    units = {"v0": (1_000, 3), "v1": (100, 2), "v2": (100, 2), "v3": (10, 1)}
    divisor, decimals = units[column]
    signed = code - _CODES // 2 if column == "v1" else code
    return f"{signed / divisor:.{decimals}f}"
