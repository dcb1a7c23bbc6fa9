"""The measurement of growth continues at the end of an earlier run."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.growth import DAY, STREAM, Growth, OtherSettingsError, measure_growth
from lockstep.table.commit import OutputLog
from lockstep.table.layout import StreamFolders
from lockstep.table.ledger import read_positions

GROWTH = Growth(days=2, seconds=DAY / 24, partitions=1)


@pytest.mark.slow
def test_a_soak_goes_on_after_its_last_whole_hour_and_with_no_other_settings(tmp_path: Path) -> None:
    console = Console(quiet=True)
    first = measure_growth(GROWTH, folder=tmp_path, console=console)
    assert next(first).settings["days"] == 1
    first.close()

    *_, whole = measure_growth(GROWTH, folder=tmp_path, console=console)
    (again,) = measure_growth(GROWTH, folder=tmp_path, console=console)
    with pytest.raises(OtherSettingsError, match="name another folder"):
        next(measure_growth(Growth(days=2, seconds=1800, partitions=1), folder=tmp_path, console=console))

    folders = StreamFolders(STREAM.name, tmp_path)
    (position,) = read_positions(folders, OutputLog(folders.table).base().head).values()
    assert whole.settings["days"] == again.settings["days"] == GROWTH.days
    assert position.until == GROWTH.days * 24
