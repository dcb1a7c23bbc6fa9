"""Deliveries to a webhook that kill their process at a step: ROOT STEP:NUMBER,..."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from lockstep.features.delivery import deliver, webhook_target
from lockstep.features.delivery.claim_files import ClaimFiles
from tests.features.delivery.killed_delivery import die
from tests.features.delivery.receiver import declare
from tests.features.delivery.receiver import deliver as run
from tests.support.kept_stream import keeping
from tests.support.offline_stream import Offline

STEPS = ("claimed", "accepted", "written", "position")
"""Steps at which it dies.

After its claim, after the receiver has accepted rows, after the token is written, and before its position for status is
written.
"""


def interrupt(step: str, number: int) -> None:
    """Die after the call of a step with this number, or before the first write of the position."""
    if step == "position":
        vars(deliver)["write_position"] = lambda *_: die()
        return
    owner: Any = {"claimed": ClaimFiles, "written": ClaimFiles, "accepted": webhook_target}[step]
    name = {"claimed": "_read_newest", "written": "write", "accepted": "send_json"}[step]
    original = getattr(owner, name)
    count = [0]

    def call(*arguments: Any) -> Any:
        answer = original(*arguments)
        count[0] += 1
        if count[0] == number:
            die()
        return answer

    setattr(owner, name, call)


def main(root: str, steps: str) -> None:
    """Run a delivery to each step, each in a separate process, and print the exit codes."""
    for each in steps.split(","):
        step, _, number = each.partition(":")
        child = os.fork()  # before a library starts a thread
        if not child:
            interrupt(step, int(number))
            offline = Offline(keeping(), Path(root))
            run(offline, declare(offline, request_rows=1))
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
