"""Violations of ledger, quarantine and state, each put by chance somewhere into a copy of a good table."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from lockstep.verify.report import ViolationKind as Kind
from tests.verify.seeds_of_rows import Found, one_of, pick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.verify.forging import Forged

COUNTS = ("messages", "rows", "accepted_without_row", "skipped", "repeats", "gaps", "dropped", "quarantined")


def stale_state(forged: Forged, rng: random.Random) -> Found:
    """A ledger row names the state of an earlier batch."""
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
    """Of a batch that read something of the partition, and is not its last."""
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


def wrong_count(forged: Forged, rng: random.Random) -> Found:
    file, at, row = rng.choice(forged.all_rows("ledger"))
    name = rng.choice(COUNTS)
    forged.change("ledger", file, at, **{name: row[name] + rng.choice((-1, 1, 7))})
    return one_of(Kind.COUNT_DIFFERS)


def wrong_suspension(forged: Forged, rng: random.Random) -> Found:
    place = pick(forged, "ledger", rng, lambda row: bool(row["until"] > row["start"] + 2))
    if place is None:
        return None
    file, at, row = place
    forged.change("ledger", file, at, suspended_from=row["suspended_from"] + row["until"] + 1)
    return one_of(Kind.SUSPENSION_DIFFERS)


def start_moved(forged: Forged, rng: random.Random) -> Found:
    """A message at the front of a batch was never read, says the ledger."""
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
    """The last range of a partition ends a message too early."""
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
    """The first messages of a batch were gone before they were read, says the ledger."""
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
    ]
    forged.change("quarantine", file, at, **rng.choice(changes))
    return one_of(Kind.QUARANTINE_CHANGED)


def in_quarantine_and_in_rows(forged: Forged, rng: random.Random) -> Found:
    """A message that gave rows is in quarantine too."""
    kept, place = pick(forged, "quarantine", rng), pick(forged, "table", rng)
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
