"""Deliveries to Postgres that kill their process or wait at a step: ROOT KIND STEP:WRITES,... [GATE]."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.features.delivery import deliver
from lockstep.features.delivery.postgres_target import PostgresConnection
from tests.features.delivery.killed_delivery import die, wait_at
from tests.features.delivery.postgres_rows import declare, to_current
from tests.features.delivery.postgres_rows import deliver as run
from tests.support.kept_stream import keeping
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = {"locked": "_lock_token", "claimed": "_claim", "moved": "_move_token", "copied": "_write_rows"}
STEPS = (*METHODS, "committed", "position")
"""Steps at which it dies.

In the claim, after it, in a transaction with only the token or with rows, after the commit, and before its position for
status is written.
"""


def interrupt(step: str, act: Callable[[], None], writes: int) -> None:
    """Call a function after a step of the write with this number; the first write is the claim."""
    if step == "position":
        vars(deliver)["write_position"] = lambda *_: act()
        return
    name = METHODS.get(step, "write")
    original = getattr(PostgresConnection, name)
    count = [0]

    def call(self: PostgresConnection, *arguments: Any) -> Any:
        answer = original(self, *arguments)
        count[0] += 1
        if count[0] >= writes or (name.endswith(("token", "claim")) and step in {"locked", "claimed"}):
            act()
        return answer

    setattr(PostgresConnection, name, call)


def main(root: str, kind: str, steps: str, gate: str = "") -> None:
    """Run a delivery to each step, each in a separate process, and print the exit codes."""
    for each in steps.split(","):
        step, _, writes = each.partition(":")
        child = os.fork()  # before a library starts a thread
        if not child:
            interrupt(step, (lambda: wait_at(Path(gate))) if gate else die, int(writes))
            options: dict[str, Any] = {"transaction_rows": 1}
            if kind == "current":
                options |= {"select": to_current, "key": ("_session", "name"), "removed": "value"}
            offline = Offline(keeping(), Path(root))
            run(offline, declare(offline, **options))
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
