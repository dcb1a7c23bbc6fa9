"""Results of checks: two simultaneous checks lose no point, and a damaged file is read as missing."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep.features.health.exporter import StreamSnapshot, make_metrics
from lockstep.features.quality import check
from lockstep.features.quality.check import (
    POINT_SECONDS,
    POINTS_FOLDER,
    Checked,
    Coverage,
    keep_result,
    make_result_path,
)
from lockstep.features.quality.check import read_last_check as read_result
from lockstep.features.quality.increment import CheckState, TableVersions, keep_state, load_state, make_state_path
from lockstep.features.quality.metrics import read_rule_gauges
from lockstep.features.quality.report import _draw_history, build_report
from lockstep.features.quality.rules import RuleOutcome, RuleResult
from lockstep.operations.alarms import HealthFacts
from lockstep.operations.inspect.health import Health
from lockstep.table.head import Desired
from tests.support.protocol_run import ProtocolRun, folders_in

if TYPE_CHECKING:
    from pathlib import Path

    from lockstep.table.layout import StreamFolders


@pytest.fixture
def folders(tmp_path: Path) -> StreamFolders:
    run = ProtocolRun(folders_in(tmp_path))
    run.claim()
    run.batch()
    return run.folders


def make_checked(folders: StreamFolders, version: int) -> Checked:
    coverage = Coverage(full=True, reason="asked for", since=None, files=1, rows=2, size=3)
    versions = TableVersions(version, 1, 1)
    return Checked(stream=folders.stream, versions=versions, coverage=coverage, partitions=(), results=())


def test_the_last_check_reaches_the_metrics_rule_by_rule(folders: StreamFolders) -> None:
    assert list(read_rule_gauges(folders)) == []
    results = tuple(
        RuleResult(rule=rule, sentence="s", outcome=outcome, observed=observed)
        for rule, outcome, observed in (
            ("price_in_range", RuleOutcome.FAILED, 7),
            ("unit_in_set", RuleOutcome.PASSED, 0),
            ("crashed", RuleOutcome.CRASHED, None),
        )
    )
    keep_result(folders, msgspec.structs.replace(make_checked(folders, 1), results=results), ())
    gauges = tuple(read_rule_gauges(folders))
    facts = HealthFacts(stream=folders.stream, desired=Desired.RUNNING)
    look = StreamSnapshot(Health(facts=facts, alarms=(), figures={}), 0.1, gauges=gauges)
    (family,) = [each for each in make_metrics([look, look]) if each.name == "lockstep_rule_violations"]
    assert [(each.labels, each.value) for each in family.samples[:2]] == [
        ({"stream": folders.stream, "rule": "price_in_range"}, 7.0),
        ({"stream": folders.stream, "rule": "unit_in_set"}, 0.0),
    ]


def damage(path: Path) -> None:
    """Damage one byte within a text."""
    content = path.read_bytes()
    assert content.count(b"asked") == 1
    path.write_bytes(content.replace(b"asked", b"aske\xff"))


def test_a_damaged_result_is_none(folders: StreamFolders) -> None:
    keep_result(folders, make_checked(folders, 1), ())
    damage(make_result_path(folders))
    assert read_result(folders) is None
    keep_result(folders, make_checked(folders, 2), ())
    assert history_of(folders) == [1, 2]


def test_a_damaged_state_is_none_and_the_whole_table_is_read(folders: StreamFolders) -> None:
    keep_state(folders, CheckState(TableVersions(1, 1, 1), ("asked",), (), (), ()))
    assert load_state(folders) is not None
    damage(make_state_path(folders))
    assert load_state(folders) is None


def history_of(folders: StreamFolders) -> list[int]:
    last = read_result(folders)
    assert last is not None
    return [point.version for point in last.history]


def test_the_newest_check_is_the_last_of_the_history_though_the_clock_was_set_back(
    folders: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    for version, at in enumerate((now, now + 7200, now + 3600), 1):
        monkeypatch.setattr(time, "time", lambda at=at: at)
        keep_result(folders, make_checked(folders, version), ())
    assert history_of(folders) == [1, 2, 3]
    drawn = re.findall(r'points="[^"]+"', "".join(_draw_history(build_report(folders).history)))
    for line in drawn:
        across = [float(point.split(",")[0]) for point in line[8:-1].split()]
        assert across == sorted(across)
    assert drawn


@pytest.mark.parametrize("others", [1, 3])
def test_checks_that_replace_the_result_meanwhile_stay_in_its_history(
    folders: StreamFolders, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    waiting = iter(range(10, 10 + others))

    def read_before_another_writes(where: StreamFolders) -> object:
        before = read_result(where)
        if (version := next(waiting, None)) is not None:
            keep_result(where, make_checked(where, version), ())
        return before

    keep_result(folders, make_checked(folders, 1), ())
    monkeypatch.setattr(check, "read_last_check", read_before_another_writes)
    keep_result(folders, make_checked(folders, 2), ())
    assert sorted(history_of(folders)) == [1, 2, *range(10, 10 + others)]


def test_the_file_of_an_old_point_is_deleted_and_the_point_stays(
    folders: StreamFolders, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_result(folders, make_checked(folders, 1), ())
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 2 * POINT_SECONDS)
    keep_result(folders, make_checked(folders, 2), ())
    assert list((make_result_path(folders).parent / POINTS_FOLDER).iterdir()) == []
    keep_result(folders, make_checked(folders, 3), ())
    assert len(history_of(folders)) == 3
