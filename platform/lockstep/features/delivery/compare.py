"""Compares the rows of a target with those of a table, by digests of their identity and content."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

from lockstep.declare.delivery import Delivery
from lockstep.declare.delivery_target import DeliveryToken
from lockstep.features.delivery.position import KIND, find_common_batch
from lockstep.table.head import Head
from lockstep.verify.report import FollowerProof, InvariantStatus

Digests = npt.NDArray[np.uint64]


class ComparedBatches(msgspec.Struct, frozen=True):
    """The batches whose rows are compared.

    Attributes:
        valid: The last batch that counts of each generation.
        since: Batches up to this number were not delivered, or retention has dropped their rows.
        until: The last batch that was delivered as a whole.
    """

    valid: dict[int, int]
    since: int
    until: int

    def counts(self, generation: int, batch: int) -> bool:
        """Whether a batch counts; otherwise it was undone."""
        return batch <= self.valid.get(generation, -1)

    def has(self, batch: int) -> bool:
        """Whether the rows of a batch are compared."""
        return self.since < batch <= self.until


def choose_batches(token: DeliveryToken, head: Head) -> ComparedBatches:
    """The batches to compare for a token. Pure."""
    dropped = 0 if head.retention is None else head.retention.batch
    until = min(token.batch, find_common_batch(token, head))
    return ComparedBatches(head.valid_batches, min(max(token.since, dropped), until), until)


class TargetDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Differences between a target and a table.

    Attributes:
        compared: Messages or rows of the target that were compared.
        missing: Rows of the table that are not in the target.
        extra: Messages or rows that the table does not have.
        repeated: Rows that are in the target twice.
        changed: Those with another content.
        disordered: Those before which a later row of their source partition is.
        foreign: Those that this delivery did not write.
        undone: Those of batches that were undone; a halt was accepted.
        other_code: Those of other functions, of which only identity and order were compared.
        first: The first difference, with its place.
    """

    compared: int = 0
    missing: int = 0
    extra: int = 0
    repeated: int = 0
    changed: int = 0
    disordered: int = 0
    foreign: int = 0
    undone: int = 0
    other_code: int = 0
    first: str = ""


class DigestComparison:
    """The rows of a target, compared with those of the table: 17 bytes of memory a row, 50 while it sorts."""

    def __init__(self) -> None:
        self._counts = dict[str, int]()
        self._first = ""
        self._kept = (array("Q"), array("Q"), bytearray())
        self._identities: Digests = np.empty(0, np.uint64)
        self._contents: Digests = np.empty(0, np.uint64)
        self._compares: npt.NDArray[np.bool_] = np.empty(0, np.bool_)
        self._met: npt.NDArray[np.bool_] = np.empty(0, np.bool_)

    def note(self, kind: str, example: str, count: int = 1) -> None:
        """Count a difference; the first example is kept."""
        self._counts[kind] = self._counts.get(kind, 0) + count
        self._first = self._first or example

    def add(self, identity: bytes, content: bytes, *, compares: bool = True) -> None:
        """Add a row of the target; its content is compared unless other code made it."""
        if not compares:
            self.note("other_code", "")
        identities, contents, compared = self._kept
        identities.append(_digest(identity))
        contents.append(_digest(content))
        compared.append(compares)

    def settle(self) -> None:
        """Sort the rows that were added, before those of the table are compared with them."""
        identities, contents, compares = self._kept
        order = np.argsort(np.frombuffer(identities, np.uint64), kind="stable")
        self._identities = np.frombuffer(identities, np.uint64)[order]
        self._contents = np.frombuffer(contents, np.uint64)[order]
        self._compares = np.frombuffer(compares, np.bool_)[order]
        self._met = np.zeros(len(order), np.bool_)
        repeated = int(np.count_nonzero(self._identities[1:] == self._identities[:-1]))
        if repeated:
            self.note("repeated", "two have one identity", repeated)

    def compare(self, identity: bytes, content: bytes, row: str) -> None:
        """Compare a row of the table; `row` names it in the first example."""
        digest = np.uint64(_digest(identity))
        at = int(np.searchsorted(self._identities, digest))
        if at == len(self._identities) or self._identities[at] != digest:
            self.note("missing", f"{row} is not in the target")
            return
        self._met[at] = True
        if self._compares[at] and self._contents[at] != np.uint64(_digest(content)):
            self.note("changed", f"{row}: its content differs")

    def result(self) -> TargetDifference:
        """The differences that were found."""
        is_new = np.concatenate([[True], self._identities[1:] != self._identities[:-1]])[: len(self._identities)]
        extra = int(np.count_nonzero(~self._met & is_new))
        if extra:
            self.note("extra", "a row of the target is not in the table", extra)
        return TargetDifference(compared=len(self._identities), first=self._first, **self._counts)


def _digest(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def judge_difference(
    delivery: Delivery, token: DeliveryToken, found: TargetDifference, unit: str, excuses: Mapping[str, str]
) -> FollowerProof:
    """Judge the differences between a target and a table. Pure.

    Args:
        delivery: The delivery.
        token: Its position.
        found: The differences.
        unit: Word for the rows of the target, such as "messages".
        excuses: Reasons for which a kind of difference is not a fault: "missing" or "extra".
    """
    claim = f"{delivery.target.address}: {found.compared} {unit}, up to batch {token.batch}"
    counts = {
        name: getattr(found, name) for name in ("missing", "extra", "repeated", "changed", "disordered", "foreign")
    }
    excused = [f"{counts.pop(kind)} {kind}: {reason}" for kind, reason in excuses.items() if counts[kind]]
    wrong = [f"{count} {name}" for name, count in counts.items() if count]
    if wrong:
        return make_proof(delivery, InvariantStatus.VIOLATED, claim, f"{', '.join(wrong)}; first: {found.first}")
    if found.undone:
        excused.append(f"{found.undone} {unit} are of undone batches, which was accepted")
    if found.other_code:
        excused.append(f"{found.other_code} {unit} were made by other functions: their values were not compared")
    if token.dead:
        excused.append(f"{len(token.dead)} rows are dead letters")
    status = InvariantStatus.NOT_PROVEN if excused else InvariantStatus.PROVEN
    return make_proof(delivery, status, claim, "; ".join(excused))


def make_proof(delivery: Delivery, status: InvariantStatus, claim: str, reason: str) -> FollowerProof:
    """The proof of one delivery. Pure."""
    step = f"lockstep deliver {delivery.name} --plan" if reason else ""
    return FollowerProof(kind=KIND, name=delivery.name, status=status, claim=claim, reason=reason, next_step=step)
