"""`make up` and `make down`: Kafka, Dagster, a live feed and the streams, running until they are ended.

    python -m lockstep.rehearsal.live up REPOSITORY --speed 30
    python -m lockstep.rehearsal.live down REPOSITORY
    python -m lockstep.rehearsal.live kafka REPOSITORY

Everything lies in REPOSITORY/.live; `down` keeps it, and the next `up` goes on from there. `make kafka` is Kafka alone,
in REPOSITORY/.kafka, until Ctrl-C.
"""

from __future__ import annotations

import argparse
import fcntl
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console as Screen

from lockstep.errors import LockstepError
from lockstep.rehearsal.family import end_family, family
from lockstep.rehearsal.feed import SPEED
from lockstep.rehearsal.servers import LOOK_SECONDS, Platform, Servers, UsualBroker
from lockstep.rehearsal.stage import exports

FOLDER = ".live"
SAY = Screen(highlight=False, soft_wrap=True)


def main() -> None:
    """Run `up` or `down`."""
    parser = argparse.ArgumentParser(prog="live", description="A live platform to look at.")
    parser.add_argument("what", choices=["up", "down", "kafka"])
    parser.add_argument("repository", type=Path)
    parser.add_argument("--speed", type=float, default=SPEED, help=f"messages a second (default {SPEED:g})")
    wanted = parser.parse_args()
    repository = wanted.repository.absolute()
    try:
        if wanted.what == "kafka":
            kafka(repository / ".kafka")
            return
        with _alone(repository / FOLDER):
            up(repository, wanted.speed) if wanted.what == "up" else down(repository)
    except LockstepError as error:
        SAY.print(f"[red]error:[/red] {error.problem}\nnext: {error.next_step}")
        sys.exit(1)


def up(repository: Path, speed: float) -> None:
    """Start everything that is not there, and wait until it works.

    1. Whole and running: say where, and leave it as it is. Partly there: refuse.
    2. Kafka, the feed, Dagster; whatever keeps them from working ends all of it again.
    3. Streams that have not run yet are launched as runs of Dagster; those that are to be running come back by their
       supervisors, which close the dead runs of before; what was stopped, held or halted stays so.
    """
    if not speed > 0:
        raise LockstepError(f"SPEED={speed:g} is no number of messages a second", next_step="make up SPEED=30")
    platform = Platform(repository, repository / FOLDER)
    if _is_up(platform):  # 1
        SAY.print("it is up already")
        _show(platform)
        return
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(143))
    began = time.monotonic()
    try:
        for step in platform.start(speed):  # 2, 3
            SAY.print(f"[bold]>[/bold] {step}")
    except BaseException:
        SAY.print("ending what was started")
        _end(platform)
        raise
    SAY.print(f"up after {time.monotonic() - began:.0f} s")
    _show(platform)


def down(repository: Path) -> None:
    """End everything; the folder stays."""
    platform = Platform(repository, repository / FOLDER)
    began, count = time.monotonic(), len(family(platform.folder))
    if not count:
        SAY.print("nothing runs")
        return
    SAY.print(f"[bold]>[/bold] ending {count} processes; streams end at the next batch boundary")
    _end(platform)
    SAY.print(f"down after {time.monotonic() - began:.0f} s; `make up` goes on from here, `make clean` removes it")


def kafka(folder: Path) -> None:
    """Only the bundled Kafka, until a signal; its topics stay in the folder for the next time."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    with UsualBroker.start(folder) as broker:
        SAY.print(f"Kafka answers at {broker.bootstrap_servers}; Ctrl-C ends it, its topics stay in {folder}")
        SAY.print(f"  {exports({'LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS': broker.bootstrap_servers})}")
        while not over.wait(LOOK_SECONDS):
            if broker.pid is None:
                raise LockstepError("Kafka has ended by itself", next_step=f"read {broker.log}")


def _end(platform: Platform) -> None:
    servers = platform.servers()
    needed = servers.pids("code", "web") if servers else ()
    end_family(platform.folder, needed, servers.pids("kafka") if servers else ())
    left = family(platform.folder)
    if left:
        raise LockstepError(f"processes {sorted(left)} do not end", next_step="look at them with ps; then make down")
    platform.forget()


def _is_up(platform: Platform) -> bool:
    """Whether it is up.

    Raises:
        LockstepError: Parts of it are.
    """
    alive = family(platform.folder)
    if not alive:
        return False
    servers = platform.servers()
    dead = servers.dead() if servers else ("its records",)
    if dead:
        raise LockstepError(f"it is up in part: {', '.join(dead)} ended", next_step="make down, then make up")
    return True


def _show(platform: Platform) -> None:
    servers = platform.servers() or Servers()
    SAY.print(f"\n  Dagster    {servers.console}   (assets, runs, plots; it has no login: loopback only)")
    SAY.print(f"  Kafka      {servers.kafka}")
    SAY.print(f"  tables     {platform.tables}")
    SAY.print(f"  logs       {platform.folder / 'logs'}")
    SAY.print("\ntry next, in a shell with the environment active (. .venv/bin/activate):")
    SAY.print(f"  {exports(platform.environment())}")
    SAY.print("  lockstep status order_books   where each partition stands")
    SAY.print("  make down                     end it all; make clean removes it")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold off a second `up` or `down`, which would meet half of what this one does."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockstepError("another `make up` or `make down` works here", next_step="wait for its end") from None
        yield


if __name__ == "__main__":
    main()
