"""Evidence of order in the messages of a topic: sessions, kinds of snapshots, numbers, links. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, filterfalse, islice, pairwise
from statistics import median

from typing_extensions import TypeIs

from lockstep.features.inference.shapes import INT64

Step = str | int
Path = tuple[Step, ...]
"""A place in a message: names of fields, positions of lists."""
Scalar = str | int | float | bool

DEPTH_MAX = 4
PATHS_MAX = 200
POSITIONS_MAX = 8
PROVEN_STEPS_MIN = 3
"""So many consecutive numbers are no accident."""
MISSING_MAX = 0.2
"""Share of messages without a number that a stream of numbered messages may have; they are skipped."""
DISPLACED_MAX = 1_000
SNAPSHOT_SHARE_MAX = 0.5
LARGE_FACTOR = 3
WORD_MAX = 60
"""A longer text does not name a kind of messages."""
SNAPSHOT_WORDS = re.compile(
    r"snap|partial|image|img|full|init|subscribed|lastUpdateId|checkpoint|baseline", re.IGNORECASE
)


@dataclass(frozen=True)
class SampledMessage:
    """A message of the sample.

    Attributes:
        partition: Its partition.
        offset: Its offset.
        key: Its key.
        value: Its value; never None.
        timestamp_ms: Kafka's timestamp.
        decoded: The decoded JSON.
        scalars: Plain values by place.
        places: All places that are not null.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    timestamp_ms: int
    decoded: object
    scalars: Mapping[Path, Scalar] = field(default_factory=dict)
    places: frozenset[Path] = frozenset()


def list_places(decoded: object) -> Iterator[tuple[Path, object]]:
    """Places of a message that a path leads to, with their values; at most `PATHS_MAX`."""
    waiting: list[tuple[Path, object]] = [((), decoded)]
    count = 0
    while waiting and count < PATHS_MAX:
        path, value = waiting.pop(0)
        if path and value is not None:
            count += 1
            yield path, value
        if len(path) < DEPTH_MAX:
            # Breadth first: of too many places the shallow ones are kept.
            waiting.extend(((*path, step), part) for step, part in _list_parts(value, is_whole=not path))


def _list_parts(value: object, *, is_whole: bool) -> Iterator[tuple[Step, object]]:
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, list) and (len(value) == 1 or (is_whole and len(value) <= POSITIONS_MAX)):
        yield from enumerate(value)


class MessageMark:
    """Tells messages of one kind from all others.

    Attributes:
        path: The place that decides.
        value: Its value, if that decides; None if it is its presence.
    """

    def __init__(self, path: Path, value: Scalar | None) -> None:
        self.path = path
        self.value = value

    def holds(self, message: SampledMessage) -> bool:
        """Whether a message is of the kind."""
        if self.value is None:
            return self.path in message.places
        value = message.scalars.get(self.path)
        # In Python True equals 1.
        return type(value) is type(self.value) and value == self.value

    @property
    def has_hint(self) -> bool:
        """Whether its words are those of snapshots."""
        text = f"{self.path[-1]} {self.value if isinstance(self.value, str) else ''}"
        return SNAPSHOT_WORDS.search(text) is not None


@dataclass(frozen=True)
class Order:
    """How the messages of a session are ordered, as far as their content proves it.

    Attributes:
        kind: "sequence", "linked", "window" or "log".
        number: Place of the number; of links that of the last id.
        first: Place of the first id that a message covers.
        previous: Place of the last id of the message before.
        opening: Place of the last id in a snapshot.
    """

    kind: str
    number: Path | None = None
    first: Path | None = None
    previous: Path | None = None
    opening: Path | None = None


Sessions = Sequence[Sequence[SampledMessage]]


def split_sessions(messages: Iterable[SampledMessage], path: Path | None) -> list[list[SampledMessage]] | None:
    """The messages by session, in the order of the log; None if a message has none, or a session two partitions.

    Args:
        messages: The messages.
        path: Place of the session; None for the key.
    """
    sessions: dict[object, list[SampledMessage]] = defaultdict(list)
    for message in messages:
        session = message.key if path is None else message.scalars.get(path)
        # A fraction or a flag names no session.
        if session is None or isinstance(session, float | bool):
            return None
        sessions[str(session)].append(message)
    groups = list(sessions.values())
    if any(map(_is_split, groups)):
        return None
    return groups


def _is_split(session: Sequence[SampledMessage]) -> bool:
    """Whether a session has messages in several partitions."""
    return len({message.partition for message in session}) > 1


def find_snapshot(sessions: Sessions) -> MessageMark | None:
    """The kind of message that starts sessions and is rare inside of them; None if there is none."""
    firsts = [session[0] for session in sessions]
    others = list(chain.from_iterable(session[1:] for session in sessions))
    if not others:
        return None
    scored: list[tuple[int, int, MessageMark]] = []
    for mark in _list_predicates(firsts[0]):
        if not all(map(mark.holds, firsts)):
            continue
        inside = sum(map(mark.holds, others))
        if inside <= SNAPSHOT_SHARE_MAX * len(others) and (mark.has_hint or _is_plain(firsts, others)):
            scored.append((not mark.has_hint, inside, mark))
    if not scored:
        return None
    # Marks cannot be compared, so the last part is left out.
    _, _, best = min(scored, key=lambda candidate: candidate[:2])
    return best


