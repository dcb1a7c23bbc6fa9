"""Violations that a proof must find, each inserted at random into a copy of a good table.

A seed returns the kinds under which its violation may be reported, or None if the table has no place for it.
"""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import zstandard

from lockstep.state.entry_order import make_store_key, sort_changes
from lockstep.state.values import RESERVED_FROM
from lockstep.verify.gates.stored import ACTIVE, SUSPENDED
from lockstep.verify.report import ViolationKind as Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.correctness.verify.forging import Forged, Rows


Found = frozenset[Kind] | None


def one_of(*kinds: Kind) -> Found:
    return frozenset(kinds)


def pick(forged: Forged, table: str, rng: random.Random, fits: Callable[[dict[str, Any]], bool] = bool) -> Any:
    if not (forged.folder / table).exists():
        return None
    places = [place for place in forged.all_rows(table) if fits(place[2])]
    return rng.choice(places) if places else None


def dropped_row(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "table", rng)) is None:
        return None
    file, at, _ = place
    rows = forged.rows("table", file)
    forged.rewrite("table", file, rows[:at] + rows[at + 1 :])
    return one_of(Kind.ROW_MISSING)


def doubled_row(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "table", rng)) is None:
        return None
    file, at, row = place
    rows = forged.rows("table", file)
    forged.rewrite("table", file, [*rows[:at], row, *rows[at:]])
    return one_of(Kind.ROW_DOUBLED)


def swapped_rows(forged: Forged, rng: random.Random) -> Found:
    """Swap two consecutive rows, with their proof columns."""

    def followed(rows: Rows, at: int) -> bool:
        return at + 1 < len(rows) and _partition(rows[at]) == _partition(rows[at + 1])

    places = [
        (file, at)
        for file in forged.files("table")
        for rows in [forged.rows("table", file)]
        for at in range(len(rows))
        if followed(rows, at)
    ]
    if not places:
        return None
    file, at = rng.choice(places)
    rows = forged.rows("table", file)
    rows[at], rows[at + 1] = rows[at + 1], rows[at]
    forged.rewrite("table", file, rows)
    return one_of(Kind.ROW_ORDER)


def changed_value(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "table", rng)) is None:
        return None
    file, at, row = place
    changes: list[dict[str, object]] = [
        {"amount": row["amount"] + 1},
        {"remark": "forged"},
        {"price": row["price"] + 1},
        {"held": [*row["held"], ("forged", 1)]},
        {"path": row["path"][:-1]},
        {"_session": row["_session"] + "x"},
        {"_event_time": None if row["_event_time"] else row["at"]},
        {"_sequence": (row["_sequence"] or 0) + 1},
        {"_topic": "another"},
    ]
    forged.change("table", file, at, **rng.choice(changes))
    return one_of(Kind.ROW_CHANGED)


def wrong_topic_id(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "table", rng)) is None:
        return None
    file, _, row = place
    rows = [
        each | {"_topic_id": "AAAA"} if _partition(each) == _partition(row) else each for each in rows_of(place, forged)
    ]
    forged.rewrite("table", file, rows)
    return one_of(Kind.ROW_UNCLAIMED)


def rows_of(place: tuple[str, int, dict[str, Any]], forged: Forged) -> Rows:
    return forged.rows("table", place[0])


def half_batch(forged: Forged, rng: random.Random) -> Found:
    if not forged.files("table"):
        return None
    forged.forget("table", rng.choice(forged.files("table")))
    return one_of(Kind.ROW_MISSING)


def file_gone(forged: Forged, rng: random.Random) -> Found:
    if not forged.files("table"):
        return None
    (forged.folder / "table" / rng.choice(forged.files("table"))).unlink()
    return one_of(Kind.DATA_FILE_DAMAGED)


