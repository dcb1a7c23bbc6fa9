"""A stream's four tables with generated values of each column type, within its bounds and beyond them.

The writer refuses values beyond the bounds; each reader must return all stored values.
"""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import DecimalType
from lockstep.engine.driver.subscription import make_ledger_row
from lockstep.engine.executor.rejects import QuarantineBuffer
from lockstep.engine.protocol import AcceptedLoss, PlannedRange, RangeResult
from lockstep.model.column_types import Int32
from lockstep.model.finding import Finding
from lockstep.model.message_counts import MessageCounts
from lockstep.model.position import Position
from lockstep.model.record import Record
from lockstep.model.table_schema import make_table_schema
from lockstep.table.commit import BatchCommit, Writer, commit_batch, commit_claim
from lockstep.table.create import open_tables
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, write_ledger
from lockstep.table.parquet import DataFileWriter
from lockstep.table.positions import NO_ENDS, LedgerStamp
from lockstep.table.quarantine import QuarantineRow, write_quarantine
from lockstep.table.row_encoder import PartitionRun, Provenance, RowRejected, RowsBuilder
from lockstep.table.side_tables import SideLogs
from lockstep.testing.script import InLog

if TYPE_CHECKING:
    from pathlib import Path

HOUR = "2026-01-01T00"
ROWS = 300
ODD_ROWS = 12
SIDE_ROWS = 150
CHUNK = 50
START = datetime(2026, 1, 1, tzinfo=UTC)


class Side(enum.Enum):
    BUY = "buy"
    SELL = "s\u00ebll"


class Level(enum.IntEnum):
    LOW = -(2**63)
    HIGH = 2**63 - 1


class Inner(msgspec.Struct):
    name: str
    at: datetime | None
    day: date | None
    price: Annotated[Decimal, DecimalType(38, 38)] | None
    more: dict[str, list[datetime]]


class Value(msgspec.Struct):
    """A column of every type, and every type inside of others."""

    number: int
    text: str
    raw: bytes
    flag: bool
    whole: int
    small: Int32
    ratio: float
    wide: Annotated[Decimal, DecimalType(38, 10)]
    tiny: Annotated[Decimal, DecimalType(38, 38)]
    money: Annotated[Decimal, DecimalType(5, 2)]
    at: datetime
    day: date
    side: Side
    level: Level
    literal: Literal["a", "b"]
    maybe_text: str | None
    maybe_raw: bytes | None
    maybe_whole: int | None
    maybe_ratio: float | None
    maybe_wide: Annotated[Decimal, DecimalType(38, 0)] | None
    maybe_at: datetime | None
    maybe_day: date | None
    inner: Inner
    maybe_inner: Inner | None
    texts: list[str | None]
    ratios: tuple[float, ...]
    times: list[datetime]
    inners: list[Inner | None]
    named: dict[str, int | None]
    named_times: dict[str, datetime | None]
    named_inners: dict[str, Inner]


TEXTS = st.one_of(st.text(max_size=6), st.sampled_from(["", "\0", "a\0b", "\ufffe\uffff", "\U0010ffff", "\u202e"]))
RAW = st.one_of(st.binary(max_size=6), st.sampled_from([b"", b"\0", b"\xff\xfe"]))
WHOLES = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63 - 1, -(2**63), 0]))
SMALL = st.one_of(st.integers(-(2**31), 2**31 - 1), st.sampled_from([2**31 - 1, -(2**31)]))
FIRST = datetime(1, 1, 3)  # noqa: DTZ001  # in UTC
LAST = datetime.max  # noqa: DTZ901  # in UTC
TIMES = st.one_of(
    st.datetimes(FIRST, LAST),
    st.datetimes(FIRST, FIRST + timedelta(hours=1)),
    st.datetimes(LAST - timedelta(hours=1), LAST),
    st.sampled_from([FIRST, LAST, datetime(1582, 10, 14), datetime(1677, 9, 21), datetime(2262, 4, 12)]),  # noqa: DTZ001
).map(lambda moment: moment.replace(tzinfo=UTC))
DAYS = st.one_of(st.dates(), st.sampled_from([date.min, date.max, date(1582, 10, 14), date(1582, 10, 15)]))


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    """Generate numbers that a column of this type holds, including its bounds."""
    largest = 10**precision - 1
    digits = st.one_of(st.integers(-largest, largest), st.sampled_from([largest, -largest, 1, -1, 0]))
    return digits.map(lambda number: Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)))


