"""Small batches in turns: every fold writes the same rows, and a state by row writes less."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.engine_files import Batch
from benchmarks.live_shape import (
    FOLDS,
    SMALL,
    LiveShape,
    Shape,
    Turn,
    Variant,
    compute_cost,
    compute_task_ratio,
    leave_extension_out,
    make_figures,
    measure_live_shape,
)
from benchmarks.live_shape_side import FOLDS as MADE
from benchmarks.live_shape_side import ShapeSide, plan_turns

TINY = Shape(80, sessions=16, rows=100, batches=2)
TURN = Turn(messages=100, bytes=1_000, cpu_seconds=0.01, state_cpu_seconds=0.004, state_bytes=1_500)


def test_costs_are_of_a_message_and_of_the_task_without_its_states() -> None:
    assert compute_cost(TURN) == pytest.approx(100)
    assert compute_task_ratio(TURN) == pytest.approx(1 / 0.6)


def test_goals_are_those_of_folds_whose_state_is_saved_by_row() -> None:
    turns = {Variant(fold, native=True): [TURN] for fold in FOLDS}
    goals = {figure.name.split(": ")[1] for figure in make_figures(SMALL, turns) if figure.goal is not None}
    assert goals == set(FOLDS) - {"by hand, dict"}


def test_the_first_turn_reads_all_snapshots_and_no_other_does() -> None:
    first, second, *_ = plan_turns(TINY)
    assert [len(second), sum(map(len, second[0].values()))] == [2, 80]
    assert [list_kinds(first[0]), list_kinds(second[0])] == [{True}, {False}]


def list_kinds(batch: Batch) -> set[bool]:
    messages = chain.from_iterable(batch.values())
    return {b'"snapshot"' in (message.sent_value or b"") for message in messages}


@pytest.mark.parametrize("fold", MADE)
def test_each_fold_takes_turns_and_saves_its_state(fold: str, tmp_path: Path) -> None:
    side = ShapeSide(fold, TINY, tmp_path)
    side.run_turn()
    turn = side.run_turn()
    assert turn.messages == 160
    assert 0 < turn.state_cpu_seconds < turn.cpu_seconds
    assert turn.state_bytes > 0


@pytest.mark.slow
def test_variants_with_and_without_the_extension_write_the_same_rows(tmp_path: Path) -> None:
    asked = LiveShape(shapes=[TINY], folds=FOLDS[1:2], rounds=1)
    record = measure_live_shape(asked, folder=tmp_path, console=Console(quiet=True))
    assert len(record.figures) == 4


def test_the_extension_cannot_be_imported_when_it_is_left_out(tmp_path: Path) -> None:
    hidden = leave_extension_out(tmp_path)["PYTHONPATH"].split(":")[0]
    with pytest.raises(ImportError, match="left out"):
        exec((Path(hidden) / "lockstep_native.py").read_text())  # noqa: S102  # of this test