def file_unreadable(forged: Forged, rng: random.Random) -> Found:
    """Keep the size of a file, but damage its pages or its whole content."""
    if not forged.files("table"):
        return None
    path = forged.folder / "table" / rng.choice(forged.files("table"))
    content = bytearray(path.read_bytes())
    until = rng.choice((len(content) // 2, len(content)))
    content[4:until] = bytes(until - 4)
    path.write_bytes(bytes(content))
    return one_of(Kind.DATA_FILE_DAMAGED)


def wrong_statistics(forged: Forged, rng: random.Random) -> Found:
    """State wrong statistics of a column in the log; readers would skip the file."""
    if (place := pick(forged, "table", rng)) is None:
        return None
    file, _, row = place
    offset = row["_emit_offset"]
    part, name, value = rng.choice(
        [
            ("minValues", "_emit_offset", offset + 1),
            ("maxValues", "_emit_offset", offset - 1),
            ("minValues", "_session", row["_session"] + "x"),
            ("maxValues", "at", "1999-01-01T00:00:00.000Z"),
            ("minValues", "price", 10**9),
            ("nullCount", "remark", 10**6),
        ]
    )
    forged.state_statistics(file, part, name, value)
    return one_of(Kind.DATA_FILE_DAMAGED)


def column_lost(forged: Forged, rng: random.Random) -> Found:
    if not forged.files("table"):
        return None
    name = rng.choice(("amount", "price", "held", "remark", "_sequence", "_topic_id"))
    forged.reshape(rng.choice(forged.files("table")), lambda rows: rows.drop_columns([name]))
    return one_of(Kind.DATA_FILE_DAMAGED)


def column_too_much(forged: Forged, rng: random.Random) -> Found:
    if not forged.files("table"):
        return None
    file = rng.choice(forged.files("table"))
    forged.reshape(file, lambda rows: rows.append_column("forged", rows["remark"]))
    return one_of(Kind.DATA_FILE_DAMAGED)


def column_of_another_type(forged: Forged, rng: random.Random) -> Found:
    """Change the type of a column, but no value."""
    if not forged.files("table"):
        return None

    def change(rows: pa.Table) -> pa.Table:
        at = rows.schema.get_field_index("remark")
        return rows.set_column(at, "remark", rows["remark"].cast(pa.binary()))

    forged.reshape(rng.choice(forged.files("table")), change)
    return one_of(Kind.DATA_FILE_DAMAGED)


def wrong_hour(forged: Forged, rng: random.Random) -> Found:
    """State an earlier hour for a file whose rows follow other rows of their partition."""
    places = [(_partition(row), row["_emit_offset"], file) for file, _, row in forged.all_rows("table")]
    later = {file for key, at, file in places if any(k == key and a < at and f != file for k, a, f in places)}
    if not later:
        return None
    forged.move(rng.choice(sorted(later)), "2020-01-01T00")
    return one_of(Kind.ROW_ORDER)


def hour_of_no_batch(forged: Forged, rng: random.Random) -> Found:
    """State a later hour for the last file, in which nothing was committed."""
    del rng
    if not forged.files("table"):
        return None
    forged.move(forged.files("table")[-1], "2099-01-01T00")
    return one_of(Kind.ROW_ORDER)


def batch_twice(forged: Forged, rng: random.Random) -> Found:
    if not forged.files("table"):
        return None
    forged.name_copy("table", rng.choice(forged.files("table")))
    return one_of(Kind.ROW_DOUBLED)


def row_where_none_belongs(forged: Forged, rng: random.Random) -> Found:
    """Add a row at an offset whose message emitted none."""
    held = {(_partition(row), row["_emit_offset"]) for _, _, row in forged.all_rows("table")}
    places = []
    for file in forged.files("table"):
        rows = forged.rows("table", file)
        for at in range(len(rows) - 1):
            gap = range(rows[at]["_offset"] + 1, rows[at + 1]["_offset"])
            if _partition(rows[at]) == _partition(rows[at + 1]) and gap:
                places.append((file, at, rng.choice(gap)))
    if not places:
        return None
    file, at, offset = rng.choice(places)
    rows = forged.rows("table", file)
    assert (_partition(rows[at]), offset) not in held
    extra = rows[at] | {"_offset": offset, "_emit_offset": offset, "_row": 0}
    forged.rewrite("table", file, [*rows[: at + 1], extra, *rows[at + 1 :]])
    return one_of(Kind.ROW_EXTRA, Kind.QUARANTINE_AND_ROWS)


def _partition(row: Mapping[str, Any]) -> tuple[object, object]:
    return row["_topic_id"], row["_partition"]


COUNTS = ("messages", "rows", "accepted_without_row", "skipped", "repeats", "gaps", "dropped", "quarantined")


def stale_state(forged: Forged, rng: random.Random) -> Found:
    """Name the state of an earlier batch in a ledger row."""
    places = []
    before: dict[Any, dict[str, Any]] = {}
    for file, at, row in forged.all_rows("ledger"):
        key = (row["topic_id"], row["partition"])
        earlier = before.get(key)
        if earlier is not None and earlier["state_file"] and earlier["state_file"] != row["state_file"]:
            places.append((file, at, earlier))
        before[key] = row
    if not places:
        return None
    file, at, earlier = rng.choice(places)
    forged.change("ledger", file, at, **{name: earlier[name] for name in _STATE})
    return one_of(Kind.STATE_DIFFERS)


def state_of_another_partition(forged: Forged, rng: random.Random) -> Found:
    rows = [place for place in forged.all_rows("ledger") if place[2]["state_file"]]
    pairs = [(one, other) for one in rows for other in rows if _key(one[2]) != _key(other[2])]
    if not pairs:
        return None
    (file, at, _), (_, _, other) = rng.choice(pairs)
    forged.change("ledger", file, at, **{name: other[name] for name in _STATE})
    return one_of(Kind.STATE_DAMAGED)


def state_bytes_changed(forged: Forged, rng: random.Random) -> Found:
    sections = [row for _, _, row in forged.all_rows("ledger") if row["state_file"]]
    if not sections:
        return None
    row = rng.choice(sections)
    path = forged.folder / "state" / row["state_file"]
    content = bytearray(path.read_bytes())
    content[row["state_start"] + rng.randrange(row["state_length"])] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))
    return one_of(Kind.STATE_DAMAGED)


