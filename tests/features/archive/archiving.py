"""Archived streams without a broker, plain reads of the archive, and processes killed during a commit."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from lockstep.declare.archive import Archive
from lockstep.engine.driver import committer
from lockstep.engine.executor import task
from lockstep.table import ledger, side_tables
from tests.features.history.killed_rewind import die
from tests.support.adding_stream import adding
from tests.support.feed import session
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "t"
MOMENTS = (
    "before its file",
    "after its file",
    "before the commit",
    "after the commit",
    "between the side tables",
    "after the side tables",
)
"""Steps of a batch commit."""


def make_offline(root: Path) -> Offline:
    """Return the adding stream with an archive."""
    return Offline(dataclasses.replace(adding(TOPIC), archive=Archive()), root)


def send(values: list[bytes], key: str = "s") -> dict[str, list[tuple[str, bytes]]]:
    """Return a batch of messages of one session."""
    return {TOPIC: [(key, value) for value in values]}


def run_batches(offline: Offline, updates: int, size: int = 2) -> list[bytes]:
    """Run batches of a session and return its messages."""
    values = session(updates)
    offline.run(*(send(values[at : at + size]) for at in range(0, len(values), size)))
    return values


def read_archive(offline: Offline) -> list[dict[str, Any]]:
    """Return all rows by partition and offset."""
    rows: list[dict[str, Any]] = DeltaTable(offline.folders.archive).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic_id"], row["partition"], row["offset"]))


def read_values(offline: Offline) -> list[tuple[int, bytes | None]]:
    """Return the offset and value of each row."""
    return [(row["offset"], row["value"]) for row in read_archive(offline)]


def arm(moment: str) -> None:
    """Kill this process at a step of the commit of its second batch."""
    calls = {"count": 0}

    def dying(call: Callable[..., Any], *, after: bool = False) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            calls["count"] += 1
            if calls["count"] == 2 and not after:
                die()
            found = call(*arguments, **options)
            return die() if calls["count"] == 2 else found

        return called

    is_after = moment.startswith("after")
    if moment.endswith("its file"):
        vars(task)["write_archive"] = dying(vars(task)["write_archive"], after=is_after)
    elif moment.endswith("the commit"):
        if is_after:
            committer.Committer._follow = dying(committer.Committer._follow)  # type: ignore[method-assign]  # noqa: SLF001
        else:
            vars(ledger)["write_ledger"] = dying(ledger.write_ledger, after=True)  # the last step before the commit
    elif moment == "between the side tables":
        _die_in_the_archive(calls)
    else:
        catch_up = side_tables.SideLogs.catch_up
        calls["count"] = -1  # the claim also brings them forward
        side_tables.SideLogs.catch_up = dying(catch_up, after=True)  # type: ignore[method-assign]  # killed there


def _die_in_the_archive(calls: dict[str, int]) -> None:
    catch_up = side_tables.SideLog.catch_up

    def called(side: Any, *arguments: Any, **options: Any) -> Any:
        calls["count"] += side._side.name == "archive"  # noqa: SLF001  # the name of its table
        return die() if calls["count"] == 2 else catch_up(side, *arguments, **options)

    side_tables.SideLog.catch_up = called  # type: ignore[method-assign,assignment]  # killed there


if __name__ == "__main__":
    arm(sys.argv[2])
    run_batches(make_offline(Path(sys.argv[1])), 7)
