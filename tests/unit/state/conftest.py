"""A new home of state for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.state.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "state", tmp_path / "hot")
