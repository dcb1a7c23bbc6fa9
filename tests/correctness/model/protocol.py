"""The commit protocol as an executable specification, small enough to be explored completely.

Several writers, a compactor, a process that closes hours and a process that rewinds share one log. Each may stop
anywhere for any time (a zombie) or forever (a crash: it takes no further step, and in every world any process may be
dead). It may never learn whether its entry was written. A new writer may start at any moment. A commit has four steps:

1. `LOOK`: refresh, read the head on this base, and check the demands of the kind on it, at every attempt;
2. `WRITE`: write the entry at exactly the next version, or not at all;
3. `ASK`: if no answer arrived, the token of the entry at that version names the winner;
4. `FORWARD`: update the side tables from the newest entry before anything else is committed.

`explore` (exploring.py) walks every interleaving within `Bounds` and returns the shortest path to a broken invariant,
if there is any (invariants.py):

- one writer: an entry of a batch carries the epoch of the newest claim before it, so a fenced entry is never visible;
- no batch is lost or doubled: numbers rise by one, and each batch starts at the end offset of the previous batch;
- side tables hold the batches that the commits name, in order, and at most the newest is missing;
- nothing is committed into a closed hour;
- a rewind undoes exactly the batches after its target, and the next batch starts at the end of the target.

Each `Simplification` seems to be sufficient, but breaks an invariant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple


class Kind(Enum):
    """Kinds of entries."""

    CREATE = auto()
    CLAIM = auto()
    BATCH = auto()
    COMPACTION = auto()
    CLOSE = auto()
    REWIND = auto()


class Simplification(Enum):
    """A part of the protocol that seems superfluous."""

    CHECK_ONLY_AFTER_CONFLICT = "demands are looked at only after a race was lost"
    RETRY_BLINDLY = "what was not answered, or lost its race, is written again as it is"
    EPOCH_KEPT_FROM_BEFORE = "the epoch is compared with a head that was read earlier"
    SIDE_TABLES_FIRST = "side tables are committed before the output"
    SIDE_TABLES_WHENEVER = "the next batch does not wait for them"
    WRITE_ANYWHERE = "an entry that lost its place goes to the next one, as a library's own retries do"
    HOUR_KEPT_FROM_BEFORE = "the hour is compared with a head that was read earlier"
    REWIND_NAMES_NO_BATCH = "a rewind names the epoch that it replaces, not the batch after which it was planned"
    OFFSETS_IN_MEMORY = "a new writer goes on at the offset that an old one told it, not from the ledger"


class Head(NamedTuple):
    """The head that each entry of ours carries."""

    epoch: int = 0
    batch: int = 0
    closed: int = 0


class Entry(NamedTuple):
    """A version of the table.

    `start`: the offset at which a batch starts; each batch is one offset long. For a rewind, the offset before its
    position.
    `to`: the target batch of a rewind.
    """

    kind: Kind
    head: Head
    token: int = 0
    start: int = 0
    hour: int = 0
    to: int = 0


class At(Enum):
    """The next step of a process."""

    BEGIN = auto()
    LOOK = auto()
    WRITE = auto()
    ASK = auto()
    FORWARD = auto()
    WORK = auto()
    GONE = auto()


class Process(NamedTuple):
    """A process with its commits.

    Attributes:
        at: Its next step.
        wants: The kind of entry that it commits now.
        epoch: The epoch that it read; after its claim, the epoch that it holds.
        kept: The head that it read first; used by simplifications only.
        base: The version that it read.
        batch: Number of its batch.
        start: Offset of its batch.
        hour: Hour of its batch.
        to: The target batch of its rewind.
        token: Token of its current commit; the same for all attempts.
        left: Batches that it may still commit.
        blind: Whether it skips all checks (only with a simplification).
    """

    at: At = At.BEGIN
    wants: Kind = Kind.CLAIM
    epoch: int = 0
    kept: Head = Head()
    base: int = 0
    batch: int = 0
    start: int = 0
    hour: int = 1
    to: int = 0
    token: int = 0
    left: int = 0
    blind: bool = False


class World(NamedTuple):
    """The durable state, and every process.

    Attributes:
        log: Entries of the output table.
        ledger: The side table: number and start of each batch in it.
        processes: All possible processes.
        lost_answers: Answers that may still be lost.
    """

    log: tuple[Entry, ...] = (Entry(Kind.CREATE, Head()),)
    ledger: tuple[tuple[int, int], ...] = ()
    processes: tuple[Process, ...] = ()
    lost_answers: int = 1

    @property
    def head(self) -> Head:
        return self.log[-1].head

    def where(self, number: int, process: Process) -> World:
        processes = list(self.processes)
        processes[number] = process
        return self._replace(processes=tuple(processes))


@dataclass(frozen=True)
class Bounds:
    """The maximum number of processes and events of each kind."""

    writers: int = 2
    batches: int = 2
    compactions: int = 1
    closes: int = 0
    rewinds: int = 0
    lost_answers: int = 1

    def begin(self) -> World:
        writers = (Process(left=self.batches),) * self.writers
        compactors = (Process(wants=Kind.COMPACTION),) * self.compactions
        closers = (Process(wants=Kind.CLOSE),) * self.closes
        rewinders = (Process(wants=Kind.REWIND, left=1),) * self.rewinds
        return World(processes=writers + compactors + closers + rewinders, lost_answers=self.lost_answers)


Without = frozenset[Simplification]
S = Simplification


class Refused(Exception):
    """The head does not meet the demands of a commit."""


def demanded(kind: Kind, head: Head, *, epoch: int, batch: int = 0, hour: int = 1) -> Head:
    """Return the head after a commit; the real machine is compared with it.

    Raises:
        Refused: The head before the commit does not meet its demands.
    """
    match kind:
        case Kind.CLAIM if head.epoch == epoch:
            return head._replace(epoch=epoch + 1)
        case Kind.BATCH if head.epoch == epoch and head.batch == batch - 1 and hour > head.closed:
            return head._replace(batch=batch)
        case Kind.REWIND if head.epoch == epoch and head.batch == batch - 1:
            return head._replace(epoch=epoch + 1, batch=batch)
        case Kind.COMPACTION:
            return head
        case Kind.CLOSE:
            return head._replace(closed=max(1, head.closed))
    raise Refused


def steps(world: World, without: Without) -> Iterator[World]:
    """Yield every next world: one step of one process."""
    for number, process in enumerate(world.processes):
        if process.at is At.GONE:
            continue
        yield from _step(world, number, process, without)


def _step(world: World, number: int, process: Process, without: Without) -> Iterator[World]:
    match process.at:
        case At.BEGIN:
            kept = world.head if without else Head()
            begun = process._replace(at=At.LOOK, epoch=world.head.epoch, kept=kept, token=_token(number, 0))
            yield world.where(number, _plan_rewind(world, begun) if process.wants is Kind.REWIND else begun)
        case At.LOOK:
            yield world.where(number, _looked(world, process, without))
        case At.WRITE:
            yield from _written(world, number, process, without)
        case At.ASK:
            landed = world.log[process.base + 1].token == process.token
            if S.RETRY_BLINDLY in without:
                yield world.where(number, process._replace(at=At.LOOK, blind=True))
            else:
                again = world.where(number, process._replace(at=At.LOOK))
                yield _landed(world, number, process, without) if landed else again
        case At.FORWARD:
            yield _forwarded(world, number, process)
        case At.WORK:
            yield from _worked(world, number, process, without)


def visible(log: tuple[Entry, ...]) -> tuple[int, ...]:
    """Return the numbers of the batches that no rewind undid, in order."""
    found: tuple[int, ...] = ()
    for entry in log:
        if entry.kind is Kind.BATCH:
            found = (*found, entry.head.batch)
        elif entry.kind is Kind.REWIND:
            found = tuple(number for number in found if number <= entry.to)
    return found


def _plan_rewind(world: World, process: Process) -> Process:
    """Plan to undo the last visible batch; the side tables hold it before anything is committed."""
    counts = visible(world.log)
    if not counts:
        return Process(at=At.GONE)
    to = counts[-2] if len(counts) > 1 else 0
    start = len(counts) - 2
    return process._replace(at=At.FORWARD, batch=world.head.batch + 1, to=to, start=start)


def _looked(world: World, process: Process, without: Without) -> Process:
    """1. Check the demands on this base."""
    looked = process._replace(at=At.WRITE, base=len(world.log) - 1)
    first = process.base == 0 or world.log[process.base].token != process.token
    if process.blind or (S.CHECK_ONLY_AFTER_CONFLICT in without and first and process.at is At.LOOK):
        return looked
    try:
        _demanded_of(process, world.head, without)
    except Refused:
        return Process(at=At.GONE)
    return looked


def _demanded_of(process: Process, head: Head, without: Without) -> Head:
    if S.EPOCH_KEPT_FROM_BEFORE in without and process.wants is Kind.BATCH:
        head = head._replace(epoch=process.epoch)
    if S.HOUR_KEPT_FROM_BEFORE in without:
        head = head._replace(closed=process.kept.closed)
    if S.REWIND_NAMES_NO_BATCH in without and process.wants is Kind.REWIND:
        head = head._replace(batch=process.batch - 1)
    return demanded(process.wants, head, epoch=process.epoch, batch=process.batch, hour=process.hour)


def _written(world: World, number: int, process: Process, without: Without) -> Iterator[World]:
    """2. Write at exactly the next version, or not at all."""
    if len(world.log) - 1 != process.base and S.WRITE_ANYWHERE not in without:
        blind = process.blind or S.RETRY_BLINDLY in without
        yield world.where(number, process._replace(at=At.LOOK, blind=blind))
        return
    head = world.head
    if process.wants is Kind.CLAIM:
        head = head._replace(epoch=process.epoch + 1)
    elif process.wants is Kind.BATCH:
        head = head._replace(epoch=process.epoch, batch=process.batch)
    elif process.wants is Kind.REWIND:
        head = head._replace(epoch=process.epoch + 1, batch=process.batch)
    elif process.wants is Kind.CLOSE:
        head = head._replace(closed=1)
    entry = Entry(process.wants, head, process.token, process.start, process.hour, process.to)
    base = len(world.log) - 1
    after = world._replace(log=(*world.log, entry))
    yield _landed(after, number, process, without)
    if world.lost_answers:
        unanswered = after._replace(lost_answers=world.lost_answers - 1)
        yield unanswered.where(number, process._replace(at=At.ASK, base=base))


def _landed(world: World, number: int, process: Process, without: Without) -> World:
    process = process._replace(base=0, blind=False)
    if process.wants is Kind.CLAIM:
        return world.where(number, process._replace(epoch=process.epoch + 1, at=At.FORWARD))
    if process.wants is Kind.REWIND:
        return world.where(number, process._replace(at=At.FORWARD, left=0))
    if process.wants is Kind.BATCH:
        follows = At.WORK if S.SIDE_TABLES_WHENEVER in without else At.FORWARD
        return world.where(number, process._replace(at=follows, left=process.left - 1))
    return world.where(number, Process(at=At.GONE))


def _forwarded(world: World, number: int, process: Process) -> World:
    """4. Add the newest batch to the ledger if it is missing; if more is missing, the process ends."""
    newest = next((entry for entry in reversed(world.log) if entry.kind in {Kind.BATCH, Kind.REWIND}), None)
    held = world.ledger[-1][0] if world.ledger else 0
    work = process._replace(at=At.WORK)
    if process.wants is Kind.REWIND:
        work = process._replace(at=At.LOOK) if process.left else Process(at=At.GONE)
    if newest is None or held == newest.head.batch:
        return world.where(number, work)
    if held != newest.head.batch - 1:
        return world.where(number, Process(at=At.GONE))
    return world._replace(ledger=(*world.ledger, (newest.head.batch, newest.start))).where(number, work)


def _worked(world: World, number: int, process: Process, without: Without) -> Iterator[World]:
    """Plan the next batch from the ledger, read it and fold it."""
    if not process.left:
        yield world.where(number, Process(at=At.GONE))
        return
    held = 0
    start = 0
    if world.ledger:
        held = world.ledger[-1][0]
        start = world.ledger[-1][1] + 1
    if process.wants is Kind.BATCH:
        held = process.batch
        start = process.start + 1
    elif S.OFFSETS_IN_MEMORY in without:
        start = process.kept.batch
    token = _token(number, held + 1)
    planned = process._replace(wants=Kind.BATCH, at=At.LOOK, batch=held + 1, start=start, token=token)
    if S.SIDE_TABLES_FIRST in without:
        world = world._replace(ledger=(*world.ledger, (planned.batch, planned.start)))
    yield world.where(number, planned)


def _token(number: int, batch: int) -> int:
    """Return the token of a commit, the same for all its attempts."""
    return 100 * (number + 1) + batch
