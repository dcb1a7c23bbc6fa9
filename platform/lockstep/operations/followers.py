"""The consumers of the committed rows of streams: their names, and how far they are behind."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import msgspec

from lockstep.declare.derived import Derived
from lockstep.feature import load_parts


class FollowerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer of the committed rows of streams, such as a derived table.

    Attributes:
        name: Its name.
        sources: Names of the streams that it reads.
        behind_commits: Commits of its sources that it has not read; None before its first run.
        freshness_seconds: Age of the newest commit of its sources that it has read, of the oldest of several sources;
            None before its first run, or where housekeeping has deleted that entry of the log.
        last_run: When it was last written (UTC): a run without news writes nothing; None before the first.
        next_run: "rebuilds it" and why, "goes on", or "has nothing to do"; "waits for a table" while a source has none.
        problem: Why nothing else is known; empty when it is.
    """

    name: str
    sources: tuple[str, ...]
    behind_commits: int | None = None
    freshness_seconds: float | None = None
    last_run: datetime | None = None
    next_run: str = ""
    problem: str = ""


def list_followers(stream: str, root: Path) -> tuple[str, ...]:
    """Names of the followers that have read a stream: a change of its past makes each read it again."""
    names = set[str]()
    for list_names in load_parts("followers"):
        names.update(list_names(stream, root))
    return tuple(sorted(names))


def read_followers(declared: Iterable[Derived], root: Path) -> tuple[FollowerStatus, ...]:
    """Status of all declared followers, by name."""
    found = list[FollowerStatus]()
    for read in load_parts("follower_status"):
        found += read(declared, root)
    return tuple(found)
