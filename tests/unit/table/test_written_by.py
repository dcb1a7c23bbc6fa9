"""The files that no commit can name any more, by the batch in their names and the head of the table."""

from __future__ import annotations

import pytest

from lockstep.table.head import HEAD_VERSION, Head
from lockstep.table.written_by import WrittenBy

HEAD = Head(stream="s", cluster_id="c", version=HEAD_VERSION, generation=2, epoch=7, batch=40)


@pytest.mark.parametrize(
    ("by", "over"),
    [
        pytest.param(WrittenBy(2, 7, 41), False, id="the next batch"),
        pytest.param(WrittenBy(2, 7, 40), True, id="another attempt at the last batch"),
        pytest.param(WrittenBy(2, 6, 41), True, id="a fenced writer"),
        pytest.param(WrittenBy(2, 8, 41), False, id="an erasure under way, which claims the next epoch"),
        pytest.param(WrittenBy(3, 8, 90), False, id="a promotion under way"),
        pytest.param(WrittenBy(3, 7, 80), True, id="a promotion that another claim came before"),
        pytest.param(WrittenBy(3, 5, 80), True, id="one that was killed long ago"),
        pytest.param(WrittenBy(1, 7, 41), True, id="an erasure that a rewind came before"),
        pytest.param(WrittenBy(1, 6, 99), True, id="a batch that a rewind has undone"),
    ],
)
def test_a_file_is_over_when_its_epoch_is_or_its_batch(by: WrittenBy, *, over: bool) -> None:
    assert by.is_over(HEAD) is over