def state_forgotten(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "ledger", rng, lambda row: bool(row["state_file"] and row["rows"]))) is None:
        return None
    forged.change("ledger", place[0], place[1], **dict.fromkeys(_STATE))
    return one_of(Kind.STATE_DIFFERS)


def side_file_missing(forged: Forged, rng: random.Random) -> Found:
    table = rng.choice(("ledger", "quarantine"))
    if not forged.files(table):
        return None
    forged.forget(table, rng.choice(forged.files(table)))
    return one_of(Kind.SIDE_FILE_MISSING)


def side_file_foreign(forged: Forged, rng: random.Random) -> Found:
    table = rng.choice(("ledger", "quarantine"))
    if not forged.files(table):
        return None
    forged.name_copy(table, rng.choice(forged.files(table)))
    return one_of(Kind.SIDE_FILE_FOREIGN)


def ledger_row_extra(forged: Forged, rng: random.Random) -> Found:
    file, at, row = rng.choice(forged.all_rows("ledger"))
    extra = row | {"start": row["until"], "holes": []} if rng.random() < 0.5 else row
    rows = forged.rows("ledger", file)
    forged.rewrite("ledger", file, [*rows[:at], row, extra, *rows[at + 1 :]])
    return one_of(Kind.LEDGER_ROW_DOUBLED)


def ledger_row_missing(forged: Forged, rng: random.Random) -> Found:
    """Drop the row of a batch that read messages of the partition, and is not its last batch."""
    last = {_key(row): row["batch"] for _, _, row in forged.all_rows("ledger")}
    place = pick(
        forged, "ledger", rng, lambda row: bool(row["until"] > row["start"] and row["batch"] < last[_key(row)])
    )
    if place is None:
        return None
    file, at, _ = place
    rows = forged.rows("ledger", file)
    forged.rewrite("ledger", file, rows[:at] + rows[at + 1 :])
    return one_of(Kind.RANGE_GAP, Kind.NEVER_READ)


def ledger_row_of_another_batch(forged: Forged, rng: random.Random) -> Found:
    file, at, row = rng.choice(forged.all_rows("ledger"))
    forged.change("ledger", file, at, batch=row["batch"] - 1)
    return one_of(Kind.LEDGER_ROW_FOREIGN)


def ledger_row_of_another_generation(forged: Forged, rng: random.Random) -> Found:
    """Make a row invalid, like the rows that a rewind undoes."""
    file, at, row = rng.choice(forged.all_rows("ledger"))
    forged.change("ledger", file, at, generation=row["generation"] + 1)
    return one_of(Kind.LEDGER_ROW_FOREIGN)


def topic_of_another_name(forged: Forged, rng: random.Random) -> Found:
    """Change the topic in all ledger rows of a partition that has rows in the table."""
    held = {_partition(row) for _, _, row in forged.all_rows("table")}
    if (place := pick(forged, "ledger", rng, lambda row: _key(row) in held)) is None:
        return None
    for file, at, row in forged.all_rows("ledger"):
        if _key(row) == _key(place[2]):
            forged.change("ledger", file, at, topic="another")
    return one_of(Kind.TOPIC_DIFFERS)


