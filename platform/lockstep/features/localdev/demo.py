"""The demo (`make demo`).

python -m lockstep.features.localdev.demo REPOSITORY

All its files are in REPOSITORY/.demo. A second run continues at the end of the first.
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

import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lockstep.errors import LockstepError
from lockstep.features.localdev.local_platform import LocalPlatform, format_exports
from lockstep.features.localdev.processes import hold_folder_lock
from lockstep.features.localdev.producer import count_produced, produce
from lockstep.features.localdev.recordings import read_recorded_days, to_sent
from lockstep.features.localdev.seeded_bug import COPY, RULE, SOURCE, catch_bug, copy_with_bug, open_scratch
from lockstep.table import delta_log
from lockstep.table.commit import OutputLog
from lockstep.table.dataset import open_dataset
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_ledger

POLL_SECONDS = 0.001
PARQUET_END = b"PAR1"


def wait_for_uncommitted_file(table: Path, process: subprocess.Popen[bytes], *, after: int) -> str | None:
    """Wait for a finished data file that no entry of the log references yet.

    Args:
        table: The output table.
        process: The writer; None is returned when it ends first.
        after: Wait until this many batches are committed.

    Returns:
        The name of the file, at a moment at which it was not committed.
    """
    known: set[Path] | None = None
    while process.poll() is None:
        if known is None:
            if not delta_log.has_log(table) or OutputLog(table).base().head.batch < after:
                time.sleep(POLL_SECONDS * 20)
                continue
            known = set(table.glob("commit_hour=*/*.parquet"))
        version = find_newest_table_version(table)
        for path in set(table.glob("commit_hour=*/*.parquet")) - known:
            if _finished(path) and find_newest_table_version(table) == version:
                return path.name
        if find_newest_table_version(table) != version:
            known = set(table.glob("commit_hour=*/*.parquet"))
        time.sleep(POLL_SECONDS)
    return None


def find_newest_table_version(table: Path) -> int:
    """The newest version whose entry is in the log's folder."""
    return max(int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit())


def _finished(path: Path) -> bool:
    """Whether a Parquet file is complete."""
    try:
        with path.open("rb") as file:
            file.seek(-4, 2)
            return file.read(4) == PARQUET_END
    except OSError:
        return False


SAMPLE_ROWS = 5


def show_summary(
    say: Console, platform: LocalPlatform, folders: StreamFolders, *, seconds: float, nothing_new: bool
) -> None:
    """Print figures, addresses, and what to try next."""
    rows = read_ledger(folders.ledger)
    output = DeltaTable(folders.table)
    say.print()
    if nothing_new:
        say.print("Nothing new was there to read: everything was committed by an earlier run.")
    say.print(_figures(rows, output, seconds))
    say.print(_topics(rows))
    say.print(_sample(open_dataset(folders.table).to_table()))
    _next(say, platform, folders.table)


def _figures(rows: list[LedgerRow], output: DeltaTable, seconds: float) -> Table:
    table = Table(title="what happened", show_header=False)
    messages = sum(row.messages for row in rows)
    starts = {row.epoch: row.restart_cause for row in rows if row.restart_cause}
    for name, value in (
        ("batches", max(row.batch for row in rows)),
        ("messages", messages),
        ("rows", sum(row.rows for row in rows)),
        ("verdict accept", messages - sum(row.dropped + row.skipped for row in rows)),
        ("verdicts repeat, gap, drop", sum(row.repeats + row.gaps + row.dropped for row in rows)),
        ("holes in offsets", sum(hole.until - hole.start for row in rows for hole in row.holes)),
        ("data files after compaction", len(output.file_uris())),
        ("versions of the table", output.version()),
        *((f"writer {epoch}", cause) for epoch, cause in sorted(starts.items())),
        ("seconds", f"{seconds:.0f}"),
    ):
        table.add_row(name, str(value))
    return table


def _topics(rows: list[LedgerRow]) -> Table:
    table = Table("topic", "messages", "rows", "next offset", title="topics")
    for topic in sorted({row.topic for row in rows}):
        mine = [row for row in rows if row.topic == topic]
        figures = (sum(row.messages for row in mine), sum(row.rows for row in mine), max(row.until for row in mine))
        table.add_row(topic, *map(str, figures))
    return table


def _sample(rows: pa.Table) -> Table:
    names = [name for name in rows.column_names if not name.startswith("_") and name != "commit_hour"]
    names += ["_session", "_offset", "_row"]
    table = Table(*names, title=f"{SAMPLE_ROWS} of {rows.num_rows} rows")
    for row in rows.select(names).slice(max(0, rows.num_rows - SAMPLE_ROWS)).to_pylist():
        table.add_row(*(str(row[name]) for name in names))
    return table


