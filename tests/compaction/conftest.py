"""A stream's table for each test, and the Spark session that the tests of tables share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.compaction.stream_table import StreamTable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def table(tmp_path: Path) -> StreamTable:
    """An empty stream."""
    return StreamTable(tmp_path / "tables")
