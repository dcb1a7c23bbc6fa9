"""Rebuilds of a target that kill their process at a step: ROOT KIND REPLACES STEP,..."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lockstep.features.delivery import rebuild
from lockstep.features.delivery.postgres_target import PostgresConnection
from lockstep.features.delivery.targets import DeclaredDelivery
from lockstep.features.delivery.webhook_target import WebhookConnection
from lockstep.settings import Settings
from tests.features.delivery import postgres_rows, receiver
from tests.features.delivery.killed_delivery import die
from tests.support.kept_stream import keeping
from tests.support.offline_stream import Offline

STEPS = ("ordered", "claimed", "written", "committed", "recorded", "positioned")
"""Steps at which it dies.

After the order to stop, after the claim, after a write, after all writes, after the event of the history, and after the
position for status is written.
"""
BEFORE = {"ordered": "open_target", "committed": "record_claim", "recorded": "write_position"}
AFTER = {"claimed": "open_target", "positioned": "write_position"}


def declare(root: str, kind: str) -> DeclaredDelivery:
    """Declare the delivery."""
    offline = Offline(keeping(), Path(root))
    if kind == "webhook":
        return receiver.declare(offline, request_rows=2)
    return postgres_rows.declare(offline, transaction_rows=2)


def interrupt(step: str) -> None:
    """Die at a step."""
    if step in BEFORE:
        vars(rebuild)[BEFORE[step]] = lambda *_, **__: die()
        return
    owner: Any = rebuild
    name = AFTER.get(step, "")
    if step == "written":
        owner = WebhookConnection if KIND == "webhook" else PostgresConnection
        name = "_send_rows" if KIND == "webhook" else "_write_rows"
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        answer = original(*arguments, **options)
        if step != "written" or arguments[1]:
            die()
        return answer

    setattr(owner, name, call)


def main(root: str, kind: str, replaces: str, steps: str) -> None:
    """Rebuild once for each step, each in a separate process, and print the exit codes."""
    for step in steps.split(","):
        child = os.fork()  # before a library starts a thread
        if not child:
            interrupt(step)
            settings = Settings(table_root=Path(root) / "tables")
            rebuild.prepare_rebuild(declare(root, kind), settings, replaces=bool(replaces)).commit()
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    KIND = sys.argv[2]
    main(*sys.argv[1:])
