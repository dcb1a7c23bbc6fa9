"""A delivery that kills its process or waits at a step: python -m tests.features.delivery.killed_delivery ..."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.features.delivery import deliver
from lockstep.features.delivery.kafka_target import KafkaConnection
from lockstep.settings import KafkaSettings, Settings
from tests.features.delivery.delivering import declare
from tests.support.adding_stream import adding
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

STEPS = ("fenced", "begun", "produced", "sent", "committed", "position")
"""Steps at which it dies.

After earlier runs are fenced, in a transaction without rows, with rows, with rows that the broker has, after the
commit, and before its position for status is written.
"""
TRANSACTION_ROWS = 3


def die() -> None:
    """Kill this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def interrupt(step: str, act: Callable[[], None], writes: int) -> None:
    """Call a function at a step of the write with this number; the first write is the claim."""
    count = [0]

    def after(owner: Any, name: str, *, flushes: bool = False) -> None:
        original = getattr(owner, name)

        def call(self: Any, *arguments: Any, **options: Any) -> Any:
            answer = original(self, *arguments, **options)
            count[0] += 1
            if count[0] == writes:
                if flushes:
                    self._producer.flush(30)
                act()
            return answer

        setattr(owner, name, call)

    if step == "begun":
        begin_at(act, writes)
    elif step == "position":
        vars(deliver)["write_position"] = lambda *_: act()
    else:
        name = {"fenced": "_fence_earlier", "committed": "_commit"}.get(step, "_produce")
        after(KafkaConnection, name, flushes=step == "sent")
        if step == "fenced":
            count[0] = writes - 1


def begin_at(act: Callable[[], None], writes: int) -> None:
    """Call a function before the rows of a write are produced."""
    original = KafkaConnection._produce  # noqa: SLF001  # in a separate process
    count = [0]

    def call(self: KafkaConnection, *arguments: Any) -> None:
        count[0] += 1
        if count[0] == writes:
            act()
        original(self, *arguments)

    setattr(KafkaConnection, "_produce", call)  # noqa: B010  # another signature


def wait_at(gate: Path) -> None:
    """Report that the step is reached and wait for the file go."""
    (gate / "reached").touch()
    wait_until((gate / "go").exists, "the go")


def main(servers: str, root: str, pattern: str, topic: str, step: str, writes: str, gate: str = "") -> None:
    """Run the delivery."""
    settings = Settings(kafka=KafkaSettings(bootstrap_servers=servers), table_root=Path(root))
    interrupt(step, (lambda: wait_at(Path(gate))) if gate else die, int(writes))
    declared = declare(adding(pattern), topic, transaction_rows=TRANSACTION_ROWS)
    done = deliver.run_delivery(declared, settings, stop=threading.Event())
    sys.stdout.write(f"{done.rows}\n")


def run_all(servers: str, root: str, pattern: str, topic: str, steps: str) -> None:
    """Run a delivery to each of the steps STEP:WRITES,..., each in a separate process, and print the exit codes."""
    for each in steps.split(","):
        step, _, writes = each.partition(":")
        child = os.fork()  # before a library starts a thread
        if not child:
            sys.stdout = sys.stderr  # the output has only the exit codes
            main(servers, root, pattern, topic, step, writes)
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()  # otherwise the next child inherits unwritten output


if __name__ == "__main__":
    has_one_step = ":" not in sys.argv[5]
    (main if has_one_step else run_all)(*sys.argv[1:])
