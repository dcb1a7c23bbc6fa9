"""Checks of a table root in an object store: the requirements of the commit protocol are tried."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lockstep.operations.doctor.diagnosis import Diagnosis, make_error, make_ok
from lockstep.storage import Storage, find_storage

RACED_KEYS = 24
RACERS = 6
"""Objects, and creators of each at the same moment. A store that checks and then writes lets two of them win now and
then: one that lost 45 of 400 commits was found by fewer races than these (measured)."""
CLOCK_SECONDS_MAX = 60.0


def check_object_store(root: Path) -> Iterator[Diagnosis]:
    """Try a table root in an object store with temporary objects."""
    storage = find_storage(root, wait_seconds=0)
    draft = root / f".lockstep-doctor-{uuid.uuid4().hex}"
    storage.create(draft / "first", b"lockstep")
    try:
        yield make_ok("table root", f"objects can be written and read below {storage.uri(root)}")
        yield _check_exclusive(storage, draft)
        yield _check_clock(storage, draft / "first")
    finally:
        storage.delete_folder(draft)


def _check_exclusive(storage: Storage, draft: Path) -> Diagnosis:
    """Whether one of several creators of an object succeeds, and no other; commits depend on it."""
    name = "exclusive creation"
    keys = [draft / f"raced-{number}" for number in range(RACED_KEYS)]
    with ThreadPoolExecutor(RACERS) as racers:
        won = [sum(racers.map(partial(_create, storage, key), range(RACERS))) for key in [draft / "first", *keys]]
    if won[0] == 0 and all(count == 1 for count in won[1:]):
        return make_ok(name, f"of {RACERS} creators of {RACED_KEYS} objects one succeeded each time")
    step = "use a store that honours If-None-Match on PUT: two writers could both commit here, and one would be lost"
    return make_error(name, f"{sum(won) - RACED_KEYS} creators too many succeeded in {len(won)} races", step)


def _create(storage: Storage, path: Path, number: int) -> bool:
    try:
        storage.create(path, b"%d" % number)
    except FileExistsError:
        return False
    return True


def _check_clock(storage: Storage, path: Path) -> Diagnosis:
    """A commit refuses files that seem old, so the store's clock and this machine's must agree."""
    name = "table root: clock"
    status = storage.get_status(path)
    apart = abs((status.modified_at if status is not None else 0.0) - time.time())
    if apart > CLOCK_SECONDS_MAX:
        step = "set both clocks by NTP: files are judged by their age before they are committed or deleted"
        return make_error(name, f"the clock of the store is {apart:.0f} s from this machine's", step)
    return make_ok(name, "the store's clock is this machine's, within a minute")