INNER = st.builds(
    Inner,
    name=TEXTS,
    at=st.none() | TIMES,
    day=st.none() | DAYS,
    price=st.none() | decimals(38, 38),
    more=st.dictionaries(TEXTS, st.lists(TIMES, max_size=2), max_size=2),
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXTS,
    "raw": RAW,
    "flag": st.booleans(),
    "whole": WHOLES,
    "small": SMALL,
    "ratio": st.floats(),
    "wide": decimals(38, 10),
    "tiny": decimals(38, 38),
    "money": decimals(5, 2),
    "at": TIMES,
    "day": DAYS,
    "side": st.sampled_from(Side),
    "level": st.sampled_from(Level),
    "literal": st.sampled_from(["a", "b"]),
    "maybe_text": st.none() | TEXTS,
    "maybe_raw": st.none() | RAW,
    "maybe_whole": st.none() | WHOLES,
    "maybe_ratio": st.none() | st.floats(),
    "maybe_wide": st.none() | decimals(38, 0),
    "maybe_at": st.none() | TIMES,
    "maybe_day": st.none() | DAYS,
    "inner": INNER,
    "maybe_inner": st.none() | INNER,
    "texts": st.lists(st.none() | TEXTS, max_size=3),
    "ratios": st.lists(st.floats(), max_size=3).map(tuple),
    "times": st.lists(TIMES, max_size=2),
    "inners": st.lists(st.none() | INNER, max_size=2),
    "named": st.dictionaries(TEXTS, st.none() | WHOLES, max_size=3),
    "named_times": st.dictionaries(TEXTS, st.none() | TIMES, max_size=2),
    "named_inners": st.dictionaries(TEXTS, INNER, max_size=2),
}
ANY_TIME = st.builds(
    lambda moment, minutes: moment.replace(tzinfo=timezone(timedelta(minutes=minutes))),
    st.one_of(st.datetimes(max_value=datetime(1, 1, 4)), st.datetimes(min_value=datetime(9999, 12, 31))),  # noqa: DTZ001
    st.integers(-1439, 1439),
)
ODD: dict[str, st.SearchStrategy[Any]] = {
    "text": st.sampled_from(["\ud800", "a\udfffb", "\ud83d", b"x", None]),
    "raw": st.sampled_from(["x", None]),
    "whole": st.sampled_from([2**63, -(2**63) - 1, 10**40, True, 1.5, None]),
    "small": st.sampled_from([2**31, -(2**31) - 1, None]),
    "ratio": st.sampled_from([10**400, 2**53 + 1, "1", None]),
    "wide": st.sampled_from([Decimal("NaN"), Decimal("Infinity"), Decimal("sNaN"), Decimal("1e28"), Decimal("1e-11")]),
    "tiny": st.sampled_from([Decimal(1), Decimal("1e-39"), Decimal("-Infinity")]),
    "money": st.sampled_from([Decimal("999.995"), Decimal(1000), Decimal("1e999999")]),
    "at": ANY_TIME,
    "maybe_at": ANY_TIME,
    "times": st.lists(ANY_TIME, min_size=1, max_size=2),
    "named_times": st.dictionaries(TEXTS, ANY_TIME, min_size=1, max_size=2),
    "named": st.sampled_from([{"\ud800": 1}, {1: 1}, {None: 1}, {"a": 2**63}]),
    "texts": st.sampled_from([["\udc00"], [1]]),
    "inner": st.builds(Inner, name=TEXTS, at=ANY_TIME, day=DAYS, price=st.none(), more=st.just({})),
    "inners": st.lists(
        st.builds(Inner, name=st.just("\ud800"), at=st.none(), day=DAYS, price=st.none(), more=st.just({})), min_size=1
    ),
}
Proof = tuple[str, int | None, datetime | None]
PROOF = st.tuples(TEXTS, st.none() | WHOLES, st.none() | TIMES)
ANY_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=[]), max_size=6), st.sampled_from(["\ud800", "a\udfffb", "\ud83d\ud83d"])
)
"""Lone surrogates included."""
ANY_INT64 = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2_000_000_000_000),
    st.sampled_from([-1, 0, 2**63 - 1, -(2**63), -62_135_596_800_000, 253_402_300_799_999, 253_402_300_800_000]),
)
"""Kafka's timestamps, in milliseconds; and times in microseconds."""


