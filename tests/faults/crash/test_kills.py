"""kill -9 of the driver at every phase of a batch, in one run over the recordings: no row is lost or doubled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from lockstep.table.layout import StreamFolders
from tests.faults.crash.moments import Phase
from tests.faults.crash.run_of_kills import FIRST_BATCHES, Kill, RunOfKills
from tests.faults.crash.whole import assert_whole, produced
from tests.support.plain_reader import heads

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.features.localdev.broker import Broker

NEEDED = (Phase.WRITTEN, Phase.BETWEEN)
SHORT = (Phase.WRITTEN, Phase.BETWEEN, Phase.FOLDING)
ALL = (
    *SHORT,
    Phase.COMMITTING,
    Phase.PLANNING,
    Phase.WRITTEN,
    Phase.WRITING,
    Phase.BETWEEN,
    Phase.FOLDING,
    Phase.COMMITTING,
)
MOST_KILLS = 8
"""A phase of some milliseconds may be missed; this many additional kills are tried."""


@dataclass(frozen=True)
class Size:
    """The size of a run: messages of each recording, messages of a batch, and the kills."""

    messages: int
    batch_messages: int
    aims: tuple[Phase, ...]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    "size",
    [
        pytest.param(Size(700, 40, SHORT), id="three"),
        pytest.param(Size(1_000_000, 500, ALL), id="ten", marks=pytest.mark.slow),
    ],
)
def test_no_kill_of_the_driver_loses_doubles_or_reorders_a_row(
    broker: Broker, topic_family: str, tmp_path: Path, size: Size
) -> None:
    sent = produced(broker, topic_family, size.messages)
    folders = StreamFolders("order_books", tmp_path / "tables")
    run = RunOfKills(
        folders,
        tmp_path / "local",
        broker.bootstrap_servers,
        (rf"{topic_family}\..+", str(size.batch_messages)),
        tmp_path / "drivers.log",
    )
    kills = killed(run, size.aims)
    run.finish()
    assert_whole(folders, sent)
    assert_all_inside(kills, batches=int(heads(folders.table)[-1]["batch"]))


def killed(run: RunOfKills, aims: tuple[Phase, ...]) -> list[Kill]:
    """Kill at all aims, and again at the required phases that were not hit."""
    kills: list[Kill] = []
    todo = list(aims)
    while todo:
        assert len(kills) < len(aims) + MOST_KILLS, f"never hit: {todo}"
        kills.append(run.kill_at(todo.pop(0)))
        print(kills[-1])  # noqa: T201  # the log of the phases
        if not todo:
            todo = [phase for phase in NEEDED if phase not in {kill.proof.phase for kill in kills}]
    return kills


def assert_all_inside(kills: list[Kill], batches: int) -> None:
    """Each kill is after the 3rd and before the 3rd-last commit."""
    committed = [kill.proof.batch for kill in kills]
    assert [number for number in committed if not FIRST_BATCHES <= number <= batches - FIRST_BATCHES] == []
    assert committed == sorted(committed)
