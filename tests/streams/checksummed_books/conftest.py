"""The recorded books, loaded once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lockstep.features.localdev.recordings import read_checksummed_books

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lockstep.features.localdev.recordings import Recorded

RECORDING = Path(__file__).parents[2] / "recordings" / "exchange_ws" / "kraken_spot_book1000_crc32.txt.gz"


@pytest.fixture(scope="session")
def recorded() -> Mapping[str, tuple[Recorded, ...]]:
    """All ten books by name, as received."""
    return read_checksummed_books(RECORDING)
