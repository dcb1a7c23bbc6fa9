"""The driver over a simulated cluster: the costs of a partition, from busy and quiet batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from benchmarks.partitions import MESSAGES, Partitions, SimulatedCluster, figures, measure_partitions
from lockstep.table.commit import OutputLog

if TYPE_CHECKING:
    from pathlib import Path


def test_the_cost_of_a_partition_is_the_difference_of_busy_and_quiet_batches() -> None:
    asked = Partitions(partitions=1_100, few=100)
    changed, unchanged, *_ = figures(asked, {1_100: [0.023], 100: [0.003]})
    assert [changed.value, unchanged.value] == pytest.approx([20.0, 1.0])


def test_batches_of_the_simulated_cluster_are_committed(tmp_path: Path) -> None:
    record = measure_partitions(Partitions(20, few=2, cores=2, batches=3), folder=tmp_path, console=Console(quiet=True))
    assert [len(series.y) for series in record.panels[0].series] == [3, 3]
    (table,) = tmp_path.glob("*/table")
    assert OutputLog(table).base().head.batch == 8


def test_a_partition_that_changed_has_messages() -> None:
    cluster = SimulatedCluster(3)
    cluster.produce(2)
    ends = [ends.high_watermark for ends in cluster.view(cluster.topic_names()).ends.values()]
    assert ends == [MESSAGES, MESSAGES, 0]
