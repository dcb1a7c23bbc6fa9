"""A proof that lacks memory ends with an error: it reports no violation of a healthy table."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pytest

from lockstep import Sequence, Strict
from lockstep.errors import TableError
from lockstep.verify import files, rows
from lockstep.verify.report import InvariantStatus
from tests.correctness.verify.shelves import Change, Line, Shelves, shelf_stream
from tests.support.offline_proof import prove
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def fail(*_: object, **__: object) -> Any:
    """Raise the error of Arrow."""
    raise pa.ArrowMemoryError("malloc of size 64 failed")


def starve_comparison(patch: pytest.MonkeyPatch) -> None:
    """Fail whenever the proof makes a column of the values that it expects."""
    patch.setattr(rows, "pa", SimpleNamespace(**{**vars(pa), "array": fail}))


def starve_reads(patch: pytest.MonkeyPatch) -> None:
    """Fail whenever the proof opens a file of rows."""
    patch.setattr(files, "open_parquet", fail)
    patch.setattr(rows, "open_if_there", files.open_if_there)


@pytest.mark.parametrize(("starve", "error"), [(starve_comparison, MemoryError), (starve_reads, TableError)])
def test_a_healthy_table_is_not_called_damaged(
    tmp_path: Path, starve: Callable[[pytest.MonkeyPatch], None], error: type[Exception]
) -> None:
    offline = Offline(shelf_stream(Shelves(), Strict(evidence=Sequence())), tmp_path)
    messages = [
        Change("snapshot", 1, 1, [Line("a", 1, Decimal(1))]),
        Change("update", 2, 2, [Line("b", 2, Decimal(2))]),
    ]
    offline.run({"t": [("s", msgspec.json.encode(message)) for message in messages]})
    assert prove(offline).status is InvariantStatus.PROVEN
    with pytest.MonkeyPatch.context() as patch:
        starve(patch)
        with pytest.raises(error, match="malloc of size 64 failed"):
            prove(offline)
    assert prove(offline).status is InvariantStatus.PROVEN
