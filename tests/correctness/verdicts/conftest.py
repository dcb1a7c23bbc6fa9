"""A topic for each fault, filled once; each class reads all topics in a separate run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from lockstep.features.localdev.producer import produce
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.table.ledger import read_ledger
from tests.correctness.verdicts.faulty import Fault, clean_log, faulty
from tests.correctness.verdicts.table import CLASSES
from tests.streams.dydx_books.streams import AsTheyCome, books
from tests.support.local_runs import LocalRuns
from tests.support.plain_reader import heads, read_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from lockstep.features.localdev.broker import Broker
    from lockstep.model.finding import Finding
    from lockstep.table.ledger import LedgerRow
    from tests.correctness.verdicts.faulty import Faulty

FAMILY = "verdicts_of_messages"


@dataclass(frozen=True)
class Outcome:
    """The result of a class for all topics.

    Attributes:
        table: The rows.
        ledger: By topic; one row each, because a single batch reads all.
        head: Head of the last commit.
        findings: The findings that halted the stream.
        quarantine: Rows of the quarantine.
        late: Rows of the late table.
    """

    table: pa.Table
    ledger: Mapping[str, LedgerRow]
    head: Mapping[str, object]
    findings: tuple[Finding, ...]
    quarantine: list[dict[str, object]]
    late: list[dict[str, object]]


def topic_of(fault: Fault | None) -> str:
    """Return the topic of a fault, or of the log without a fault."""
    return f"{FAMILY}.{'clean' if fault is None else fault.name.lower()}"


def log_of(fault: Fault | None) -> Faulty:
    """Return the log in the topic of a fault."""
    return clean_log() if fault is None else faulty(fault)


@pytest.fixture(scope="session")
def read_by(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """Return a function that returns the outcome of a class for all topics, and runs each class once."""
    for fault in (None, *Fault):
        produce(broker.bootstrap_servers, topic_of(fault), log_of(fault).messages)

    @cache
    def read(name: str) -> Outcome:
        stream = replace(books(rf"{FAMILY}\..+", CLASSES[name], AsTheyCome()), name=f"verdicts_{name}")
        runs = LocalRuns(stream, broker.bootstrap_servers, tmp_path_factory.mktemp(name))
        findings: tuple[Finding, ...] = ()
        try:
            runs.run()
        except IntegrityLost as lost:
            findings = lost.findings
        return Outcome(
            table=read_table(runs.folders.table),
            ledger={row.topic: row for row in read_ledger(runs.folders.ledger)},
            head=heads(runs.folders.table)[-1],
            findings=findings,
            quarantine=DeltaTable(runs.folders.quarantine).to_pyarrow_table().to_pylist(),
            late=DeltaTable(runs.folders.late).to_pyarrow_table().to_pylist() if CLASSES[name].keeps_late else [],
        )

    return read
