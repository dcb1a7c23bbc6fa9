"""A batch is committed only after all that follows the one before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from lockstep import Kind
from lockstep.engine.driver import committer
from lockstep.table import delta_log
from tests.support.kept_stream import keeping, message
from tests.support.offline_stream import Offline

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_no_batch_is_committed_while_the_log_checkpoint_of_the_one_before_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the open table passes the version of the checkpoint, misses it, and reads all entries with each commit."""
    newest: dict[int, int] = {}

    def write_slowly(table: Path, version: int) -> bool:
        time.sleep(0.1)
        newest[version] = delta_log.list_versions(table)[-1]
        return False

    monkeypatch.setattr(committer, "write_checkpoint_if_due", write_slowly)
    first = {"kept.a": [("a", message(Kind.SNAPSHOT, 1, x=1))]}
    Offline(keeping(), tmp_path).run(
        first, *({"kept.a": [("a", message(Kind.UPDATE, number, x=1))]} for number in (2, 3, 4))
    )
    assert len(newest) == 4
    assert newest == {version: version for version in newest}
