"""The demo: recorded order books through real Kafka, Dagster, Spark and Delta, with a kill -9 on the way.

    python -m lockstep.rehearsal.demo REPOSITORY

Everything it makes lies in REPOSITORY/.demo. A second run goes on where the first one ended.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from lockstep.errors import LockstepError
from lockstep.rehearsal.moment import written_not_committed
from lockstep.rehearsal.producer import produce, produced
from lockstep.rehearsal.recordings import as_sent, recorded_days
from lockstep.rehearsal.stage import Stage, end, ended_with, set_stage
from lockstep.rehearsal.summary import show_summary
from lockstep.table import log
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_ledger

STREAM = "order_books"
RECORDINGS = Path("tests/recordings/binance_l2")
AT_FIRST = ("cm_btcusd_perp", "spot_btcusdt")
LATER = "spot_ethusdt"
"""The topic that appears while the stream is not running; the daemon's sensor must see it."""
KILL_AFTER_BATCHES, PATIENCE_SECONDS, PROGRESS_SECONDS = 5, 300.0, 2.0
NOW = {"ops": {f"{STREAM}__table": {"config": {"available_now": True}}}}

SAY = Console(highlight=False, soft_wrap=True)


def main() -> None:
    """Play the demo; Ctrl-C at any moment leaves no process behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    repository = Path(sys.argv[1]).absolute()
    try:
        play(repository, repository / ".demo")
    except KeyboardInterrupt:
        SAY.print("\nstopped; `make demo` goes on from here, `make clean` removes everything")
        sys.exit(130)
    except LockstepError as error:
        SAY.print(f"[red]error:[/red] {error.problem}\nnext: {error.next_step}")
        sys.exit(1)


def play(repository: Path, folder: Path) -> None:
    """The scenes, in order.

    1. Kafka, and recorded books produced to it.
    2. The stream, materialized by Dagster's own command; its driver is killed once and comes back.
    3. A new topic; the daemon's sensor launches the stream again.
    4. The open hour is closed; compaction and checks run.
    5. What happened.
    """
    began = time.monotonic()
    SAY.print("[bold]>[/bold] starting Kafka")
    with _staged(repository, folder) as stage:
        folders = StreamFolders(STREAM, stage.tables)
        day = 1 if log.exists(folders.table) else 0
        # The sensor sees new topics, not new messages: a topic it has seen once is fed with the others.
        known = (*AT_FIRST, LATER) if _committed(folders, LATER) else AT_FIRST
        new = sum(_produce(stage, book, days=day + 1) for book in known)  # 1
        if any(_behind(stage, folders, book) for book in known):
            _materialize_with_a_kill(stage, folders)  # 2
        new += _produce(stage, LATER, days=day + 1)
        _let_the_sensor_see_it(stage, folders)  # 3
        _close_compact_check(stage)  # 4
        show_summary(SAY, stage, folders, seconds=time.monotonic() - began, nothing_new=not new)  # 5


@contextmanager
def _staged(repository: Path, folder: Path) -> Iterator[Stage]:
    with set_stage(repository, folder) as stage:
        SAY.print(f"  Kafka listens on {stage.broker.bootstrap_servers} (written to {folder / 'kafka.address'})")
        yield stage


def _produce(stage: Stage, book: str, *, days: int) -> int:
    """Produce what the topic does not hold yet; the number of new messages."""
    topic = f"{STREAM}.{book}"
    messages = as_sent(recorded_days(stage.repository / RECORDINGS, book)[:days]).messages
    there = produced(stage.broker.bootstrap_servers, topic)
    missing = messages[there:]
    if missing:
        SAY.print(f"[bold]>[/bold] producing {len(missing)} recorded messages to {topic}")
        produce(stage.broker.bootstrap_servers, topic, missing)
    return len(missing)


def _materialize_with_a_kill(stage: Stage, folders: StreamFolders) -> None:
    command = ["dagster", "asset", "materialize", "--select", f"{STREAM}/table", "-m", "definitions"]
    command += ["--config-json", json.dumps(NOW)]
    SAY.print(f"[bold]>[/bold] {' '.join(command[:7])}   (trigger: AvailableNow)")
    before = batches(folders)
    process = stage.start(command, "materialize-killed")
    with ended_with(process), progress(folders):
        orphan = written_not_committed(folders.table, process, after=before + KILL_AFTER_BATCHES)
        if orphan is not None:
            process.kill()
            process.wait()
    if orphan is None:
        SAY.print("  it ended before there was a moment to kill it")
        if process.returncode != 0:
            raise stage.failed("materialize-killed", "the stream failed")
        return
    SAY.print(f"  [red]kill -9[/red] of the driver in batch {batches(folders) + 1}: {orphan} is written, not committed")
    _recover(stage, folders, command)


def _recover(stage: Stage, folders: StreamFolders, command: list[str]) -> None:
    at_kill, began = batches(folders), time.monotonic()
    process = stage.start(command, "materialize-again")
    with ended_with(process):
        _wait(lambda: batches(folders) > at_kill, process, stage, "materialize-again")
        SAY.print(f"  the next start went on with batch {at_kill + 1} after {time.monotonic() - began:.1f} s")
        with progress(folders):
            code = process.wait()
        if code != 0:
            raise stage.failed("materialize-again", "the stream failed")
    SAY.print(f"  {batches(folders)} batches are committed")


def _let_the_sensor_see_it(stage: Stage, folders: StreamFolders) -> None:
    if not _behind(stage, folders, LATER):
        return
    SAY.print("[bold]>[/bold] dagster-daemon run   (its topics sensor looks for new topics)")
    daemon = stage.start(["dagster-daemon", "run", "-w", "workspace.yaml"], "daemon")
    began = time.monotonic()
    with ended_with(daemon):
        _wait(lambda: not _behind(stage, folders, LATER), daemon, stage, "daemon")
        SAY.print(
            f"  the sensor launched the stream; {STREAM}.{LATER} is committed after {time.monotonic() - began:.1f} s"
        )
        _wait(lambda: _idle(folders), daemon, stage, "daemon")
    end(daemon)


def _close_compact_check(stage: Stage) -> None:
    SAY.print(f"[bold]>[/bold] lockstep close {STREAM}; compaction; checks")
    stage.run(["lockstep", "close", STREAM], "close")
    for name in ("compaction", "checks"):
        SAY.print(f"  dagster job execute -j {STREAM}_{name}")
        with progress(StreamFolders(STREAM, stage.tables)):
            stage.run(["dagster", "job", "execute", "-j", f"{STREAM}_{name}", "-m", "definitions"], name)


def batches(folders: StreamFolders) -> int:
    """Number of the last committed batch; 0 without a table."""
    return OutputLog(folders.table).base().head.batch if log.exists(folders.table) else 0


def _behind(stage: Stage, folders: StreamFolders, book: str) -> bool:
    """Whether the topic of a book holds messages that the table does not."""
    return _committed(folders, book) < produced(stage.broker.bootstrap_servers, f"{STREAM}.{book}")


def _committed(folders: StreamFolders, book: str) -> int:
    """Messages of a book that are committed."""
    rows = read_ledger(folders.ledger) if log.exists(folders.table) else []
    return max((row.until for row in rows if row.topic == f"{STREAM}.{book}"), default=0)


def _idle(folders: StreamFolders) -> bool:
    """Whether the writer that holds the table has ended."""
    from lockstep.engine.liveness import Phase, pulse

    last = pulse(folders.control, OutputLog(folders.table).base().head.epoch)
    return last is None or last.phase is Phase.ENDED


def _wait(condition: Callable[[], bool], process: subprocess.Popen[bytes], stage: Stage, name: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    with progress(StreamFolders(STREAM, stage.tables)):
        while not condition():
            if process.poll() not in {None, 0}:
                raise stage.failed(name, f"{name} ended with {process.returncode}")
            if time.monotonic() > deadline:
                raise stage.failed(name, f"{name}: nothing happened for {PATIENCE_SECONDS:.0f} s")
            time.sleep(1.0)


@contextmanager
def progress(folders: StreamFolders) -> Iterator[None]:
    """Show how many batches are committed, while something is waited for."""
    over, status = threading.Event(), SAY.status("working ...")

    def show() -> None:
        shown = 0
        while not over.wait(PROGRESS_SECONDS):
            now = batches(folders)
            status.update(f"{now} batches committed")
            if now != shown and not SAY.is_terminal:
                SAY.print(f"  ... {now} batches committed")
            shown = now

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        with status:
            yield
    finally:
        over.set()
        thread.join()


if __name__ == "__main__":
    main()
