"""Violations of rows, each put by chance somewhere into a copy of a good table.

A seed gives the kinds under which its violation may be reported, or None where the table has no place for it.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from lockstep.verify.report import ViolationKind as Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.verify.forging import Forged, Rows

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
    """Two that follow each other, with their proof columns."""

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


def batch_twice(forged: Forged, rng: random.Random) -> Found:
    if not forged.files("table"):
        return None
    forged.name_copy("table", rng.choice(forged.files("table")))
    return one_of(Kind.ROW_DOUBLED)


def row_where_none_belongs(forged: Forged, rng: random.Random) -> Found:
    """At an offset whose message gave none."""
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
