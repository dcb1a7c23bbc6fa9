"""A stream that undergoes all operations at random, compared with a plain fold of the produced messages.

The ledger names the offsets and the batch of each read, and must have no gap and no overlap. A rewind, a promotion or a
restore must leave the known content of its batch. All else is compared with the plain fold.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

from lockstep import Limits
from lockstep.engine.driver import planner
from lockstep.features.compaction import compact as compacting
from lockstep.features.compaction.run import compact_stream
from lockstep.features.copies.backup import make_backup, restore_backup
from lockstep.features.copies.rebuild import prepare_rebuild, rebuild_state
from lockstep.features.copies.relocate import export_savepoint, import_savepoint
from lockstep.features.erase.erase import (
    EraseReason,
    EraseRequest,
    erase_session,
    finish_erasing,
    prepare_erasure,
    read_context,
)
from lockstep.features.export.dataset import ExportMismatch, find_folder, list_exported_hours
from lockstep.features.export.export import export_stream, list_proven_hours
from lockstep.features.export.kept_rows import EXPORTED
from lockstep.features.history.kept_rows import SHADOWS
from lockstep.features.history.promote import promote_shadow
from lockstep.features.history.rewind import RewindReason, prepare_rewind, rewind_stream
from lockstep.features.history.savepoint import drop_named_savepoint, make_savepoint
from lockstep.features.history.shadow import (
    NotAShadow,
    begin_shadow,
    drop_shadow,
    make_pin,
    release_pin,
)
from lockstep.features.retention import rows as retain
from lockstep.features.retention.housekeeping import run_housekeeping
from lockstep.integrity.resume_options import IntegrityLost, StreamHalted
from lockstep.operations.lifecycle import close_hour
from lockstep.operations.past_batches import NotRewindable
from lockstep.operations.plan_frame import Refused
from lockstep.operations.resume import resume_stream
from lockstep.table import delta_log, side_tables
from lockstep.table.checkpoint import write_checkpoint
from lockstep.table.commit import OLDEST_FILE_SECONDS, OutputLog, raise_rewind_floor
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_ledger, read_ledger_file
from lockstep.table.session_digest import compute_session_digest
from lockstep.verify.verify import verify_stream
from tests.correctness.walk.checking import check, read_exported
from tests.correctness.walk.killing import Moment, do_in_process, kill_after
from tests.correctness.walk.looked_up import LookedUp
from tests.correctness.walk.producing import Place, Producing
from tests.correctness.walk.walked_stream import EXPIRED, EXTRAS, FROM_SNAPSHOT, GROWN, LOSS, GivenUp, Release, Segment
from tests.correctness.walk.walked_windows import declare_windows
from tests.support.local_runs import LocalRuns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockstep.declare.stream import AnyStream
    from lockstep.derived import Export
    from lockstep.table.head import Head
    from lockstep.table.ledger import LedgerRow
    from tests.support.feed import Feed

BETWEEN_SECONDS = 1.5 * OLDEST_FILE_SECONDS
FOREVER = 10.0 * 365 * 86_400
SHADOW = "walked_shadow"
RESUMPTIONS_MAX = 60
WRITES_MAX = 1_000_000
Segments = dict[Place, list[Segment]]
Note = str | None
"""The result of a step, for the message of a walk that fails; None if the step had nothing to do."""


@dataclass
class Known:
    """The content of a stream after a batch."""

    segments: Segments
    release: Release


@dataclass
class Model:
    """The expected content of a stream; a backup has a copy of it.

    Attributes:
        release: The deployed code.
        released: The code that wrote each batch.
        erased: Sessions, with the positions at their erasures.
        after: The content after each batch.
        segments: The offsets that were read.
        given_up: The offsets at which no message was judged.
        exported: The rows of each exported hour.
    """

    release: Release
    released: dict[int, Release] = field(default_factory=dict)
    erased: list[tuple[str, dict[Place, int]]] = field(default_factory=list)
    after: dict[int, Known] = field(default_factory=dict)
    segments: Segments = field(default_factory=dict)
    given_up: dict[Place, list[GivenUp]] = field(default_factory=dict)
    exported: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)

    @property
    def positions(self) -> dict[Place, int]:
        """Return the next offset of each partition."""
        return {place: listed[-1].until for place, listed in self.segments.items()}


@dataclass
class Shadow:
    """A shadow that has started."""

    release: Release
    base: int
    runs: LocalRuns


class Walk:
    """The life of one stream, from a seed."""

    def __init__(self, feed: Feed, root: Path, seed: int, *, has_windows: bool = False) -> None:
        self.choose = random.Random(seed)  # noqa: S311  # choices of a test
        release = Release(halts=self.choose.random() < 0.6, looks_up=self.choose.random() < 0.3)
        if has_windows:
            release = Release(halts=False, has_windows=True, reorders=seed % 2 == 0)
        self.feed, self.root, self.kafka = feed, root, Producing(feed, self.choose, release)
        self.model = Model(release)
        self.changes_class = seed % 3 == 0
        self.looked_up = LookedUp(root / "extras", self.choose)
        self.place, self.shadow, self.backup = root / "r0", cast("Shadow | None", None), cast("Model | None", None)
        self.clock = datetime.now(UTC) - timedelta(days=60)
        self.written: dict[Path, float] = {}
        self.steps = list[str]()
        self._link_extras(self.place)
        self.kafka.create()
        self.do(self.read_more)

    @property
    def runs(self) -> LocalRuns:
        """Return runs of the deployed code."""
        limits = Limits(batch_messages=self.choose.choice((5, 20, 1000)), quarantine_burst=10_000)
        stream = declare(self.model.release, self.feed.pattern)
        return LocalRuns(stream, self.feed.bootstrap_servers, self.place).with_limits(limits)

    @property
    def folders(self) -> StreamFolders:
        """Return the current folders of the tables."""
        return StreamFolders("walked", self.place / "tables")

    @property
    def head(self) -> Head:
        """Return the head of the table."""
        return OutputLog(self.folders.table).base().head

    @property
    def export(self) -> Export:
        """Return the export that the stream declares."""
        return cast("Export", self.runs.stream.export)

    @property
    def export_folder(self) -> Path:
        """Return the folder of the exported hours."""
        return find_folder(self.export, self.folders)

    def step(self) -> None:
        """Take a random step that does something, and check the tables after it."""
        often = [self.send, self.run, self.read_more, self.read_more] * 4
        while not self.do(self.choose.choice([*often, *self._list_seldom(), *[self.kill] * 4])):
            pass

    def _link_extras(self, place: Path) -> None:
        """Link the lookup table next to the other tables, in each root."""
        (place / "tables").mkdir(parents=True, exist_ok=True)
        (place / "tables" / EXTRAS.path).symlink_to(self.looked_up.path)

    def find_hour(self) -> str:
        """Return the current hour by the clock of the walk."""
        return self.clock.strftime("%Y-%m-%dT%H")

    def send(self) -> Note:
        """Send messages that no run reads yet."""
        self.kafka.send()
        return "sent"

    def _list_seldom(self) -> list[Callable[[], Note]]:
        kafka = self.kafka
        topics = [kafka.create, kafka.grow, kafka.remove, kafka.make_again, self.expire]
        tables = [self.compact, self.compact_open_hour, self.write_checkpoint, self.close_hour, self.move_clock]
        shadows = [self.begin_shadow, self.run_shadow, self.run_shadow, self.promote, self.drop_shadow]
        copies = [self.back_up, self.restore, self.restore, self.relocate, self.lose_local_stores, self.lose_state]
        looked_up = [self.change_extras] * 3
        cleaning = [self.keep_house, self.keep_house, self.drop_old_rows, self.erase, self.write_export]
        return [
            *(self.rewind, self.rewind, self.make_savepoint, self.drop_savepoint, self.deploy, self.deploy),
            *(*topics, *tables, *shadows, *copies, *cleaning, *looked_up),
        ]

    @contextmanager
    def clocked(self) -> Iterator[None]:
        """Take the hours from the clock of the walk."""
        with ExitStack() as stack:
            for module in (planner, retain, compacting):
                stack.enter_context(patch.object(module, "find_current_hour", self.find_hour))
            yield

    def do(self, action: Callable[[], Note]) -> bool:
        """Take a step; return False if it has nothing to do."""
        with self.clocked():
            note = action()
        if note is None:
            return False
        head = self.head if delta_log.has_log(self.folders.table) else None
        shown = "" if head is None else f"batch {head.batch}, generation {head.generation}, {head.desired.value}"
        self.steps.append(f"{action.__name__}: {note} -> {shown}")
        if head is not None:
            check(self, head)
        return True

    def expire(self) -> Note:
        """Let Kafka's retention delete some of the messages that were read."""
        places = [place for place in self.model.segments if not self.kafka.logs[place].is_gone]
        if not places or self.choose.random() < 0.5:
            return None
        place = self.choose.choice(places)
        return self.kafka.expire(place, self.model.positions[place])

    def read_more(self) -> Note:
        """Send messages, and run to read them."""
        self.kafka.send()
        return self.run()

    def run(self) -> Note:
        """Read all, with the newest rows of the lookup table; a halt is mostly resumed as it suggests."""
        told = list[str]()
        before = max(self.model.after, default=0)
        for _ in range(RESUMPTIONS_MAX):
            try:
                self.runs.run()
            except (IntegrityLost, StreamHalted) as halted:
                told.append(",".join(sorted({each.cause for each in halted.findings})))
                self.look()
                if self.choose.random() < 0.04:
                    return f"{told}, left"
                resume_stream(self.folders, why="test", who="test", accepted=[], suggested=True)
                continue
            self.look()
            reached = {place: self.model.positions.get(place, 0) for place in self.kafka.logs}
            left = {place: at for place, at in reached.items() if at < len(self.kafka.logs[place].sent)}
            assert all(self.kafka.logs[place].is_gone for place in left), left
            new = [each for listed in self.model.segments.values() for each in listed if each.batch > before]
            extras = self.looked_up.known[self.looked_up.newest] if self.model.release.looks_up else None
            assert all(each.extras in (None, extras) for each in new), (new, extras)
            return str(told)
        raise AssertionError(f"it halts again and again: {told}")

    def look(self) -> None:
        """Note the commits of the deployed code."""
        head = self.head
        model = self.model
        for batch in range(1, head.batch + 1):
            model.released.setdefault(batch, model.release)
        model.segments = self.read_segments(head)
        first = max((*(b for b in model.after if b < head.batch), head.rewinds[-1].batch if head.rewinds else 0))
        for batch in range(first + 1, head.batch + 1):
            cut = {place: [each for each in held if each.batch <= batch] for place, held in model.segments.items()}
            known = Known({place: held for place, held in cut.items() if held}, model.release)
            model.after.setdefault(batch, known)

    def read_segments(self, head: Head) -> Segments:
        """Return the segments in the ledger: each partition from its first offset, without a gap or an overlap."""
        found = Segments()
        grown = set[tuple[str, int]]()
        self.model.given_up = {}
        for row in self._read_ledger(head):
            place = (row.topic_id, row.partition)
            self.model.given_up.setdefault(place, []).extend(list_given_up(row))
            if row.lifecycle == GROWN and not self.model.released[row.batch].halts:
                grown.add((row.topic_id, row.batch))
            if row.until > row.start:
                listed = found.setdefault(place, [])
                assert row.start == (listed[-1].until if listed else 0), row
                read = [self.looked_up.known[each.table_id, each.version] for each in row.lookups or ()]
                listed.append(Segment(row.until, row.batch, self.model.released[row.batch], *read))
        for (topic_id, partition), listed in found.items():
            for batch in (batch for grown_id, batch in grown if grown_id == topic_id):
                at = max((each.until for each in listed if each.batch < batch), default=0)
                self.model.given_up[topic_id, partition].append(GivenUp(at, at, GROWN))
        return found

    def _read_ledger(self, head: Head) -> list[LedgerRow]:
        """Return the valid rows; a kill may have left the newest rows out of the table, which the next start adds."""
        rows = read_ledger(self.folders.ledger, last_batch=head.batch)
        if head.ledger is not None and max((row.batch for row in rows), default=0) < head.batch:
            rows += read_ledger_file(self.folders.ledger, head.ledger.path)
        return [row for row in rows if row.batch <= head.valid_batches.get(row.generation, -1)]

    # Back and forth

    def rewind(self) -> Note:
        """Go to any batch that is not refused: an earlier batch, or a batch that was undone."""
        head = self.head
        choices = [
            batch for batch in sorted({0, *self.model.after}) if head.may_rewind_to(batch) and batch != head.batch
        ]
        if not choices:
            return None
        batch = self.choose.choice(choices)
        kinds = {each.kind for each in prepare_rewind(self.runs.handle, str(batch)).plan.obstacles}
        assert kinds == ({RewindReason.EXPIRED} if self._is_expired(batch) else set()), (batch, kinds)
        if not kinds:
            rewind_stream(self.runs.handle, str(batch), who="a test", why="at random")
            self._be_rewound(self.model.after.get(batch))
        return f"to {batch}: {kinds}"

    def _is_expired(self, batch: int) -> bool:
        """Whether Kafka has lost messages that would have to be read again."""
        held = self.model.after[batch].segments if batch in self.model.after else {}
        back = {place: listed[-1].until for place, listed in held.items()}
        again = [
            (self.kafka.logs[at], back.get(at, 0)) for at, now in self.model.positions.items() if now > back.get(at, 0)
        ]
        return any(log.expired > begin or log.is_gone for log, begin in again)

    def _be_rewound(self, known: Known | None) -> None:
        """Check that the content is that of the batch. A halting policy is not restored over a suspending policy."""
        head = self.head
        model = self.model
        found = self.read_segments(head)
        assert found == (known.segments if known is not None else {})
        model.segments = found
        if known is not None:
            model.release = known.release._replace(halts=known.release.halts and model.release.halts)
        model.released[head.batch], model.after[head.batch] = model.release, Known(found, model.release)

    def make_savepoint(self) -> Note:
        """Make a savepoint of any batch to which a rewind may go."""
        head = self.head
        batches = [batch for batch in self.model.after if head.may_rewind_to(batch)]
        if not batches or len(head.savepoints) > 4:
            return None
        batch = self.choose.choice(batches)
        make_savepoint(self.folders, f"s{len(self.steps)}", who="a test", why="at random", at=str(batch))
        return f"of {batch}"

    def drop_savepoint(self) -> Note:
        """Drop a savepoint."""
        named = [each.name for each in self.head.savepoints if each.name != make_pin(SHADOW)]
        if not named:
            return None
        name = self.choose.choice(named)
        drop_named_savepoint(self.folders, name, who="a test", why="at random")
        return name

    def deploy(self) -> Note:
        """Deploy another release: state and rows of another type, another class, or a lookup table.

        After a policy that suspends, no release halts again.
        """
        old = self.model.release
        if old.has_windows:
            return None
        number = self.choose.choice((0, 1, 2, 3) if old.number == 0 else (1, 2, 3))
        halts = old.halts and self.choose.random() < 0.6
        looks_up = old.looks_up or self.choose.random() < 0.3
        is_ordered = old.is_ordered is not (self.changes_class and self.choose.random() < 0.3)
        self.model.release = old._replace(number=number, halts=halts, looks_up=looks_up, is_ordered=is_ordered)
        return str(self.model.release)

    def change_extras(self) -> Note:
        """Change the lookup table."""
        if not self.model.release.looks_up:
            return None
        table = self.looked_up
        return self.choose.choice((table.write, table.write, table.compact, table.vacuum, table.make_again))()

    def lose_state(self) -> Note:
        """Delete state files, and rebuild them by folding their batches; put them back if that is refused."""
        files = sorted(self.folders.state.rglob("*.state"))
        if not files:
            return None
        kept = self.root / "kept"
        lost = self.choose.sample(files, min(2, len(files)))
        shutil.copytree(self.folders.state, kept, dirs_exist_ok=True)
        for path in lost:
            path.unlink()
        try:
            done = str(rebuild_state(self.runs.handle).files)
            assert prepare_rebuild(self.runs.handle).plan.partitions == ()
        except Refused as refused:
            done = str(refused.problem)
        for path in lost:  # a rewind may need more of them than the stream does
            shutil.copy2(kept / path.relative_to(self.folders.state), path)
        shutil.rmtree(kept)
        return done

    # Housekeeping

    def compact(self) -> Note:
        """Compact the closed hours of all tables."""
        return str(compacting.compact(self.folders).table.files_before)

    def compact_open_hour(self) -> Note:
        """Compact the open hour, even if it has few files."""
        return str(compact_stream(self.folders, open_files_max=1).files_before)

    def write_checkpoint(self) -> Note:
        """Write a checkpoint of the log."""
        write_checkpoint(self.folders.table)
        return "written"

    def close_hour(self) -> Note:
        """Close the open hour."""
        return close_hour(self.folders)

    def move_clock(self) -> Note:
        """Move the clock forward, at times back."""
        self.clock += timedelta(hours=self.choose.choice((1, 1, 2, 5, 24, -1)))
        return str(self.clock)

    def keep_house(self) -> Note:
        """Run housekeeping, mostly with a higher floor, and long after everything in the folders was written."""
        head = self.head
        floors = [batch for batch in self.model.after if head.rewind_floor <= batch <= head.batch]
        floor = self.choose.choice(floors) if floors and self.choose.random() < 0.7 else None
        if floor is not None:
            OutputLog(self.folders.table).commit(raise_rewind_floor(head.generation, floor))
        if is_later := self.choose.random() < 0.7:
            self._let_time_pass()
        run_housekeeping(self.folders, retention_seconds=FOREVER)
        return f"floor {floor}, later {is_later}"

    def _let_time_pass(self) -> None:
        """Set file times: commits are further apart than a file may wait for its commit, and the first was long ago."""
        table = self.folders.table
        began = time.time() - FOREVER
        for version in delta_log.list_versions(table):
            entry = delta_log.make_entry_path(table, version)
            actions = map(json.loads, entry.read_text().splitlines())
            added = [table / action["add"]["path"] for action in actions if "add" in action]
            self.written = dict.fromkeys([entry, *added], began + version * BETWEEN_SECONDS) | self.written
        for path in table.parent.rglob("*"):
            if path in self.written or (path.is_file() and path.suffix != ".json"):
                os.utime(path, (self.written.get(path, began),) * 2)

    def drop_old_rows(self) -> Note:
        """Run the retention of the table, mostly of exported hours only."""
        keep = timedelta(hours=self.choose.choice((0, 1, 5, 30)))
        find_exported = partial(list_proven_hours, self.export, self.folders) if self.choose.random() < 0.6 else None
        try:
            done = retain.drop_old_rows(self.folders, keep, cause="test", find_exported=find_exported)
        except ExportMismatch:
            return None
        return str(done.plan.rows)

    def write_export(self) -> Note:
        """Export closed hours; at times a dataset of batches that were rewound is removed."""
        try:
            done = export_stream(self.runs.stream, self.folders)
        except ExportMismatch as mismatch:
            if self.choose.random() < 0.5:
                self._remove(self.export_folder)
                self.model.exported.clear()
            return str(mismatch)
        self._note_exported()
        return f"{done.rows} rows"

    def _remove(self, folder: Path) -> None:
        """Remove a folder atomically, even if a kill follows."""
        gone = folder.rename(self.root / f"gone{time.monotonic_ns()}")
        shutil.rmtree(gone)

    def _note_exported(self) -> None:
        hours = list_exported_hours(self.export_folder)
        for gone in self.model.exported.keys() - set(hours):
            del self.model.exported[gone]
        for hour in hours:
            self.model.exported.setdefault(hour, read_exported(self.export_folder, hour))

    def erase(self) -> Note:
        """Erase a session, in all topics or one, after removing the obstacles."""
        log = self.choose.choice(list(self.kafka.logs.values()))
        session = f"{self.choose.choice('abcd')}{log.partition}"
        topic = self.choose.choice(("", log.topic))
        request = EraseRequest(session=session, topic=topic, drop_state=True, drop_savepoints=True)
        positions = self.model.positions
        while True:
            try:
                erase_session(self.folders, request, read_context(self.runs.handle), who="ann", why="test")
                break
            except Refused as refused:
                kinds = {each.kind for each in refused.obstacles if not request.accepted.get(each.kind)}
                if kinds & {EraseReason.NOTHING, EraseReason.HALTED}:
                    return None
                self._make_way(kinds, request)
        self._be_erased(session, topic, positions)
        return f"{session} in {topic or 'all'}"

    def _make_way(self, kinds: set[str], request: EraseRequest) -> None:
        assert kinds <= {SHADOWS, EXPORTED}, kinds
        if SHADOWS in kinds:
            self.drop_shadow()
        plan = prepare_erasure(self.folders, request, read_context(self.runs.handle)).plan
        for hour in sorted(list_exported_hours(self.export_folder) & set(plan.hours)):
            self._remove(self.export_folder / f"commit_hour={hour}")
            del self.model.exported[hour]

    def _be_erased(self, session: str, topic: str, positions: dict[Place, int]) -> None:
        where = {place: at for place, at in positions.items() if topic in {"", self.kafka.logs[place].topic}}
        self.model.erased.append((session, where))
        self.look()
        shutil.rmtree(self.root / "backup", ignore_errors=True)
        self.backup = None

    # Shadows

    def begin_shadow(self) -> Note:
        """Start a shadow with other rows, and at times another state, from any batch."""
        head = self.head
        batches = [batch for batch in self.model.after if head.may_rewind_to(batch)]
        if self.shadow is not None or not batches:
            return None
        batch = self.choose.choice(batches)
        old = self.model.release
        looks_up = old.looks_up or (not old.has_windows and self.choose.random() < 0.3)
        release = old._replace(
            is_biased=not old.is_biased, number=self.choose.randint(old.number, 3), looks_up=looks_up
        )
        runs = self.runs
        try:
            source = runs.of(declare(release, self.feed.pattern))
            begin_shadow(source.handle, SHADOW, str(batch), code="", who="ann", why="test")
        except Refused as refused:
            kinds = {each.kind for each in refused.obstacles}
            assert kinds == {RewindReason.EXPIRED}, refused  # noqa: PT017  # whether it is refused is not known before
            return str(kinds)
        self.shadow = Shadow(release, batch, runs.of(declare(release, self.feed.pattern, SHADOW)))
        return f"from {batch} with {release}"

    def run_shadow(self) -> Note:
        """Run the shadow to the ends; its halts are resumed as they suggest."""
        if self.shadow is None:
            return None
        for resumed in range(RESUMPTIONS_MAX):
            try:
                self.shadow.runs.run()
            except (IntegrityLost, StreamHalted):
                resume_stream(self.shadow.runs.folders, why="test", who="test", accepted=[], suggested=True)
                continue
            return f"{resumed} resumed"
        raise AssertionError("the shadow halts again and again")

    def promote(self) -> Note:
        """Promote the shadow, however far it is behind."""
        if self.shadow is None:
            return None
        before = self.head
        deployed = self.runs.of(declare(self.shadow.release, self.feed.pattern))
        try:
            promote_shadow(deployed.handle, SHADOW, who="ann", why="test", accept_behind=True)
        except (Refused, NotRewindable) as refused:
            return str(refused)
        self._be_promoted(self.shadow, before)
        return f"from {self.shadow.base} on"

    def _be_promoted(self, shadow: Shadow, before: Head) -> None:
        """Check that segments before the base of the shadow stay, and that all later batches are of the shadow."""
        head = self.head
        model = self.model
        model.released |= dict.fromkeys(range(before.batch + 1, head.batch + 1), shadow.release)
        model.release = shadow.release._replace(halts=shadow.release.halts and model.release.halts)
        found = self.read_segments(head)
        base = model.after[shadow.base].segments
        assert {place: found[place][: len(listed)] for place, listed in base.items()} == base
        came = [each for place, listed in found.items() for each in listed[len(base.get(place, ())) :]]
        assert all(each.batch > before.batch for each in came), came
        model.segments, model.after[head.batch] = found, Known(found, shadow.release)

    def drop_shadow(self) -> Note:
        """Delete the shadow."""
        if self.shadow is None:
            return None
        drop_shadow("walked", SHADOW, self.runs.settings, who="ann")
        self.shadow = None
        return "dropped"

    # Copies

    def back_up(self) -> Note:
        """Write a backup into the single backup folder."""
        make_backup(self.folders, self.root / "backup")
        self.backup = copy.deepcopy(self.model)
        return f"of {self.head.batch}"

    def restore(self) -> Note:
        """Restore lost tables: into the same root with the local stores of the lost tables, or into another root."""
        if self.backup is None or self.choose.random() < 0.5:
            return None
        if self.choose.random() < 0.5:
            (self.place / "tables").rename(self.root / f"lost{len(self.steps)}")
        else:
            self.place = self.root / f"r{len(self.steps)}"
        self._link_extras(self.place)
        restore_backup(self.folders, self.root / "backup")
        self._be_restored()
        return self.place.name

    def _be_restored(self) -> None:
        """Check that the content is that of the backup; the shadow of that time is lost."""
        self.model = copy.deepcopy(cast("Model", self.backup))
        self.shadow = None
        self.model.exported.clear()
        release_pin(self.folders, SHADOW, "ann")
        assert self.read_segments(self.head) == self.model.segments

    def relocate(self) -> Note:
        """Start elsewhere with a savepoint, and prove the result; this root continues."""
        named = [each for each in self.head.savepoints if each.name != make_pin(SHADOW) and each.batch]
        if not named or self.choose.random() < 0.5:
            return None
        chosen = self.choose.choice(named)
        export = self.root / f"e{len(self.steps)}"
        elsewhere = self.root / "other"
        export_savepoint(self.runs.handle, chosen.name, export)
        stream = declare(self.model.after[chosen.batch].release, self.feed.pattern)
        other = LocalRuns(stream, self.feed.bootstrap_servers, elsewhere / str(len(self.steps)))
        self._link_extras(other.root)
        try:
            import_savepoint(other.handle, export, who="ann", why="test")
        except Refused as refused:
            assert self.kafka.loses, refused  # noqa: PT017  # whether it is refused is not known before
            return str(refused)
        for _ in range(RESUMPTIONS_MAX):
            try:
                other.run()
                break
            except (IntegrityLost, StreamHalted):
                resume_stream(other.folders, why="test", who="test", accepted=[], suggested=True)
        report = verify_stream(other.stream, other.folders, other.settings.kafka)
        assert report.violations == (), (report.violations, report.notes)
        return f"batch {chosen.batch}"

    def lose_local_stores(self) -> Note:
        """Delete all hot copies of state."""
        shutil.rmtree(self.place / "local", ignore_errors=True)
        return "lost"

    # Kills

    def kill(self) -> Note:
        """Kill an operation at some write; its commits count, and the next operation finds the rest."""
        after: dict[Callable[[], Note], Callable[[Model, Head], None]] = {
            **dict.fromkeys((self.run, self.read_more), lambda *_: self.look()),
            **dict.fromkeys((self.compact, self.compact_open_hour, self.keep_house), lambda *_: None),
            **dict.fromkeys((self.make_savepoint, self.drop_old_rows, self.close_hour), lambda *_: None),
            self.rewind: self._after_killed_rewind,
            self.promote: self._after_killed_promotion,
            self.erase: self._after_killed_erasure,
            self.begin_shadow: self._after_killed_shadow,
            self.drop_shadow: lambda *_: self._after_killed_drop(),
            self.run_shadow: lambda *_: None,
            self.write_export: lambda *_: self._note_exported(),
            self.back_up: lambda *_: self._after_killed_backup(),
            self.restore: lambda *_: self._after_killed_restore(),
        }
        action = self.choose.choice(list(after))
        before = self.head
        model = self.model
        note, killed = self._do_killed(action)
        if not killed:
            return None if note is None else f"not {action.__name__}: {note}"
        after[action](model, before)
        return f"{action.__name__} at {killed}"

    def _do_killed(self, action: Callable[[], Note]) -> tuple[Note, str]:
        """Return the note of an action and the place of its kill, in this process or in another."""
        writes = int(self.choose.expovariate(1 / 12))
        note = cast("Note", None)
        if action == self.restore or self.choose.random() < 0.5:
            with kill_after(writes) as killed:
                note = action()
            return note, "".join(killed)
        if action == self.read_more:  # the messages sent must be known here
            action = self.run
            self.kafka.send()
        seconds = self.choose.choice((None, self.choose.expovariate(1 / 0.2)))
        moment = Moment(writes if seconds is None else WRITES_MAX, seconds)
        done = do_in_process(self, action.__name__, moment)
        if done is None:
            return None, f"SIGKILL, {moment}"
        note, left = done
        vars(self).update(left)
        return note, ""

    def _after_killed_rewind(self, model: Model, before: Head) -> None:
        head = self.head
        if head.generation == before.generation:
            return
        side_tables.SideLogs(self.folders).catch_up(head)
        found = self.read_segments(head)
        self._be_rewound(next((each for each in reversed(model.after.values()) if each.segments == found), None))

    def _after_killed_promotion(self, _: Model, before: Head) -> None:
        if self.head.generation != before.generation:
            side_tables.SideLogs(self.folders).catch_up(self.head)
            self._be_promoted(cast("Shadow", self.shadow), before)

    def _after_killed_erasure(self, model: Model, before: Head) -> None:
        erasure = self.head.erasure
        table_id = before.table_id
        self._note_exported()
        if self.shadow is not None and not delta_log.has_log(self.shadow.runs.folders.table):
            self._after_killed_drop()
        if erasure is None or erasure == before.erasure:
            return
        names = [f"{letter}{number}" for letter in "abcd" for number in range(4)]
        (session,) = (name for name in names if compute_session_digest(table_id, name) == erasure.digest)
        if self.choose.random() < 0.5:
            finish_erasing(self.folders)
        else:
            run_housekeeping(self.folders, retention_seconds=FOREVER)
        self._be_erased(session, erasure.topic, model.positions)

    def _after_killed_shadow(self, _: Model, __: Head) -> None:
        """Drop all that exists of the shadow."""
        if self.shadow is None:
            self._after_killed_drop()

    def _after_killed_drop(self) -> None:
        try:
            drop_shadow("walked", SHADOW, self.runs.settings, who="ann")
        except NotAShadow:
            release_pin(self.folders, SHADOW, "ann")
        self.shadow = None

    def _after_killed_backup(self) -> None:
        """The next backup succeeds."""
        self.back_up()

    def _after_killed_restore(self) -> None:
        """The next restore succeeds, unless the killed restore did."""
        if not delta_log.has_log(self.folders.table):
            restore_backup(self.folders, self.root / "backup")
        self._be_restored()


def declare(release: Release, pattern: str, name: str = "walked") -> AnyStream:
    """Return the stream of a release."""
    return declare_windows(release, pattern, name) if release.has_windows else release.declare(pattern, name)


def list_given_up(row: LedgerRow) -> list[GivenUp]:
    """Return the offsets of a ledger row at which no message was judged."""
    accepted = [each for each in row.accepted if each.kind in {FROM_SNAPSHOT, LOSS}]
    lost = [GivenUp(hole.start, hole.until, EXPIRED) for hole in row.holes if hole.cause == EXPIRED]
    return [*(GivenUp(each.start, each.until, each.kind) for each in accepted), *lost]