def _next(say: Console, platform: LocalPlatform, table: Path) -> None:
    say.print(f"\nthe table: {table}", soft_wrap=True)
    say.print("read it:   any Delta reader, for example deltalake.DeltaTable(path).to_pandas()")
    say.print("try next, in a shell with the environment active (. .venv/bin/activate):")
    say.print(f"  {format_exports(platform.environment())}", soft_wrap=True)
    say.print("  make demo                      a second run: the next day of the recordings, carried on over midnight")
    say.print(
        "  lockstep status order_books    positions of the partitions (needs the demo's Kafka: it ended with the demo)"
    )
    say.print("  dagster dev -w workspace.yaml  the web UI of everything that ran here")
    say.print("  make clean                     remove it all")


STREAM = "order_books"
RECORDINGS = Path("tests/recordings/binance_l2")
AT_FIRST = ("cm_btcusd_perp", "spot_btcusdt")
LATER = "spot_ethusdt"
"""The topic that appears while the stream is not running; the daemon's sensor must see it."""
KILL_AFTER_BATCHES = 5
PROGRESS_SECONDS = 2.0
NOW = {"ops": {f"{STREAM}__table": {"config": {"available_now": True}}}}

SAY = Console(highlight=False, soft_wrap=True)


def main() -> None:
    """Run the demo; Ctrl-C at any moment leaves no process behind."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    repository = Path(sys.argv[1]).absolute()
    folder = repository / ".demo"
    try:
        with hold_folder_lock(folder):
            play(repository, folder)
    except KeyboardInterrupt:
        SAY.print("\nstopped; `make demo` continues from here, `make clean` removes everything")
        sys.exit(130)
    except LockstepError as error:
        SAY.print(f"[red]error:[/red] {error.problem}\nnext: {error.next_step}")
        sys.exit(1)


def play(repository: Path, folder: Path) -> None:
    """The steps, in order.

    1. Kafka, and recorded books produced to it.
    2. The stream, materialized by Dagster's own command; its driver is killed once and restarted.
    3. A new topic; the daemon's sensor launches the stream again.
    4. The open hour is closed; compaction and checks run.
    5. A scratch copy of the stream with a bug in its fold; a declared rule catches it.
    6. Summary.
    """
    began = time.monotonic()
    SAY.print("[bold]>[/bold] starting Kafka")
    with _platform(repository, folder) as platform:
        folders = StreamFolders(STREAM, platform.tables)
        day = 1 if delta_log.has_log(folders.table) else 0
        # The sensor sees new topics, not new messages: a topic it has seen once is fed with the others.
        known = (*AT_FIRST, LATER) if _committed(folders, LATER) else AT_FIRST
        new = sum(_produce(platform, book, days=day + 1) for book in known)  # 1
        if any(_behind(platform, folders, book) for book in known):
            _materialize_with_a_kill(platform, folders)  # 2
        new += _produce(platform, LATER, days=day + 1)
        _let_the_sensor_see_it(platform, folders)  # 3
        _close_compact_check(platform)  # 4
        _catch_a_seeded_bug(platform)  # 5
        show_summary(SAY, platform, folders, seconds=time.monotonic() - began, nothing_new=not new)  # 6


@contextmanager
def _platform(repository: Path, folder: Path) -> Iterator[LocalPlatform]:
    """Kafka, and nothing left of the platform afterwards."""
    platform = LocalPlatform(repository, folder)
    try:
        broker = platform.start_kafka()
        SAY.print(f"  Kafka listens on {broker.bootstrap_servers} (written to {folder / 'kafka.address'})")
        yield platform
    finally:
        platform.stop()


def _produce(platform: LocalPlatform, book: str, *, days: int) -> int:
    """Produce messages that the topic lacks; returns the number of new messages."""
    topic = f"{STREAM}.{book}"
    messages = to_sent(read_recorded_days(platform.repository / RECORDINGS, book)[:days]).messages
    there = count_produced(platform.servers().kafka, topic)
    missing = messages[there:]
    if missing:
        SAY.print(f"[bold]>[/bold] producing {len(missing)} recorded messages to {topic}")
        produce(platform.servers().kafka, topic, missing)
    return len(missing)


def _materialize_with_a_kill(platform: LocalPlatform, folders: StreamFolders) -> None:
    command = ["dagster", "asset", "materialize", "--select", f"{STREAM}/table", "-m", "definitions"]
    command += ["--config-json", json.dumps(NOW)]
    SAY.print(f"[bold]>[/bold] {' '.join(command[:7])}   (trigger: AvailableNow)")
    before = read_batches(folders)
    with platform.running("materialize-killed", command) as process, read_progress(folders):
        orphan = wait_for_uncommitted_file(folders.table, process, after=before + KILL_AFTER_BATCHES)
        if orphan is not None:
            process.kill()
            process.wait()
    if orphan is None:
        SAY.print("  it ended before there was a moment to kill it")
        if process.returncode != 0:
            raise platform.failed("materialize-killed", "the stream failed")
        return
    SAY.print(
        f"  [red]kill -9[/red] of the driver in batch {read_batches(folders) + 1}: {orphan} is written, not committed"
    )
    _recover(platform, folders, command)


def _recover(platform: LocalPlatform, folders: StreamFolders, command: list[str]) -> None:
    at_kill = read_batches(folders)
    began = time.monotonic()
    with platform.running("materialize-again", command) as process:
        _wait(platform, lambda: read_batches(folders) > at_kill, "no batch is committed")
        SAY.print(f"  the next start continued with batch {at_kill + 1} after {time.monotonic() - began:.1f} s")
        with read_progress(folders):
            code = process.wait()
        if code != 0:
            raise platform.failed("materialize-again", "the stream failed")
    SAY.print(f"  {read_batches(folders)} batches are committed")


def _let_the_sensor_see_it(platform: LocalPlatform, folders: StreamFolders) -> None:
    if not _behind(platform, folders, LATER):
        return
    SAY.print("[bold]>[/bold] dagster-daemon run   (its topics sensor polls for new topics)")
    began = time.monotonic()
    with platform.running("daemon", ["dagster-daemon", "run", "-w", "workspace.yaml"]):
        _wait(platform, lambda: not _behind(platform, folders, LATER), "the sensor launched no run")
        SAY.print(
            f"  the sensor launched the stream; {STREAM}.{LATER} is committed after {time.monotonic() - began:.1f} s"
        )
        _wait(platform, lambda: _idle(folders), "the run has not ended")


def _close_compact_check(platform: LocalPlatform) -> None:
    SAY.print(f"[bold]>[/bold] lockstep close {STREAM}; compaction; checks")
    platform.run("close", ["lockstep", "close", STREAM])
    for name in ("compaction", "checks"):
        SAY.print(f"  dagster job execute -j {STREAM}_{name}")
        with read_progress(StreamFolders(STREAM, platform.tables)):
            platform.run(name, ["dagster", "job", "execute", "-j", f"{STREAM}_{name}", "-m", "definitions"])


def _catch_a_seeded_bug(platform: LocalPlatform) -> None:
    """A bug in a copy of the fold, over one of the demo's topics; the demo fails if no rule catches it."""
    scratch = open_scratch(platform.folder / "scratch", platform.servers().kafka)
    bug = copy_with_bug(platform.repository, scratch, f"{STREAM}.{LATER}")
    SAY.print(f"[bold]>[/bold] a bug in a scratch copy of the stream, {scratch.folder / SOURCE}, line {bug.line}:")
    SAY.print(f"  [red]- {escape(bug.before.strip())}[/red]\n  [green]+ {escape(bug.after.strip())}[/green]")
    SAY.print(f"  dagster asset materialize --select {COPY}/table -m definitions   (reads {STREAM}.{LATER}; checks)")
    with read_progress(StreamFolders(COPY, scratch.tables)):
        caught = catch_bug(scratch)
    found = caught.result
    SAY.print(f"  [red]caught[/red] by rule {RULE}: {escape(found.sentence)}")
    SAY.print(f"  observed: {found.observed} of {found.rows} rows violate it; threshold: {found.threshold}")
    for row in found.sample[:1]:
        SAY.print(f"  for example: {escape(', '.join(f'{name} {value}' for name, value in row.items()))}")
    SAY.print(f"  Dagster shows it as failed, {caught.severity}: run {caught.run_id}")
    SAY.print(f"    cd {scratch.folder} && {format_exports(scratch.environment())} && dagster dev -m definitions")
    SAY.print(f"  the report: {caught.report}")


