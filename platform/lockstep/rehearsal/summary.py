"""What happened in a demo, as figures: read from the tables alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from rich.console import Console
from rich.table import Table

from lockstep.rehearsal.stage import Stage, exports
from lockstep.table.layout import StreamFolders

SAMPLE_ROWS = 5


def show_summary(say: Console, stage: Stage, folders: StreamFolders, *, seconds: float, nothing_new: bool) -> None:
    """Print figures, where things are, and what to try next."""
    ledger = DeltaTable(folders.ledger).to_pyarrow_table()
    output = DeltaTable(folders.table)
    say.print()
    if nothing_new:
        say.print("Nothing new was there to read: everything was committed by an earlier run.")
    say.print(_figures(ledger, output, seconds))
    say.print(_topics(ledger))
    say.print(_sample(output.to_pyarrow_table()))
    _next(say, stage, folders.table)


def _figures(ledger: pa.Table, output: DeltaTable, seconds: float) -> Table:
    table = Table(title="what happened", show_header=False)
    holes = sum(hole["until"] - hole["start"] for holes in ledger["holes"].to_pylist() for hole in holes)
    causes = sorted({cause for cause in ledger["restart_cause"].to_pylist() if cause})
    for name, value in (
        ("batches", pc.max(ledger["batch"]).as_py()),
        ("messages", pc.sum(ledger["messages"]).as_py()),
        ("rows", pc.sum(ledger["rows"]).as_py()),
        ("verdicts: accepted", pc.sum(ledger["messages"]).as_py() - pc.sum(ledger["dropped"]).as_py()),
        (
            "verdicts: repeats / gaps / dropped",
            " / ".join(str(pc.sum(ledger[n]).as_py()) for n in ("repeats", "gaps", "dropped")),
        ),
        ("holes in offsets", holes),
        ("data files after compaction", len(output.file_uris())),
        ("versions of the table", output.version()),
        ("seconds", f"{seconds:.0f}"),
        *((f"start {number}", cause.split(";")[0]) for number, cause in enumerate(causes, 1)),
    ):
        table.add_row(name, str(value))
    return table


def _topics(ledger: pa.Table) -> Table:
    table = Table("topic", "messages", "rows", "next offset", title="topics")
    grouped = ledger.group_by("topic").aggregate([("messages", "sum"), ("rows", "sum"), ("until", "max")])
    for row in sorted(grouped.to_pylist(), key=lambda row: str(row["topic"])):
        table.add_row(row["topic"], str(row["messages_sum"]), str(row["rows_sum"]), str(row["until_max"]))
    return table


def _sample(rows: pa.Table) -> Table:
    names = [name for name in rows.column_names if not name.startswith("_")] + ["_topic", "_offset", "_row"]
    table = Table(*names, title=f"the newest {SAMPLE_ROWS} of {rows.num_rows} rows")
    newest = rows.select(names).slice(max(0, rows.num_rows - SAMPLE_ROWS))
    for row in newest.to_pylist():
        table.add_row(*(str(row[name]) for name in names))
    return table


def _next(say: Console, stage: Stage, table: Path) -> None:
    say.print(f"\nthe table: {table}", soft_wrap=True)
    say.print("read it:   python -c \"from deltalake import DeltaTable; print(DeltaTable('TABLE').to_pandas())\"")
    say.print("try next, in a shell with the environment active (. .venv/bin/activate):")
    say.print(f"  {exports(stage.environment())}", soft_wrap=True)
    say.print("  make demo                      a second run: the next day of the recordings, carried on over midnight")
    say.print(
        "  lockstep status order_books    where each partition stands (needs the demo's Kafka: it ended with the demo)"
    )
    say.print("  dagster dev -w workspace.yaml  the web UI of everything that ran here")
    say.print("  make clean                     remove it all")