def position_not_found(forged: Forged, rng: random.Random) -> Found:
    """State in the head that all positions are in a batch after the last batch of some partition."""
    del rng
    last = {_key(row): row["batch"] for _, _, row in forged.all_rows("ledger")}
    forged.state_in_head(full_ledger_batch=min(last.values()) + 1)
    return one_of(Kind.POSITION_LOST)


def wrong_count(forged: Forged, rng: random.Random) -> Found:
    file, at, row = rng.choice(forged.all_rows("ledger"))
    name = rng.choice(COUNTS)
    forged.change("ledger", file, at, **{name: row[name] + rng.choice((-1, 1, 7))})
    return one_of(Kind.COUNT_DIFFERS)


def wrong_partition(forged: Forged, rng: random.Random) -> Found:
    """State a partition that no topic has."""
    file, at, _ = rng.choice(forged.all_rows("ledger"))
    forged.change("ledger", file, at, partition=rng.choice((-1, 64, 2**31 - 1)))
    return one_of(Kind.PARTITION_UNKNOWN)


def wrong_time(forged: Forged, rng: random.Random) -> Found:
    name = rng.choice(("newest_timestamp", "first_event_time", "last_event_time"))
    fits = lambda row: bool(row["messages"] and row[name] is not None)  # noqa: E731  # uses the name chosen above
    if (place := pick(forged, "ledger", rng, fits)) is None:
        return None
    file, at, row = place
    forged.change("ledger", file, at, **{name: row[name] + timedelta(milliseconds=rng.choice((-1, 1, 10**6)))})
    return one_of(Kind.TIME_DIFFERS)


def wrong_suspension(forged: Forged, rng: random.Random) -> Found:
    place = pick(forged, "ledger", rng, lambda row: bool(row["until"] > row["start"] + 2))
    if place is None:
        return None
    file, at, row = place
    forged.change("ledger", file, at, suspended_from=row["suspended_from"] + row["until"] + 1)
    return one_of(Kind.SUSPENSION_DIFFERS)


def start_moved(forged: Forged, rng: random.Random) -> Found:
    """Omit the first offset of a batch in the ledger."""
    place = pick(forged, "ledger", rng, lambda row: bool(row["until"] > row["start"]))
    if place is None:
        return None
    file, at, row = place
    forged.change("ledger", file, at, start=row["start"] + 1)
    return one_of(Kind.RANGE_GAP, Kind.NEVER_READ)


def ranges_overlap(forged: Forged, rng: random.Random) -> Found:
    place = pick(forged, "ledger", rng, lambda row: bool(row["until"] > row["start"] > 0))
    if place is None:
        return None
    file, at, row = place
    forged.change("ledger", file, at, start=row["start"] - 1)
    return one_of(Kind.RANGE_OVERLAP)


def end_moved(forged: Forged, rng: random.Random) -> Found:
    """End the last range of a partition one offset too early."""
    last = {_key(row): (file, at, row) for file, at, row in forged.all_rows("ledger")}
    places = [place for place in last.values() if place[2]["until"] > place[2]["start"] and place[2]["messages"]]
    if not places:
        return None
    file, at, row = rng.choice(places)
    forged.change("ledger", file, at, until=row["until"] - 1)
    return one_of(Kind.COUNT_DIFFERS, Kind.ROW_UNCLAIMED, Kind.QUARANTINE_EXTRA, Kind.HOLE_FALSE)


def hole_hidden(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "ledger", rng, _has_holes)) is None:
        return None
    file, at, row = place
    gone = rng.randrange(len(row["holes"]))
    forged.change("ledger", file, at, holes=row["holes"][:gone] + row["holes"][gone + 1 :])
    return one_of(Kind.HOLE_UNEXPLAINED)


def hole_resized(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "ledger", rng, _has_holes)) is None:
        return None
    file, at, row = place
    hole = rng.randrange(len(row["holes"]))
    longer = rng.random() < 0.5
    holes = [dict(each) for each in row["holes"]]
    step = 1 if longer else -1
    holes[hole]["until"] += step
    forged.change("ledger", file, at, holes=holes)
    inside = any(other["start"] == row["holes"][hole]["until"] for other in row["holes"]) and longer
    return None if inside else one_of(Kind.HOLE_FALSE if longer else Kind.HOLE_UNEXPLAINED)