def read_batches(folders: StreamFolders) -> int:
    """Number of the last committed batch; 0 without a table."""
    return OutputLog(folders.table).base().head.batch if delta_log.has_log(folders.table) else 0


def _behind(platform: LocalPlatform, folders: StreamFolders, book: str) -> bool:
    """Whether the topic of a book holds messages that the table does not."""
    return _committed(folders, book) < count_produced(platform.servers().kafka, f"{STREAM}.{book}")


def _committed(folders: StreamFolders, book: str) -> int:
    """Messages of a book that are committed."""
    rows = read_ledger(folders.ledger) if delta_log.has_log(folders.table) else []
    return max((row.until for row in rows if row.topic == f"{STREAM}.{book}"), default=0)


def _idle(folders: StreamFolders) -> bool:
    """Whether the writer that holds the table has ended."""
    from lockstep.control.heartbeat import Phase, read_heartbeat

    last = read_heartbeat(folders.control, OutputLog(folders.table).base().head.epoch)
    return last is None or last.phase is Phase.ENDED


def _wait(platform: LocalPlatform, ready: Callable[[], bool], not_yet: str) -> None:
    with read_progress(StreamFolders(STREAM, platform.tables)):
        platform.wait(ready, not_yet.__str__)


@contextmanager
def read_progress(folders: StreamFolders) -> Iterator[None]:
    """Show the number of committed batches while waiting."""
    over = threading.Event()
    status = SAY.status("working ...")

    def show() -> None:
        shown = 0
        while not over.wait(PROGRESS_SECONDS):
            now = read_batches(folders)
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