def find_late_snapshot(sessions: Sessions) -> MessageMark | None:
    """The kind of message that is named as a snapshot, in sessions whose first messages may be gone."""
    messages = list(chain.from_iterable(sessions))
    counts: dict[tuple[Path, Scalar | None], int] = defaultdict(int)
    for message in messages:
        for mark in _list_predicates(message):
            if mark.has_hint:
                counts[mark.path, mark.value] += 1
    rare = [(path, value) for (path, value), count in counts.items() if count <= SNAPSHOT_SHARE_MAX * len(messages)]
    if not rare:
        return None
    path, value = min(rare, key=lambda place: (counts[place], len(place[0])))
    return MessageMark(path, value)


def _list_predicates(message: SampledMessage) -> Iterator[MessageMark]:
    for path, value in message.scalars.items():
        if value is True or (isinstance(value, str) and len(value) <= WORD_MAX):
            yield MessageMark(path, value)
    for path in sorted(message.places, key=lambda place: (len(place), str(place))):
        yield MessageMark(path, None)


def _is_plain(firsts: Sequence[SampledMessage], others: Sequence[SampledMessage]) -> bool:
    """Whether the first messages of sessions differ enough from all others to be no accident."""
    size_of_firsts = median(len(message.value) for message in firsts)
    size_of_others = median(len(message.value) for message in others)
    return size_of_firsts > LARGE_FACTOR * size_of_others or len(firsts) >= PROVEN_STEPS_MIN


def find_orders(sessions: Sessions, snapshot: MessageMark | None) -> list[Order]:
    """The orders that hold for all messages, the strongest first; at the end that of the log."""
    numbers = _list_numbers(sessions)
    orders = [Order("sequence", path) for path in numbers if _holds_sequence(sessions, path)]
    if snapshot is not None:
        orders += _find_links(sessions, snapshot)
    # Numbers that form a sequence form a window as well, which proves less.
    if not orders:
        orders += [Order("window", path) for path in numbers if _holds_window(sessions, path)]
    return [*orders, Order("log")]


def _list_numbers(sessions: Sessions) -> list[Path]:
    """Places of whole numbers that nearly all messages have; the shallow ones first."""
    counts: dict[Path, int] = defaultdict(int)
    total = 0
    for session in sessions:
        for message in session:
            total += 1
            for path, value in message.scalars.items():
                if _is_number(value):
                    counts[path] += 1
    wanted = (1 - MISSING_MAX) * total
    return sorted((path for path, count in counts.items() if count >= wanted), key=len)


def _is_number(value: Scalar | None) -> TypeIs[int]:
    """Whether a value may be a number of messages: whole, of 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and value in INT64


def _read_numbers(session: Sequence[SampledMessage], path: Path) -> list[int]:
    values = [message.scalars.get(path) for message in session]
    return [value for value in values if _is_number(value)]


def _holds_sequence(sessions: Sessions, path: Path) -> bool:
    steps = 0
    for session in sessions:
        numbers = _read_numbers(session, path)
        # One gap refutes it: a candidate must accept every message.
        if any(after != before + 1 for before, after in pairwise(numbers)):
            return False
        steps += max(0, len(numbers) - 1)
    return steps >= PROVEN_STEPS_MIN


def _holds_window(sessions: Sessions, path: Path) -> bool:
    """Whether the numbers of each session are complete, each near its place."""
    steps = 0
    for session in sessions:
        numbers = _read_numbers(session, path)
        if len(numbers) < 2:  # noqa: PLR2004  # no order
            continue
        lowest = min(numbers)
        if sorted(numbers) != list(range(lowest, lowest + len(numbers))) or numbers[0] != lowest:
            return False
        if any(abs(number - lowest - place) > DISPLACED_MAX for place, number in enumerate(numbers)):
            return False
        steps += len(numbers) - 1
    return steps >= PROVEN_STEPS_MIN


def _find_links(sessions: Sessions, snapshot: MessageMark) -> list[Order]:
    """Links of updates: the first id follows the last id of the message before, or names it."""
    updates = [list(filterfalse(snapshot.holds, session)) for session in sessions]
    openings = [list(islice(filter(snapshot.holds, session), 1)) for session in sessions]
    numbers = _list_numbers(updates)
    if sum(max(0, len(session) - 1) for session in updates) < PROVEN_STEPS_MIN:
        return []
    orders: list[Order] = []
    for last in numbers:
        first = _find_link(updates, numbers, last, 1)
        previous = _find_link(updates, numbers, last, 0)
        # Some producers send ids with gaps, and name the id before.
        if previous is not None and first is None:
            first = _find_within(updates, numbers, previous, last)
        if first is None and previous is None:
            continue
        opening = _find_opening(openings, updates, Order("linked", last, first, previous))
        if opening is not None:
            orders.append(Order("linked", last, first, previous, opening))
    return orders


def _find_link(updates: Sessions, numbers: Iterable[Path], last: Path, step: int) -> Path | None:
    for path in numbers:
        if path != last and _links(updates, path, last, step):
            return path
    return None


def _find_within(updates: Sessions, numbers: Iterable[Path], previous: Path, last: Path) -> Path | None:
    for path in numbers:
        if _is_within(updates, path, previous, last):
            return path
    return None


def _links(updates: Sessions, path: Path, last: Path, step: int) -> bool:
    """Whether a number of each message is that of the message before, plus a step."""
    for session in updates:
        for before, after in pairwise(session):
            number = before.scalars.get(last)
            if not isinstance(number, int) or after.scalars.get(path) != number + step:
                return False
    return True


def _is_within(updates: Sessions, path: Path, previous: Path, last: Path) -> bool:
    """Whether a number of each message is behind that of the message before, and no later than the last id."""
    # Ids of one link are fields of one object.
    if path in {previous, last} or path[:-1] != last[:-1]:
        return False
    for session in updates:
        previous_ids = _read_numbers(session, previous)
        numbers = _read_numbers(session, path)
        newest = _read_numbers(session, last)
        if not all(low < number <= high for low, number, high in zip(previous_ids, numbers, newest, strict=False)):
            return False
    return True


def _find_opening(openings: Sessions, updates: Sessions, order: Order) -> Path | None:
    """The place of a snapshot's last id: one that the first update after it covers."""
    covers = _make_cover(order)
    for path in _list_numbers(openings):
        pairs = [(start, after) for start, after in zip(openings, updates, strict=True) if start and after]
        if pairs and all(covers(_read_numbers(start, path)[0], after[0]) for start, after in pairs):
            return path
    return None


