"""Starts servers of a live platform again when they die."""

from __future__ import annotations

import math
import subprocess
import threading
import time

from lockstep.errors import LockstepError
from lockstep.features.localdev.local_platform import KAFKA, SAY, LocalPlatform

KEEP_SECONDS = 2.0
KEEP_SECONDS_MAX = 60.0
"""Pause before a server is started again, and its bound: it doubles with each start after which the server did not live
for the bound, as with a module that cannot be imported."""


def keep_servers(platform: LocalPlatform, over: threading.Event) -> list[subprocess.Popen[bytes]]:
    """Start servers again that have died, each with its own command, until the end; Kafka at its address.

    Args:
        platform: The platform.
        over: Set to end it.

    Returns:
        Those that it started, and that live on.
    """
    at = dict[str, float]()
    pauses = dict[str, float]()
    processes = list[subprocess.Popen[bytes]]()
    while not over.wait(KEEP_SECONDS):
        processes = [process for process in processes if process.poll() is None]  # reaps the others
        servers = platform.servers()
        now = time.monotonic()
        for name in servers.dead():
            age = now - at.get(name, -math.inf)
            pause = pauses.get(name, 0.0)
            if name not in {KAFKA, *servers.commands} or age < pause:
                continue
            at[name] = now
            pauses[name] = min(2 * pause, KEEP_SECONDS_MAX) if age < KEEP_SECONDS_MAX else KEEP_SECONDS
            SAY.print(f"{name} had ended and is started again")
            try:
                if name == KAFKA:
                    platform.restart_kafka()
                else:
                    processes.append(platform.start(name, servers.commands[name]))
            except LockstepError as error:
                SAY.print(error.problem)
    return [process for process in processes if process.poll() is None]
