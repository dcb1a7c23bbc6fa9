"""Once: every message exactly once, in any order.

Promises: no message of the log is missing, and no duplicate of the producer is applied twice, as far
back as its id is remembered.
Refuses: gaps and losses of the log, one id with two contents, a session that ends with messages missing.
Costs: 28 bytes for each remembered id, rewritten with each batch that touches the session: ids are kept
for the newest `keep_ids` messages of a session; an older duplicate is not detected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, cast

from typing_extensions import override

from lockstep.errors import DeclarationError
from lockstep.integrity.base import IntegrityClass, PartitionTime
from lockstep.integrity.gate_states import GateState, SeenIds
from lockstep.integrity.sequence_numbers import make_digest
from lockstep.integrity.verdict import ACCEPT, Gate, Judgement, Verdict, report_violation
from lockstep.model.fault import Fault
from lockstep.model.record import Envelope, Kind, Record

IDS_MAX = 100_000
"""More would make the state of one session larger than most messages of it ever were."""


class OnceGate(Gate[SeenIds]):
    """Messages by id; by number without an id; messages with neither pass."""

    def __init__(self, keep_ids: int) -> None:
        self._keep = keep_ids

    @override
    def check(self, state: SeenIds | None, envelope: Envelope, record: Record) -> tuple[SeenIds | None, Verdict]:
        messages = 0 if state is None else state.messages
        contents: dict[bytes, bytes] = {} if state is None else state.contents
        if envelope.restarts_sequence and envelope.kind is Kind.SNAPSHOT and envelope.id is None:
            contents = {}  # the numbering restarts: earlier numbers do not count
        identity = _identity(envelope)
        content = None if identity is None else contents.get(identity)
        if content is not None:
            return state, _judge_repeated_id(envelope, same=content == make_digest(record))
        if envelope.kind is Kind.END and envelope.count is not None and messages + 1 != envelope.count:
            expected = f"{envelope.count} messages in the session"
            return state, report_violation("ids missing", expected, messages + 1)
        if identity is not None:
            self._remember(contents, identity, make_digest(record))
        return SeenIds(messages + 1, contents), ACCEPT

    def migrate_state(self, state: GateState) -> SeenIds:
        """See `Gate.migrate_state`: nothing is remembered of a session known to another class."""
        return state if isinstance(state, SeenIds) else SeenIds(0, {})

    def _remember(self, ids: dict[bytes, bytes], identity: bytes, content: bytes) -> None:
        ids[identity] = content
        while len(ids) > self._keep:
            del ids[next(iter(ids))]


def _identity(envelope: Envelope) -> bytes | None:
    key = envelope.sequence if envelope.id is None else envelope.id
    if key is None:
        return None
    return blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _judge_repeated_id(envelope: Envelope, *, same: bool) -> Verdict:
    """A message with a known id is dropped; a number alone does not prove that it is the same message."""
    shown = str(envelope.sequence if envelope.id is None else envelope.id)
    if not same:
        return report_violation("same id, other content", "the content it had before", shown)
    if envelope.id is None:
        return report_violation("repeat", "each number once", shown)
    return Verdict(Judgement.DUPLICATE, "repeat", "each id once", shown)


@dataclass(frozen=True, kw_only=True)
class Once(IntegrityClass):
    """Every message exactly once, in any order.

    Example: `Once(keep_ids=1_000)`

    Attributes:
        keep_ids: Message ids of a session that are remembered; older duplicates are not detected.
    """

    keep_ids: int

    fault_policy: ClassVar[Mapping[Fault, Judgement]] = {
        **dict.fromkeys(Fault, Judgement.VIOLATION),
        Fault.UNDECODABLE: Judgement.QUARANTINE,
        Fault.TRANSFORM_FAILED: Judgement.QUARANTINE,
        Fault.PARTITIONS_ADDED: Judgement.GAP,
        Fault.SESSION_SPLIT: Judgement.GAP,
    }
    passes_unknown_sessions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse an empty memory, or one too large for a session's state."""
        limit = cast("object", self.keep_ids)  # users need no checker
        if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= IDS_MAX:
            problem = f"is not a number of ids between 1 and {IDS_MAX}"
            raise DeclarationError("Once.keep_ids", limit, problem, "for example Once(keep_ids=1_000)")

    @override
    def gate(self, time: PartitionTime) -> Gate[SeenIds]:
        del time
        return OnceGate(self.keep_ids)

    @override
    def guarantee(self) -> str:
        return f"once: every message exactly once, in any order; repeats seen among the last {self.keep_ids} ids"