def _make_cover(order: Order) -> Callable[[int, SampledMessage], bool]:
    def covers(opened: int, update: SampledMessage) -> bool:
        last = update.scalars.get(order.number or ())
        first = update.scalars.get(order.first or order.previous or ())
        return isinstance(last, int) and isinstance(first, int) and first <= opened + 1 and opened <= last

    return covers


def find_rising(sessions: Sessions) -> Path | None:
    """The first whole number that rises with each message of a session, with gaps; None if there is none."""
    for path in _list_numbers(sessions):
        series = [_read_numbers(session, path) for session in sessions]
        steps = sum(max(0, len(numbers) - 1) for numbers in series)
        if steps >= PROVEN_STEPS_MIN and all(numbers == sorted(set(numbers)) for numbers in series):
            return path
    return None


CHECKSUM_WORDS = re.compile(r"(?:.*[_-])?(?:c|cs|crc|crc32|checksum|hash|digest)", re.IGNORECASE)


def find_checksum(messages: Sequence[SampledMessage]) -> Path | None:
    """A place named as a checksum, in many messages with many values; None if there is none."""
    values: dict[Path, list[Scalar]] = defaultdict(list)
    for message in messages:
        for path, value in message.scalars.items():
            if isinstance(path[-1], str) and CHECKSUM_WORDS.fullmatch(path[-1]) and isinstance(value, int | str):
                values[path].append(value)
    # A checksum differs from message to message; an id of a key or a version does not.
    least = max(PROVEN_STEPS_MIN, len(messages) // 4)
    for path, checksums in values.items():
        if len(set(checksums)) > least:
            return path
    return None


@dataclass(frozen=True)
class EventTimePlace:
    """The place of event times.

    Attributes:
        path: The place.
        unit: "s", "ms", "us", "ns", or "text" for RFC 3339.
    """

    path: Path
    unit: str


UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Nanoseconds of a unit."""
_EARLIEST_NS = 946_684_800 * 1_000_000_000
_LATEST_NS = 4_102_444_800 * 1_000_000_000
_NEAR_NS = 86_400 * 1_000_000_000
_TIME_WORDS = re.compile(r"time|stamp|date|(?:^|_)(?:ts|pt|at|e)(?:_|$)", re.IGNORECASE)


def find_event_time(messages: Sequence[SampledMessage], is_typed: Callable[[Path], bool]) -> EventTimePlace | None:
    """The whole number that is a time: near Kafka's timestamp, or named as a time, in most messages.

    Args:
        messages: The messages.
        is_typed: Whether the types of messages lead to a place.
    """
    sessions = [messages]
    best: tuple[int, EventTimePlace] | None = None
    for path in filter(is_typed, _list_numbers(sessions)):
        for unit, factor in UNITS.items():
            times = [number * factor for number in _read_numbers(messages, path)]
            if not all(_EARLIEST_NS < time < _LATEST_NS for time in times):
                continue
            with_time = [message for message in messages if path in message.scalars]
            distances = [
                abs(time - message.timestamp_ms * 1_000_000) for time, message in zip(times, with_time, strict=True)
            ]
            near = sum(distance < _NEAR_NS for distance in distances)
            # Nearness to Kafka's timestamp counts more than a name.
            score = 2 * (near > len(times) / 2) + (_TIME_WORDS.search(str(path[-1])) is not None)
            if score and (best is None or score > best[0]):
                best = (score, EventTimePlace(path, unit))
    return best[1] if best is not None else None
