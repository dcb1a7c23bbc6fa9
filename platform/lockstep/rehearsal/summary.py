"""What happened in a demo, as figures: read from the tables alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from lockstep.rehearsal.stage import Stage, exports
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import LedgerRow, read_ledger
from lockstep.table.reading import dataset_of

SAMPLE_ROWS = 5


def show_summary(say: Console, stage: Stage, folders: StreamFolders, *, seconds: float, nothing_new: bool) -> None:
    """Print figures, where things are, and what to try next."""
    rows = read_ledger(folders.ledger)
    output = DeltaTable(folders.table)
    say.print()
    if nothing_new:
        say.print("Nothing new was there to read: everything was committed by an earlier run.")
    say.print(_figures(rows, output, seconds))
    say.print(_topics(rows))
    say.print(_sample(dataset_of(folders.table).to_table()))
    _next(say, stage, folders.table)


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


def _next(say: Console, stage: Stage, table: Path) -> None:
    say.print(f"\nthe table: {table}", soft_wrap=True)
    say.print("read it:   any Delta reader, for example deltalake.DeltaTable(path).to_pandas()")
    say.print("try next, in a shell with the environment active (. .venv/bin/activate):")
    say.print(f"  {exports(stage.environment())}", soft_wrap=True)
    say.print("  make demo                      a second run: the next day of the recordings, carried on over midnight")
    say.print(
        "  lockstep status order_books    where each partition stands (needs the demo's Kafka: it ended with the demo)"
    )
    say.print("  dagster dev -w workspace.yaml  the web UI of everything that ran here")
    say.print("  make clean                     remove it all")
