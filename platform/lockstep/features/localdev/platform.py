"""The local platform: Kafka, Dagster, feed and streams (`make up`, `make down`).

    python -m lockstep.features.localdev.platform up REPOSITORY --speed 30
    python -m lockstep.features.localdev.platform down REPOSITORY
    python -m lockstep.features.localdev.platform keep REPOSITORY

`up` starts `keep`, which starts servers that have died again. All files are in REPOSITORY/.live; `down` keeps them, and
the next `up` continues. The demo runs on the same `LocalPlatform`, whose processes end with it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lockstep.control.heartbeat import read_heartbeat
from lockstep.control.start_request import record_start_request
from lockstep.declare.discovery import find_streams
from lockstep.errors import LockstepError
from lockstep.features.localdev.feed import SPEED
from lockstep.features.localdev.keeper import keep_servers
from lockstep.features.localdev.local_platform import KEEPER, MOVES_TOPIC, SAY, LocalPlatform, format_exports, show_step
from lockstep.features.localdev.local_servers import ALERTS_FILE, start_servers
from lockstep.features.localdev.processes import (
    hold_folder_lock,
    ignore_interrupts,
    list_platform_processes,
    observe_end_signals,
)
from lockstep.features.localdev.stream_starts import StreamState, await_streams
from lockstep.table.head import Desired, Head
from lockstep.table.layout import StreamFolders

SMALL_STREAMS = {"LOCKSTEP_SPARK__DRIVER_MEMORY": "512m", "LOCKSTEP_SPARK__MASTER": "local[1,3]"}
"""Of each stream: its JVM only schedules, and a demonstration needs only one core of each stream."""
HOSTED_STREAMS = {"LOCKSTEP_SPARK__DRIVER_MEMORY": "512m", "LOCKSTEP_DAGSTER__HOSTS": '["default"]'}
"""Of a host of all streams, whose JVM schedules for all of them."""


def start_live(platform: LocalPlatform, speed: float) -> Iterator[str]:
    """Start the missing processes of a live platform, and report each step; see `start_platform`."""
    yield from start_servers(platform, speed)
    yield from start_streams(platform)


def start_streams(platform: LocalPlatform) -> Iterator[str]:
    """Request the start of each stream that is not stopped, held or halted, and wait until all of these write.

    The supervisors start them, a few at a time, and continue if this process ends.

    Raises:
        LockstepError: Some are slow. Nothing is ended.
    """
    wanted: list[str] = []
    for stream in find_streams(platform.repository).values():
        head = platform.head(stream.name)
        if (stays := _stays_down(head)) is not None:
            yield stays
            continue
        if head is None or head.desired is not Desired.RUNNING:
            version = 0 if head is None else head.desired_version
            record_start_request(StreamFolders(stream.name, platform.tables), "started by make up", version)
        wanted.append(stream.name)
    if wanted:
        yield f"waiting until {', '.join(wanted)} write: {platform.servers().console}/runs"
    yield from await_streams(wanted, partial(_look, platform), partial(_check_servers, platform))


def _look(platform: LocalPlatform, stream: str) -> StreamState:
    from lockstep.orchestration.launch import find_last_failure  # loads Dagster

    head = platform.head(stream)
    epoch = head.epoch if head is not None else 0
    pulse = read_heartbeat(StreamFolders(stream, platform.tables).control, epoch)
    return StreamState(epoch, pulse, find_last_failure(platform.dagster_home, stream))


def _check_servers(platform: LocalPlatform) -> None:
    for name in platform.servers().dead():
        raise platform.failed(name, f"{name} ended")


def _stays_down(head: Head | None) -> str | None:
    """Reason why a stream is not started, with the command that starts it; None when it is to be started."""
    if head is None or head.epoch == 0 or head.desired in {Desired.RUNNING, Desired.BOUNDED}:
        return None
    step = "resume" if head.desired is Desired.HALTED else "start"
    return f"{head.stream} stays {head.desired.value} ({head.reason}): lockstep {step} {head.stream}"


FOLDER = ".live"
INTERRUPTED = 130
"""Exit code of a command that a signal ended, as shells report it."""


def main() -> None:
    """Run `start_platform` or `stop_platform`."""
    parser = argparse.ArgumentParser(prog="live", description="A live platform for demonstration.")
    parser.add_argument("what", choices=["up", "down", "keep"])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--speed", type=float, default=SPEED, help=f"messages a second (default {SPEED:g})")
    wanted = parser.parse_args()
    repository = wanted.repository.absolute()
    try:
        if wanted.what == "keep":
            keep_servers(open_live_platform(repository), observe_end_signals())
            return
        with hold_folder_lock(repository / FOLDER):
            start_platform(repository, wanted.speed) if wanted.what == "up" else stop_platform(repository)
    except LockstepError as error:
        SAY.print(f"[red]error:[/red] {error.problem}\nnext: {error.next_step}")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def open_live_platform(repository: Path) -> LocalPlatform:
    """The platform of `make up`."""
    return LocalPlatform(repository, repository / FOLDER, detached=True, settings=SMALL_STREAMS)


def start_platform(repository: Path, speed: float) -> None:
    """Start all missing parts, and wait until they work. What runs is left as it is, also by an error.

    1. Suspend the keeper, which would start a missing part as well.
    2. Start the missing ones of Kafka, the feed and Dagster, then the keeper.
    3. Let the supervisors start streams; those that are stopped, held or halted stay so.

    An interrupt of a first start ends the processes that it has started.
    """
    if not speed > 0:
        raise LockstepError(f"SPEED={speed:g} is not a number of messages a second", next_step="make up SPEED=30")
    platform = open_live_platform(repository)
    is_new = not list_platform_processes(platform.folder)
    was_whole = _is_whole(platform)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        _complete(platform, speed, was_whole=was_whole)
    except LockstepError:
        left = ", ".join(name for name in platform.servers().started if platform.is_running(name))
        SAY.print(f"left running: {left or 'nothing'}; make up completes it, make down ends it")
        raise
    except BaseException:
        if is_new:
            SAY.print("ending the started processes")
            with ignore_interrupts():
                platform.stop()
        raise
    SAY.print("it is up already" if was_whole else f"up after {time.monotonic() - began:.0f} s")
    _show(platform)


def _complete(platform: LocalPlatform, speed: float, *, was_whole: bool) -> None:
    """The steps of `start_platform`."""
    if not was_whole:
        platform.end(KEEPER)  # 1
        for step in start_servers(platform, speed):  # 2
            show_step(step)
        platform.start(
            KEEPER, ["python", "-m", "lockstep.features.localdev.platform", "keep", str(platform.repository)]
        )
    for step in start_streams(platform):  # 3
        show_step(step)


def stop_platform(repository: Path) -> None:
    """End everything; the folder stays."""
    platform = open_live_platform(repository)
    began = time.monotonic()
    count = len(list_platform_processes(platform.folder))
    if not count:
        SAY.print("nothing runs")
        return
    SAY.print(f"[bold]>[/bold] ending {count} processes; streams end at the next batch boundary")
    platform.stop()
    SAY.print(f"down after {time.monotonic() - began:.0f} s; `make up` continues from here, `make clean` removes it")


def _is_whole(platform: LocalPlatform) -> bool:
    """Whether each server of an earlier start lives, the keeper too, which is started last."""
    servers = platform.servers()
    has_all = KEEPER in servers.started and servers.commands.keys() <= servers.started.keys()
    return has_all and not servers.dead() and bool(list_platform_processes(platform.folder))


def _show(platform: LocalPlatform) -> None:
    servers = platform.servers()
    SAY.print(f"\n  live page  {servers.page}   (state, lag, alarms and history of all streams)")
    SAY.print(f"  Dagster    {servers.console}   (assets, runs, plots; it has no login: loopback only)")
    SAY.print(f"  Kafka      {servers.kafka}")
    SAY.print(f"  metrics    {servers.metrics}   (for Prometheus; the dashboard is deploy/grafana/lockstep.json)")
    if servers.outputs:
        SAY.print("  database   $MARKET_DATABASE below   (table market_books: the newest levels)")
        SAY.print(f"  topic      {MOVES_TOPIC}   (large moves of price levels)")
        SAY.print(f"  alerts     {platform.folder / ALERTS_FILE}   (the largest moves)")
    SAY.print(f"  tables     {platform.tables}")
    SAY.print(f"  logs       {platform.folder / 'logs'}")
    SAY.print("\ntry next, in a shell with the environment active (. .venv/bin/activate):")
    SAY.print(f"  {format_exports(platform.environment())}")
    SAY.print("  lockstep status order_books   its alarms, and where each partition stands")
    SAY.print("  lockstep verify order_books   its proof: table, current table, database and topic")
    SAY.print('  lockstep query "SELECT side, count(*) FROM order_books_current GROUP BY side"')
    SAY.print("  make down                     end it all; make clean removes it")


if __name__ == "__main__":
    main()
