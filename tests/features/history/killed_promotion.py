"""A promotion, or the start of a shadow, that kills its process at a named moment."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.features.history import promote, shadow
from lockstep.storage import LocalStorage
from lockstep.table import side_tables
from tests.support.adding_stream import adding
from tests.support.local_runs import LocalRuns

MOMENTS = ("while it copies", "before the commit", "after the entry", "before the side tables", "before the offsets")
AFTER = MOMENTS[2:]
BEGINNINGS = ("before its tables", "after its state", "before its commit", "before its ledger")


def die(*_: Any, **__: Any) -> None:
    """Kill this process without clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that the process dies after the call."""

    def called(*arguments: Any, **named: Any) -> None:
        call(*arguments, **named)
        die()

    return called


def die_of_promotions(catch_up: Any) -> Any:
    """Die before the side tables are brought up to the promotion."""
    return lambda logs, head: die() if head.promotion is not None else catch_up(logs, head)


ARMED: dict[str, tuple[object, str, Callable[[Any], Any]]] = {
    "while it copies": (promote, "_copy_side", lambda _: die),
    "before the commit": (promote, "commit_promotion", lambda _: die),
    "after the entry": (LocalStorage, "create_whole", die_after),
    "before the side tables": (side_tables.SideLogs, "catch_up", die_of_promotions),
    "before the offsets": (promote, "publish_positions", lambda _: die),
    "before its tables": (shadow, "open_tables", lambda _: die),
    "after its state": (shadow, "take_state", die_after),
    "before its commit": (shadow, "commit_first_batch", lambda _: die),
    "before its ledger": (side_tables.SideLogs, "catch_up", lambda _: die),
}


def main(servers: str, root: str, pattern: str, name: str, moment: str) -> None:
    """Promote the shadow, or start it from batch 1."""
    runs = LocalRuns(adding(pattern), servers, Path(root))
    where, what, make = ARMED[moment]
    setattr(where, what, make(getattr(where, what)))
    if moment in MOMENTS:
        promote.promote_shadow(runs.handle, name, who="a test", why="to be killed")
    else:
        shadow.begin_shadow(runs.handle, name, "1", code="", who="a test", why="to be killed")


if __name__ == "__main__":
    main(*sys.argv[1:])
