"""Records the fold's calls to the stream and their results, message by message."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Generic, cast

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from typing_extensions import override

from lockstep.declare.transform import InitialState, R
from lockstep.engine.executor.compiled_stream import CompiledStream, Hooks
from lockstep.engine.executor.difference import Replacement
from lockstep.integrity.base import PartitionTime
from lockstep.integrity.verdict import AnyGate, Judgement, Verdict, WrappingGate
from lockstep.model.fault import Fault
from lockstep.model.finding import Finding
from lockstep.model.position import SuspendedSession
from lockstep.model.record import Envelope, Kind, Record
from lockstep.table.quarantine import QuarantineRow
from lockstep.testing.result import MessageResult, RejectedMessage, RowWithOrigin

SKIPPED = Verdict(judgement=Judgement.ACCEPT, cause="skip")
PROOF = ("_topic", "_offset", "_emit_offset", "_row", "_session", "_sequence")
"""The provenance columns in a test's result, in the order of `RowWithOrigin`; the event time is read as a number."""


class _Pass(msgspec.Struct):
    """The results of one fold of a range."""

    verdicts: dict[int, Verdict] = {}
    rows: dict[int, tuple[msgspec.Struct, ...]] = {}
    emitted: list[msgspec.Struct] = []


class Recorder(Generic[R]):
    """The records of one partition. A range may be folded more than once: only its last fold counts.

    Attributes:
        compiled: The stream, whose calls and results are recorded.
        topic: The topic.
        envelopes: The envelope of each message, by offset.
    """

    def __init__(self, made: CompiledStream, topic: str) -> None:
        self._made = made
        self.topic = topic
        self._now = _Pass()
        self._kept = _Pass()
        self.envelopes: dict[int, Envelope] = {}
        self._aside: dict[int, QuarantineRow] = {}
        self.compiled = replace(
            made,
            envelope=self._envelope,
            gate_for=self._gate_for,
            on_snapshot=self._open,
            on_update=self._apply,
            hooks=self._hooks(),
            replacement=self._replacement(),
            examines_states=True,
            columns=None,  # a chunk at once makes no calls to record
        )

    def begin(self) -> None:
        """Start a fold of a range: results of an earlier fold of it are discarded."""
        self._now = _Pass()

    def keep(self, rows: pa.Table | None, quarantine: Iterable[QuarantineRow]) -> list[RowWithOrigin[R]]:
        """Finish a range; returns its rows with their provenance.

        Args:
            rows: Its rows as stored in the table; None without any.
            quarantine: Its rows of the quarantine.
        """
        self._kept.verdicts.update(self._now.verdicts)
        self._kept.rows.update(self._now.rows)
        self._aside.update((row.offset, row) for row in quarantine)
        return list(_proven(cast("list[R]", self._now.emitted), rows))

    def folded(self, offset: int) -> MessageResult[R]:
        """The result of a message."""
        rows = cast("tuple[R, ...]", self._kept.rows.get(offset, ()))
        return MessageResult(offset, self.envelopes.get(offset), self._verdict(offset), rows, self.topic)

    def violation(self, finding: Finding) -> MessageResult[R]:
        """The result of the message of a violation."""
        verdict = _make_verdict(finding, Judgement.VIOLATION, finding.found or finding.detail or None)
        return MessageResult(finding.offset, self.envelopes.get(finding.offset), verdict, (), self.topic)

    def _verdict(self, offset: int) -> Verdict:
        judged = self._kept.verdicts.get(offset)
        aside = self._aside.get(offset)
        if aside is not None and aside.cause != Fault.UNDECODABLE and _is_overruled(judged, aside):
            refused = self._made.integrity.judge(Fault.TRANSFORM_FAILED)
            judgement = Judgement.QUARANTINE if aside.cause == "suspended" else refused
            return _make_verdict(aside, judgement, aside.found)
        if judged is not None:
            return judged
        envelope = self.envelopes.get(offset)
        undecodable = Verdict(judgement=self._made.integrity.judge(Fault.UNDECODABLE), cause=Fault.UNDECODABLE)
        if envelope is not None and envelope.kind is Kind.SKIP:
            return SKIPPED
        return undecodable

    def _envelope(self, message: object, record: Record) -> Envelope:
        envelope = self.envelopes[record.offset] = self._made.envelope(message, record)
        return envelope

    def _gate_for(
        self,
        before: int,
        time: PartitionTime,
        skipped: Collection[SuspendedSession] = (),
        *,
        spread: bool = False,
        joined: bool = False,
    ) -> AnyGate:
        return RecordingGate(
            self._made.gate_for(before, time, skipped, spread=spread, joined=joined), lambda: self._now.verdicts
        )

    def _hooks(self) -> Hooks:
        """The hooks that emit rows, recorded."""
        hooks = self._made.hooks
        recorded = dict[str, Any]()
        for name in ("on_timer", "on_late", "on_end"):
            hook = getattr(hooks, name)
            if hook is not None:
                recorded[name] = self._noting(hook)
        return replace(hooks, **recorded)

    def _noting(self, hook: Callable[..., Iterable[msgspec.Struct]]) -> Callable[..., list[msgspec.Struct]]:
        def noted(*given: object) -> list[msgspec.Struct]:
            rows = list(hook(*given))
            self._now.emitted.extend(rows)
            return rows

        return noted

    def _replacement(self) -> Replacement | None:
        """The replacement of tables, recorded."""
        made = self._made.replacement
        if made is None:
            return None

        def noted(before: object, after: object, message: object, record: Record | None) -> list[msgspec.Struct]:
            rows = list(made.difference(before, after, message, record))
            if record is None:
                self._now.emitted.extend(rows)
                return rows
            return self._noted(record, rows)

        return replace(made, difference=noted)

    def _open(self, message: object, record: Record, previous: object) -> object:
        opened = self._made.on_snapshot(message, record, previous)
        if isinstance(opened, InitialState):
            both = cast("InitialState[object, msgspec.Struct]", opened)
            return InitialState(both.state, self._noted(record, both.rows))
        return opened

    def _apply(self, state: object, message: object, record: Record) -> Iterable[msgspec.Struct]:
        return self._noted(record, self._made.on_update(state, message, record))

    def _noted(self, record: Record, emitted: Iterable[msgspec.Struct]) -> list[msgspec.Struct]:
        rows = list(emitted)
        self._now.rows[record.offset] = (*self._now.rows.get(record.offset, ()), *rows)
        self._now.emitted.extend(rows)
        return rows


