"""NoIntegrity: best effort, and a count of everything it noticed.

Promises: exactly-once delivery to the table; nothing about the producer.
Refuses: nothing; messages that cannot be decoded, or on which the transform raises, are quarantined.
Costs: one comparison a message if the producer numbers them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from lockstep.integrity.base import IntegrityClass, PartitionTime
from lockstep.integrity.gate_states import KNOWN, GateState, KnownSession
from lockstep.integrity.sequence_numbers import check_range, check_wrap, describe_wrap, unwrap_sequence
from lockstep.integrity.verdict import ACCEPT, Gate, Judgement, Verdict, accept_with_remark
from lockstep.model.fault import Fault
from lockstep.model.record import Envelope, Kind, Record


class CountingGate(Gate[int | KnownSession]):
    """Accepts everything; compares sequence numbers that the producer can have sent.

    The state is the newest number of the session; `KnownSession` without a number. A snapshot restarts the
    comparison with its own number, even if that is lower.
    """

    def __init__(self, wraps_at: int | None) -> None:
        self.wraps_at = wraps_at

    @override
    def check(
        self, state: int | KnownSession | None, envelope: Envelope, record: Record
    ) -> tuple[int | KnownSession, Verdict]:
        number = envelope.sequence
        is_snapshot = envelope.kind is Kind.SNAPSHOT
        if number is None or check_range(number, self.wraps_at) is not None:
            return (KNOWN if state is None else state), ACCEPT
        last = state if isinstance(state, int) else None
        if last is not None and not (is_snapshot and envelope.restarts_sequence):
            number = unwrap_sequence(number, last, self.wraps_at)
        if last is None or number == last + 1 or (is_snapshot and (envelope.restarts_sequence or number == last)):
            return number, ACCEPT
        if number > last:
            return number, accept_with_remark("gap", last + 1, number)
        cause = "repeat" if number == last else "sequence goes back"
        newest = number if is_snapshot else last  # a repeated update must not report the next one as a gap
        return newest, accept_with_remark(cause, last + 1, number)

    def migrate_state(self, state: GateState) -> int | KnownSession:
        """See `Gate.migrate_state`: a session known to another class stays known."""
        return state if isinstance(state, int) else KNOWN


@dataclass(frozen=True, kw_only=True)
class NoIntegrity(IntegrityClass):
    """Best effort: undecodable messages are quarantined, gaps are counted, unknown sessions pass.

    Attributes:
        wraps_at: Modulus at which numbers restart at 0: 256 for 8 bits. Larger numbers are not compared.
    """

    wraps_at: int | None = None

    fault_policy: ClassVar[Mapping[Fault, Judgement]] = {
        **dict.fromkeys(Fault, Judgement.GAP),
        Fault.UNDECODABLE: Judgement.QUARANTINE,
        Fault.TRANSFORM_FAILED: Judgement.QUARANTINE,
    }
    passes_unknown_sessions: ClassVar[bool] = True
    tolerates_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse an invalid modulus."""
        check_wrap("NoIntegrity.wraps_at", self.wraps_at)

    @property
    def unordered_because(self) -> str:
        """See `IntegrityClass.unordered_because`: falls and repeats are noticed, counted and subtracted."""
        return describe_wrap(self.wraps_at)

    @override
    def gate(self, time: PartitionTime) -> Gate[int | KnownSession]:
        del time
        return CountingGate(self.wraps_at)

    @override
    def guarantee(self) -> str:
        return "none: best effort, everything noticed is counted"