def hole_said_to_be_expired(forged: Forged, rng: random.Random) -> Found:
    """State in the ledger that the first messages of a batch expired before they were read."""
    place = pick(forged, "ledger", rng, lambda row: bool(row["until"] > row["start"]))
    if place is None:
        return None
    file, at, row = place
    until = rng.randrange(row["start"] + 1, row["until"] + 1)
    forged.change("ledger", file, at, holes=[{"start": row["start"], "until": until, "cause": "expired"}])
    return one_of(Kind.NEVER_READ)


def hole_of_another_cause(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "ledger", rng, _has_holes)) is None:
        return None
    file, at, row = place
    holes = [dict(each) for each in row["holes"]]
    each = rng.choice(holes)
    each["cause"] = "marker" if each["cause"] == "aborted" else "aborted"
    forged.change("ledger", file, at, holes=holes)
    return one_of(Kind.HOLE_CAUSE)


def quarantine_row_missing(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "quarantine", rng)) is None:
        return None
    file, at, _ = place
    rows = forged.rows("quarantine", file)
    forged.rewrite("quarantine", file, rows[:at] + rows[at + 1 :])
    return one_of(Kind.QUARANTINE_MISSING)


def quarantine_row_twice(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "quarantine", rng)) is None:
        return None
    file, _, row = place
    forged.rewrite("quarantine", file, [*forged.rows("quarantine", file), row])
    return one_of(Kind.QUARANTINE_DOUBLED)


def quarantine_row_changed(forged: Forged, rng: random.Random) -> Found:
    if (place := pick(forged, "quarantine", rng)) is None:
        return None
    file, at, row = place
    changes: list[dict[str, object]] = [
        {"value": b"forged"},
        {"key": b"forged"},
        {"cause": "forged"},
        {"value_bytes": row["value_bytes"] + 1},
        {"session": "forged"},
    ]
    forged.change("quarantine", file, at, **rng.choice(changes))
    return one_of(Kind.QUARANTINE_CHANGED)


def quarantine_row_of_another_batch(forged: Forged, rng: random.Random) -> Found:
    return _moved(forged, rng, "quarantine", Kind.QUARANTINE_CHANGED)


def _moved(forged: Forged, rng: random.Random, table: str, kind: Kind) -> Found:
    """Move a row of a side table into the file of another batch, as if that batch had written it."""
    files = forged.files(table) if (forged.folder / table).exists() else []
    if len(files) < 2:
        return None
    one, other = rng.sample(files, 2)
    row, *left = forged.rows(table, one)
    rows = forged.rows(table, other)
    forged.rewrite(table, one, left)
    forged.rewrite(table, other, [row | {"batch": rows[0]["batch"]}, *rows])
    return one_of(kind)


def in_quarantine_and_in_rows(forged: Forged, rng: random.Random) -> Found:
    """Quarantine a message that emitted rows."""
    kept = pick(forged, "quarantine", rng)
    place = pick(forged, "table", rng)
    if kept is None or place is None:
        return None
    file, _, row = kept
    applied = place[2]
    same = {"topic_id": applied["_topic_id"], "topic": applied["_topic"], "partition": applied["_partition"]}
    extra = row | same | {"offset": applied["_offset"]}
    forged.rewrite("quarantine", file, [*forged.rows("quarantine", file), extra])
    return one_of(Kind.QUARANTINE_AND_ROWS)


def _key(row: Mapping[str, Any]) -> tuple[object, object]:
    return row["topic_id"], row["partition"]


def _has_holes(row: dict[str, Any]) -> bool:
    return bool(row["holes"]) and all(hole["cause"] in {"marker", "aborted"} for hole in row["holes"])


_STATE = ("state_file", "state_start", "state_length")


METER_COUNTS = ("with_rows", "buffered", "released", "late", "timer_rows", "rows_emitted")
FORGED = "forged.state"
HELD = b"\xfe"
AGENDA = b"\xff"
CLOCK = b"\xfd"
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


def late_row_of_another_batch(forged: Forged, rng: random.Random) -> Found:
    return _moved(forged, rng, "late", Kind.LATE_CHANGED)


