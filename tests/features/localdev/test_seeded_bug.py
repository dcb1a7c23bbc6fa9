"""The bug of the demo: one line of a fold in a copy of the streams, over one topic."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.features.localdev.seeded_bug import CODE, COPY, SOURCE, copy_with_bug, open_scratch

ROOT = Path(__file__).parents[3]
TOPIC = "order_books.spot_ethusdt"
KAFKA = "127.0.0.1:1"


def test_the_copy_differs_in_name_topic_and_one_line_of_the_fold(tmp_path: Path) -> None:
    scratch = open_scratch(tmp_path, KAFKA)
    bug = copy_with_bug(ROOT, scratch, TOPIC)
    before, after = ((folder / SOURCE).read_text().splitlines() for folder in (ROOT, tmp_path))
    changed = [(number, *pair) for number, pair in enumerate(zip(before, after, strict=True), 1) if len({*pair}) > 1]
    fold, *declared = changed
    assert fold == (bug.line, bug.before, bug.after)
    assert [line.strip().partition(",")[0] for _, _, line in declared] == [
        f'name="{COPY}"',
        r'topics=Topics(pattern=r"order_books\.spot_ethusdt"',
    ]
    assert {path.name for path in tmp_path.iterdir()} == {*CODE, "dagster", "logs"}
    assert scratch.environment()["LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS"] == KAFKA


def test_a_stream_that_has_no_such_line_is_named(tmp_path: Path) -> None:
    for name in (*CODE, "deploy"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    source = tmp_path / SOURCE
    source.write_text(source.read_text().replace("is_zero(quantity)", "is_nothing(quantity)"))
    with pytest.raises(LockstepError, match=rf"{SOURCE} has 0 times None if is_zero") as refused:
        copy_with_bug(tmp_path, open_scratch(tmp_path / "scratch", KAFKA), TOPIC)
    assert refused.value.next_step == f"git diff {SOURCE}; take your change back for the demo"
