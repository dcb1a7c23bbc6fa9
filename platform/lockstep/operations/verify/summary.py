"""From what was compared to the proof. Pure."""

from __future__ import annotations

from collections import Counter

import msgspec

from lockstep.operations.verify.partition_proof import PartitionProof
from lockstep.operations.verify.proof import MEANING, Invariant, Proof, Proven, Scope, Status, Violations
from lockstep.operations.verify.ranges import Chain
from lockstep.operations.verify.stored_tables import Stored


class Work(msgspec.Struct):
    """What was compared.

    Attributes:
        messages: Messages read again.
        counts: Messages by what became of them.
        holes: Offsets without a message.
        lost: Offsets that an operator gave up.
        rows: Rows compared with the fold.
        table_rows: Rows of the table.
        states: Session states compared.
        kept: Quarantine rows compared.
        ranges: Ledger rows.
        scopes: How far each partition was proven.
        blocked: Why something that Kafka still has could not be proven.
    """

    messages: int = 0
    counts: Counter[str] = msgspec.field(default_factory=Counter)
    holes: int = 0
    lost: int = 0
    rows: int = 0
    table_rows: int = 0
    states: int = 0
    kept: int = 0
    ranges: int = 0
    scopes: list[Scope] = msgspec.field(default_factory=list)
    blocked: list[str] = msgspec.field(default_factory=list)

    def add(self, chain: Chain, proof: PartitionProof) -> None:
        """The end of one partition."""
        self.counts.update(proof.totals)
        self.holes += len(proof.gaps)
        self.lost += proof.lost
        self.rows += proof.compared_rows
        self.states += proof.compared_states
        self.kept += proof.compared_kept
        self.ranges += len(chain.ranges)
        if proof.ended:
            self.blocked.append(f"{chain.place.topic}/{chain.place.partition}: {proof.ended}")


def summary(stream: str, stored: Stored, work: Work, violations: Violations, cpu_seconds: float) -> Proof:
    """The proof."""
    blocked = list(dict.fromkeys(work.blocked))
    if not blocked and not work.messages and any(row.messages for row in stored.ledger):
        blocked.append("no message could be read again")
    invariants = tuple(
        _proven(each, _checked(each, stored, work), violations, blocked=bool(blocked)) for each in Invariant
    )
    statuses = {each.status for each in invariants}
    status = next((s for s in (Status.VIOLATED, Status.NOT_PROVEN) if s in statuses), Status.PROVEN)
    return Proof(
        stream=stream,
        status=status,
        version=stored.version,
        generation=stored.head.generation,
        batch=stored.head.batch,
        messages=work.messages,
        invariants=invariants,
        counts={**work.counts, "holes": work.holes, "accepted_loss": work.lost},
        violation_count=violations.counts.total(),
        violations=tuple(violations.kept),
        scopes=tuple(sorted(work.scopes, key=lambda scope: (scope.topic, scope.partition, scope.topic_id))),
        notes=(*stored.notes, *blocked),
        cpu_seconds=round(cpu_seconds, 3),
        next_step=_next_step(stream, status),
    )


def _proven(invariant: Invariant, checked: str, violations: Violations, *, blocked: bool) -> Proven:
    count = violations.of(invariant)
    needs_kafka = invariant in {Invariant.ACCOUNTED, Invariant.FOLD}
    status = Status.VIOLATED if count else Status.NOT_PROVEN if blocked and needs_kafka else Status.PROVEN
    return Proven(invariant, MEANING[invariant], status, checked, count)


def _checked(invariant: Invariant, stored: Stored, work: Work) -> str:
    counts = work.counts
    if invariant is Invariant.ACCOUNTED:
        named = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in _WITHOUT_ROWS)
        if counts["late"] or counts["buffered"]:
            named += f", {counts['late']} late, {counts['buffered'] - counts['released']} held back"
        lost = f", {work.lost} accepted as lost" if work.lost else ""
        return f"{work.messages} messages: {counts['with_rows']} with rows, {named}; {work.holes} holes{lost}"
    if invariant is Invariant.ORDER:
        return f"{work.table_rows} rows in {len(stored.data_files)} files"
    if invariant is Invariant.FOLD:
        return f"{work.rows} rows, {work.states} session states, {work.ranges} ledger rows, {work.kept} quarantined"
    return f"{stored.checked} side files: {len(stored.ledger)} ledger rows, {len(stored.quarantine)} quarantine rows"


_WITHOUT_ROWS = ("accepted_without_row", "skipped", "dropped", "quarantined")


def _next_step(stream: str, status: Status) -> str:
    if status is Status.VIOLATED:
        return (
            f"keep all as it is; docs/verify.md says what each kind means; lockstep repair {stream} looks at the files"
        )
    if status is Status.NOT_PROVEN:
        return "see the notes: what is missing was not compared, which is neither proof nor violation"
    return f"nothing to do; lockstep status {stream} shows where it stands"