def late_and_in_rows(forged: Forged, rng: random.Random) -> Found:
    """Add an applied message to the late table."""
    late = pick(forged, "late", rng)
    place = pick(forged, "table", rng, lambda row: row["what"] == "update")
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
    """Change the emit offset of a row of a held-back message, or of a timer."""
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
    name = rng.choice(METER_COUNTS)
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
            living = _living(entries, row["suspended_from"])
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


def _living(entries: dict[bytes, Any], suspended_from: int) -> set[bytes]:
    """The sessions that are not suspended: the proof reads no clock of a suspended session."""
    sessions = [(key, value) for key, value in entries.items() if key[0] < RESERVED_FROM and value is not None]
    return {key for key, value in sessions if not _is_suspended(value, suspended_from)}


def _is_suspended(value: bytes, suspended_from: int) -> bool:
    """Whether a stored session is marked as suspended, or started before the offset of a suspension."""
    gate = msgspec.msgpack.decode(value)[0]
    if not isinstance(gate, list):
        return False
    return bool(gate[0] == SUSPENDED or (gate[0] == ACTIVE and gate[1] < suspended_from))


def _section(forged: Forged, row: dict[str, Any]) -> tuple[dict[str, Any], dict[bytes, Any]]:
    content = (forged.folder / "state" / row["state_file"]).read_bytes()
    content = content[row["state_start"] : row["state_start"] + row["state_length"]]
    _, _, length, _ = _PREAMBLE.unpack_from(content)
    at = _PREAMBLE.size + length
    header = msgspec.msgpack.decode(zstandard.decompress(content[_PREAMBLE.size : at]))
    (size,) = _LENGTH.unpack_from(content, at)
    at += _LENGTH.size
    index = msgspec.msgpack.decode(zstandard.decompress(content[at : at + size]))
    at += size
    entries: dict[bytes, Any] = {}
    for _, block_length, _ in index:
        entries |= dict(msgspec.msgpack.decode(zstandard.decompress(content[at : at + block_length])))
        at += block_length
    return header, entries


def _encoded(header: dict[str, Any], entries: dict[bytes, Any]) -> bytes:
    """Return a segment of one block with these entries and correct checksums."""
    packer = zstandard.ZstdCompressor(write_checksum=True)
    told = packer.compress(msgspec.msgpack.encode(header | {"entries": len(entries), "file": FORGED}))
    changes = sort_changes(list(entries.items()))
    block = packer.compress(msgspec.msgpack.encode(changes))
    index = packer.compress(msgspec.msgpack.encode([[make_store_key(changes[0][0]), len(block), zlib.crc32(block)]]))
    body = told + _LENGTH.pack(len(index)) + index + block
    checksum = zlib.crc32(body, zlib.crc32(_PREAMBLE.pack(b"lockstep", 2, len(told), 0)))
    return _PREAMBLE.pack(b"lockstep", 2, len(told), checksum) + body


METER_SEEDS: tuple[Callable[[Forged, random.Random], Found], ...] = (
    *(late_row_missing, late_row_twice, late_row_changed, late_and_in_rows, late_table_gone),
    late_row_of_another_batch,
    *(wrong_emit_offset, wrong_source_offset, timer_row_missing, wrong_watermark, wrong_count_of_what_waits),
    *(held_message_lost, held_message_changed, agenda_forgotten, clock_wrong),
)


SEEDS: tuple[Callable[[Forged, random.Random], Found], ...] = (
    *(dropped_row, doubled_row, swapped_rows, changed_value, wrong_topic_id),
    *(half_batch, file_gone, batch_twice, row_where_none_belongs),
    *(column_lost, column_too_much, column_of_another_type, wrong_hour),
    *(stale_state, state_of_another_partition, state_bytes_changed, state_forgotten),
    *(side_file_missing, side_file_foreign, ledger_row_extra, ledger_row_missing),
    *(ledger_row_of_another_batch, wrong_count, wrong_time, wrong_partition, wrong_suspension, start_moved),
    *(ranges_overlap, end_moved, hole_hidden, hole_resized, hole_of_another_cause),
    *(quarantine_row_missing, quarantine_row_twice, quarantine_row_changed),
    *(in_quarantine_and_in_rows, hole_said_to_be_expired),
    *(file_unreadable, wrong_statistics, hour_of_no_batch, quarantine_row_of_another_batch),
    *(ledger_row_of_another_generation, topic_of_another_name, position_not_found),
)