@dataclass
class Generated:
    """The tables and their content.

    Attributes:
        folders: Their folders.
        rows: Rows of the output table, with their provenance.
        refused: Refused rows, counted by the field with an odd value; "" for rows without odd values.
        quarantine: Rows of the quarantine; those of the late table are the same.
        ledger: Rows of the ledger.
    """

    folders: StreamFolders
    rows: list[tuple[Value, Proof]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    quarantine: list[QuarantineRow] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)

    @classmethod
    def write(cls, root: Path) -> Generated:
        """Generate values, and write and commit the accepted values as one batch."""
        made = cls(StreamFolders("values", root))
        builder = RowsBuilder(Value)
        _generate_rows(made, builder)
        _generate_side_rows(made)
        output = open_tables(made.folders, make_table_schema(Value), "cluster", keeps_late=True)
        claimed = output.commit(commit_claim(0, output.table_id, lambda _: None))
        with DataFileWriter(made.folders.table, builder.schema, commit_hour=HOUR, prefix="rows") as writer:
            for first in range(0, len(made.rows), CHUNK):
                writer.write(builder.build(*_chunk(made, first)))
            file = writer.finish()
        batch = BatchCommit(
            number=1,
            commit_hour=HOUR,
            files=(file,),
            ledger=write_ledger(made.folders.ledger, made.ledger),
            quarantine=(write_quarantine(made.folders.quarantine, made.quarantine),),
            late=(write_quarantine(made.folders.late, made.quarantine),),
        )
        written_by = Writer(epoch=claimed.head.epoch, generation=claimed.head.generation)
        SideLogs(made.folders).catch_up(output.commit(commit_batch(written_by, batch)).head)
        return made


def _generate_rows(made: Generated, builder: RowsBuilder) -> None:
    _generate_some(made, builder, "", st.just({}), ROWS)
    for name, values in ODD.items():
        _generate_some(made, builder, name, st.fixed_dictionaries({name: values}), ODD_ROWS)


def _generate_some(
    made: Generated, builder: RowsBuilder, name: str, odd: st.SearchStrategy[dict[str, Any]], count: int
) -> None:
    @settings(max_examples=count)
    @given(values=st.fixed_dictionaries(FIELDS), odd=odd, proof=PROOF)
    def generate(values: dict[str, Any], odd: dict[str, Any], proof: Proof) -> None:
        row = Value(number=len(made.rows), **values | odd)
        try:
            builder.build([row], make_proof([proof]))
        except RowRejected:
            made.refused[name] += 1
        else:
            made.rows.append((row, proof))

    generate()


def _chunk(made: Generated, first: int) -> tuple[list[Value], Provenance]:
    chosen = made.rows[first : first + CHUNK]
    return [row for row, _ in chosen], make_proof([proof for _, proof in chosen], first)


def make_proof(proofs: list[Proof], first: int = 0) -> Provenance:
    """Return the provenance of rows, one per message."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    unit = timedelta(microseconds=1)
    return Provenance(
        runs=[PartitionRun("sensors.1", "tQx3bEr0Qm6Rz8aXo1XvWw", 3, len(proofs))],
        offsets=list(range(first, first + len(proofs))),
        row_numbers=[0] * len(proofs),
        sessions=[session for session, _, _ in proofs],
        sequences=[sequence for _, sequence, _ in proofs],
        event_times_us=[None if moment is None else (moment - epoch) // unit for _, _, moment in proofs],
    )


POSITION = Position(topic="sensors.1", topic_id="tQx3bEr0Qm6Rz8aXo1XvWw", partition=3, next_offset=0)
STAMP = LedgerStamp(generation=1, batch=1, epoch=1, committed_at=START, batch_seconds=0.5, restart_cause=None)


def _generate_side_rows(made: Generated) -> None:
    """Generate messages with any text, byte and time that a producer can send, through the product's code."""
    aside = QuarantineBuffer()

    @settings(max_examples=SIDE_ROWS)
    @given(
        key=st.none() | RAW,
        value=st.none() | RAW,
        headers=st.lists(st.tuples(TEXTS, st.none() | RAW), max_size=2),
        session=st.none() | ANY_TEXT,
        said=ANY_TEXT,
        times=st.lists(ANY_INT64, min_size=4, max_size=4),
    )
    def generate(
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        session: str | None,
        said: str,
        times: list[int],
    ) -> None:
        at = len(aside.rows)
        message = InLog(at, key, value, times[0], headers)
        record = Record(POSITION.topic, POSITION.topic_id, POSITION.partition, at, message)
        aside.add(record, Finding.at(POSITION, said, offset=at, session=session, expected=said, found=said))
        made.ledger.append(make_ledger_row(STAMP, _make_result(at, times), NO_ENDS))

    generate()
    made.quarantine += aside.rows


def _make_result(partition: int, times: list[int]) -> RangeResult:
    """Return the result of a range, as the driver receives it from an executor."""
    position = msgspec.structs.replace(POSITION, partition=partition, watermark_us=times[1], gone_since_us=times[2])
    result = RangeResult(
        range=PlannedRange(position, 9),
        reached=position,
        counts=MessageCounts(),
        rows=0,
        holes=(),
        first_event_time_us=times[2],
        last_event_time_us=times[3],
        newest_timestamp_ms=times[0],
        state_bytes=0,
        cpu_seconds=0.0,
        accepted=(AcceptedLoss(1, 2),),
    )
    return msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=RangeResult)
