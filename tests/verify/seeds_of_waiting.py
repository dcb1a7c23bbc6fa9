"""Violations of what waits, what is late and what is due, each put by chance into a copy of a good table of meters."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard

from lockstep.verify.report import ViolationKind as Kind
from tests.verify.seeds_of_rows import Found, one_of, pick

if TYPE_CHECKING:
    from tests.verify.forging import Forged

COUNTS = ("with_rows", "buffered", "released", "late", "timer_rows", "rows_emitted")
FORGED = "forged.state"
HELD, AGENDA, CLOCK = b"\xfe", b"\xff", b"\xfd"
_PREAMBLE = struct.Struct("<8sHII")
_LENGTH = struct.Struct("<I")


def late_row_missing(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "late", rng)) is None:
        return None
    file, at, _ = place
    rows = forged.rows("late", file)
    forged.rewrite("late", file, rows[:at] + rows[at + 1 :])
    return one_of(Kind.LATE_MISSING)


def late_row_twice(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "late", rng)) is None:
        return None
    file, _, row = place
    forged.rewrite("late", file, [*forged.rows("late", file), row])
    return one_of(Kind.LATE_DOUBLED)


def late_row_changed(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "late", rng)) is None:
        return None
    file, at, _ = place
    changes: list[dict[str, object]] = [{"value": b"forged"}, {"session": "forged"}, {"cause": "forged"}]
    forged.change("late", file, at, **rng.choice(changes))
    return one_of(Kind.LATE_CHANGED)


def late_and_in_rows(forged: Forged, rng: random.Random) -> Found:
    """A message that was applied is in the late table too."""
    late, place = pick(forged, "late", rng), pick(forged, "table", rng, lambda row: row["what"] == "update")
    if late is None or place is None:
        return None
    file, _, row = late
    applied = place[2]
    same = {"topic_id": applied["_topic_id"], "topic": applied["_topic"], "partition": applied["_partition"]}
    forged.rewrite("late", file, [*forged.rows("late", file), row | same | {"offset": applied["_offset"]}])
    return one_of(Kind.LATE_EXTRA)


def late_table_gone(forged: Forged, rng: random.Random) -> Found:
    if not (forged.folder / "late").exists() or not forged.files("late"):
        return None
    forged.forget("late", rng.choice(forged.files("late")))
    return one_of(Kind.SIDE_FILE_MISSING)


def wrong_emit_offset(forged: Forged, rng: random.Random) -> Found:
    """A row of a message that was held back, or of a timer."""
    if (place := pick(forged, "table", rng, lambda row: row["_offset"] != row["_emit_offset"])) is None:
        return None
    file, at, row = place
    forged.change("table", file, at, _emit_offset=row["_emit_offset"] - 1)
    return one_of(Kind.ROW_MISSING, Kind.ROW_EXTRA, Kind.ROW_CHANGED, Kind.ROW_ORDER, Kind.ROW_DOUBLED)


def wrong_source_offset(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "table", rng, lambda row: row["_offset"] != row["_emit_offset"])) is None:
        return None
    file, at, row = place
    forged.change("table", file, at, _offset=row["_emit_offset"])
    return one_of(Kind.ROW_CHANGED)


def timer_row_missing(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "table", rng, lambda row: row["what"] in {"timer", "end", "late"})) is None:
        return None
    file, at, _ = place
    rows = forged.rows("table", file)
    forged.rewrite("table", file, rows[:at] + rows[at + 1 :])
    return one_of(Kind.ROW_MISSING)


def wrong_watermark(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "ledger", rng, lambda row: row["watermark"] is not None)) is None:
        return None
    file, at, row = place
    step = timedelta(microseconds=rng.choice((-1, 1, 10**6)))
    forged.change("ledger", file, at, watermark=row["watermark"] + step)
    return one_of(Kind.WATERMARK_DIFFERS)


def wrong_count_of_what_waits(forged: Forged, rng: random.Random) -> Found:
    file, at, row = rng.choice(forged.all_rows("ledger"))
    name = rng.choice(COUNTS)
    forged.change("ledger", file, at, **{name: row[name] + rng.choice((-1, 1, 7))})
    return one_of(Kind.COUNT_DIFFERS)


def held_message_lost(forged: Forged, rng: random.Random) -> Found:
    return _state(forged, rng, HELD, lambda entries, key: entries.update({key: None}))


def held_message_changed(forged: Forged, rng: random.Random) -> Found:
    def change(entries: dict[bytes, Any], key: bytes) -> None:
        message = msgspec.msgpack.decode(entries[key])
        entries[key] = msgspec.msgpack.encode([message[0], message[1], b"forged", *message[3:]])

    return _state(forged, rng, HELD, change)


def agenda_forgotten(forged: Forged, rng: random.Random) -> Found:
    def change(entries: dict[bytes, Any], key: bytes) -> None:
        session = entries[key]
        for each in [each for each in entries if each[:1] == AGENDA and entries[each] == session]:
            entries[each] = None

    return _state(forged, rng, AGENDA, change)


def clock_wrong(forged: Forged, rng: random.Random) -> Found:
    def change(entries: dict[bytes, Any], key: bytes) -> None:
        armed_us, seen_us, offset = msgspec.msgpack.decode(entries[key])
        entries[key] = msgspec.msgpack.encode([armed_us, seen_us, offset + 1])

    return _state(forged, rng, CLOCK, change)


def _state(
    forged: Forged, rng: random.Random, kind: bytes, change: Callable[[dict[bytes, Any], bytes], object]
) -> Found:
    """Change an entry of some kind in the newest state of a partition."""
    newest = {(row["topic_id"], row["partition"]): (file, at, row) for file, at, row in forged.all_rows("ledger")}
    places = []
    for file, at, row in newest.values():
        if row["state_file"] is not None:
            header, entries = _section(forged, row)
            living = _living(entries)
            keys = [key for key, value in entries.items() if key[:1] == kind and value is not None]
            keys = [key for key in keys if kind in {HELD, AGENDA} or key[1:] in living]
            places += [(file, at, header, entries, key) for key in keys]
    if not places:
        return None
    file, at, header, entries, key = rng.choice(places)
    change(entries, key)
    content = _encoded(header, entries)
    (forged.folder / "state" / FORGED).write_bytes(content)
    forged.change("ledger", file, at, state_file=FORGED, state_start=0, state_length=len(content))
    return one_of(Kind.STATE_DIFFERS)


def _living(entries: dict[bytes, Any]) -> set[bytes]:
    return {key for key, value in entries.items() if key[0] < 0xF8 and value is not None and b"\xa1g\xc2" not in value}


def _section(forged: Forged, row: dict[str, Any]) -> tuple[dict[str, Any], dict[bytes, Any]]:
    content = (forged.folder / "state" / row["state_file"]).read_bytes()
    content = content[row["state_start"] : row["state_start"] + row["state_length"]]
    _, _, length, _ = _PREAMBLE.unpack_from(content)
    at = _PREAMBLE.size + length
    header = msgspec.msgpack.decode(zstandard.decompress(content[_PREAMBLE.size : at]))
    entries: dict[bytes, Any] = {}
    while at < len(content):
        (size,) = _LENGTH.unpack_from(content, at)
        at += _LENGTH.size
        entries |= dict(msgspec.msgpack.decode(zstandard.decompress(content[at : at + size])))
        at += size
    return header, entries


def _encoded(header: dict[str, Any], entries: dict[bytes, Any]) -> bytes:
    """A section with these entries, whole by all its sums."""
    packer = zstandard.ZstdCompressor(write_checksum=True)
    told = packer.compress(msgspec.msgpack.encode(header | {"entries": len(entries), "file": FORGED}))
    block = packer.compress(msgspec.msgpack.encode([[key, entries[key]] for key in sorted(entries)]))
    body = told + _LENGTH.pack(len(block)) + block
    checksum = zlib.crc32(body, zlib.crc32(_PREAMBLE.pack(b"lockstep", 1, len(told), 0)))
    return _PREAMBLE.pack(b"lockstep", 1, len(told), checksum) + body


SEEDS: tuple[Callable[[Forged, random.Random], Found], ...] = (
    *(late_row_missing, late_row_twice, late_row_changed, late_and_in_rows, late_table_gone),
    *(wrong_emit_offset, wrong_source_offset, timer_row_missing, wrong_watermark, wrong_count_of_what_waits),
    *(held_message_lost, held_message_changed, agenda_forgotten, clock_wrong),
)