def list_rejected(rows: Iterable[QuarantineRow]) -> Iterator[RejectedMessage]:
    """Rows of quarantine or late table in the form of a test's result."""
    for row in rows:
        yield RejectedMessage(row.topic, row.offset, row.session, row.cause, row.expected, row.found)


def _is_overruled(judged: Verdict | None, aside: QuarantineRow) -> bool:
    """Whether the final result of a quarantined message differs from the gate's verdict."""
    if judged is None or judged.judgement is Judgement.ACCEPT:
        return True
    return judged.judgement is Judgement.BUFFER and aside.cause != "suspended"


def _make_verdict(of: Finding | QuarantineRow, judgement: Judgement, found: str | None) -> Verdict:
    return Verdict(judgement=judgement, cause=of.cause, expected=of.expected, found=found)


def _proven(rows: Sequence[R], table: pa.Table | None) -> Iterator[RowWithOrigin[R]]:
    stored = 0 if table is None else table.num_rows
    if len(rows) != stored:
        raise AssertionError(f"{len(rows)} rows were emitted, the table holds {table and table.num_rows}")
    if table is not None:
        happened = table["_event_time"].cast(pa.int64()).to_pylist()
        proofs = zip(*(table[name].to_pylist() for name in PROOF), happened, table["_cause"].to_pylist(), strict=True)
        for row, proof in zip(rows, proofs, strict=True):
            yield RowWithOrigin(row, *proof)


class RecordingGate(WrappingGate[Any]):
    """A gate whose verdicts are recorded, by offset."""

    def __init__(self, asked: AnyGate, verdicts: Callable[[], dict[int, Verdict]]) -> None:
        super().__init__(asked)
        self._verdicts = verdicts

    @override
    def check(self, state: Any, envelope: Envelope, record: Record) -> tuple[Any, Verdict]:
        after, verdict = super().check(state, envelope, record)
        self._verdicts()[record.offset] = verdict
        return after, verdict
