"""The phases of a batch at which a driver is killed: observed in its files, and proven from them after the kill.

A batch leaves traces in this order: its tasks hold the locks of the hot copies; a rows file grows; the rows file is
finished; a temporary log entry; the entry; the entry of the ledger. The last trace after a kill thus shows the phase of
the batch.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.support.plain_reader import named_files

PARQUET_END = b"PAR1"
BATCHES_MAX = 4
"""A phase is abandoned after this number of batches: other phases need the rest of the run."""
ENTRY = re.compile(r"\d{20}\.json")


class Phase(Enum):
    """The phase of a batch."""

    PLANNING = "planning: no trace of the next batch"
    FOLDING = "reading and folding: tasks hold the state, nothing is written"
    WRITING = "a rows file is begun and not finished"
    WRITTEN = "rows are written, not committed"
    COMMITTING = "inside the commit: a temporary log entry, not published"
    BETWEEN = "committed, the side table not yet"


@dataclass(frozen=True)
class Places:
    """The folders of the watched stream."""

    table: Path
    ledger: Path
    hot: Path

    @property
    def log_entry(self) -> int:
        """The newest version of the output table; -1 without a version."""
        return _newest(self.table)

    @property
    def ledger_entry(self) -> int:
        """The newest version of the ledger; -1 without a version."""
        return _newest(self.ledger)

    @property
    def batch(self) -> int:
        """The last committed batch."""
        return int(_head(self.table).get("batch", 0)) if self.log_entry >= 0 else 0

    def rows_files(self) -> set[Path]:
        """All rows files on disk, committed or not."""
        return set(self.table.glob("commit_hour=*/*.parquet"))

    def temporary_entries(self) -> set[str]:
        """Files in the log's folder that are not entries."""
        names = _log_names(self.table)
        return {name for name in names if name.endswith(".tmp") or "#" in name}


class Baseline:
    """The files before a driver starts, left behind by killed drivers."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.batch = places.batch
        self.rows = places.rows_files()
        self.temporary = places.temporary_entries()


class Watch:
    """Watches the phases of one driver after a given batch; it is cheap enough for a tight loop."""

    def __init__(self, baseline: Baseline) -> None:
        self._places = baseline.places
        self._baseline = baseline
        self._entry, self._rows = self._places.log_entry, self._places.rows_files()
        self._last_entry = self._entry + BATCHES_MAX

    def sees(self, aim: Phase) -> bool:
        """Whether the running batch is in this phase, or too many batches passed without it."""
        entry = self._places.log_entry
        if entry != self._entry:
            between = aim is Phase.BETWEEN and _ledger_behind(self._places)
            self._entry, self._rows = entry, self._places.rows_files()
            return between or entry >= self._last_entry
        return self._sees_within_batch(aim)

    def _sees_within_batch(self, aim: Phase) -> bool:
        if aim is Phase.COMMITTING:
            return bool(self._places.temporary_entries() - self._baseline.temporary)
        if aim is Phase.FOLDING:
            return any(path.read_bytes()[:1] > b"\0" for path in self._places.hot.rglob("*.lock"))
        new = self._places.rows_files() - self._rows
        if aim is Phase.PLANNING:
            return not new and not _ledger_behind(self._places)
        return any(aim is Phase.WRITING or _finished(path) for path in new) and aim is not Phase.BETWEEN


@dataclass(frozen=True)
class Proof:
    """The result of a kill, read from the files.

    Attributes:
        batch: The last batch committed to the output table.
        phase: The phase of the next batch.
        evidence: The trace that shows it.
    """

    batch: int
    phase: Phase
    evidence: str


class Found:
    """The traces of a batch, immediately after its driver died."""

    def __init__(self, baseline: Baseline) -> None:
        self._places = baseline.places
        self._baseline = baseline

    @cached_property
    def _orphans(self) -> list[Path]:
        named = {self._places.table / name for name in named_files(self._places.table)}
        return sorted(self._places.rows_files() - self._baseline.rows - named)

    def proof(self) -> Proof:
        """Return the phase of the furthest trace."""
        batch = self._places.batch
        places = self._places
        held = [path.name for path in places.hot.rglob("*.lock") if _held(path)]
        temporary = sorted(places.temporary_entries() - self._baseline.temporary)
        finished = [path.name for path in self._orphans if _finished(path)]
        if _ledger_behind(places):
            return Proof(batch, Phase.BETWEEN, f"the log has batch {batch}, the ledger has not")
        if temporary:
            return Proof(batch, Phase.COMMITTING, f"{temporary[0]} beside entry {places.log_entry}")
        if finished:
            return Proof(batch, Phase.WRITTEN, f"{finished[0]} is whole, no entry names it")
        if self._orphans:
            return Proof(batch, Phase.WRITING, f"{self._orphans[0].name} has no end")
        if held:
            return Proof(batch, Phase.FOLDING, f"{len(held)} hot copies are held, no file of batch {batch + 1}")
        return Proof(batch, Phase.PLANNING, f"no trace of batch {batch + 1}")


def _ledger_behind(places: Places) -> bool:
    """Whether the ledger's log lacks the file named by the newest head."""
    named = _head(places.table).get("ledger")
    return named is not None and named["path"] not in _text(places.ledger, _newest(places.ledger))


def _head(table: Path) -> dict[str, Any]:
    first, *_ = (line for line in _text(table, _newest(table)).splitlines() if "commitInfo" in line)
    head: dict[str, Any] = json.loads(json.loads(first)["commitInfo"]["lockstep.head"])
    return head


def _text(table: Path, version: int) -> str:
    return (table / "_delta_log" / f"{version:020d}.json").read_text()


def _newest(table: Path) -> int:
    entries = (name for name in _log_names(table) if ENTRY.fullmatch(name))
    return max((int(name[:20]) for name in entries), default=-1)


def _log_names(table: Path) -> list[str]:
    try:
        return [path.name for path in (table / "_delta_log").iterdir()]
    except FileNotFoundError:
        return []


def _finished(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        if file.tell() < 2 * len(PARQUET_END):
            return False
        file.seek(-len(PARQUET_END), os.SEEK_END)
        return file.read() == PARQUET_END


def _held(path: Path) -> bool:
    """Whether a living process holds the lock; acquires it only for this check."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
