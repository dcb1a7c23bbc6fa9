"""The head survives storage in a commit's metadata, for any contents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from lockstep.model.finding import Finding
from lockstep.table.head import HEAD_VERSION, Desired, Head, Lineage, SideFile

counts = some.integers(0, 2**62)
texts = some.text(some.characters(exclude_categories=["Cs"]), max_size=20)
files = some.builds(SideFile, path=texts, size=counts, rows=counts, statistics=texts)
findings = some.builds(
    Finding,
    cause=texts,
    topic=texts,
    topic_id=texts,
    partition=counts,
    offset=counts,
    until=counts,
    session=some.none() | texts,
    expected=some.none() | texts,
    found=some.none() | texts,
    detail=texts,
)
heads = some.builds(
    Head,
    stream=texts,
    cluster_id=texts,
    table_id=texts,
    generation=counts,
    lineage=some.lists(some.builds(Lineage, generation=counts, last_batch=counts), max_size=3).map(tuple),
    epoch=counts,
    batch=counts,
    batch_version=counts,
    hour=texts,
    closed_hour=texts,
    desired=some.sampled_from(Desired),
    reason=texts,
    findings=some.lists(findings, max_size=2).map(tuple),
    ledger=some.none() | files,
    full_ledger_batch=counts,
    full_ledger_at=some.floats(0, 1e12),
    rewind_floor=counts,
    resumes_as=some.sampled_from(Desired),
    version=some.just(HEAD_VERSION),
)


@given(heads)
def test_a_head_comes_back_as_it_was(head: Head) -> None:
    assert Head.decode(head.encode()) == head


def test_a_fresh_head_is_short() -> None:
    assert Head(stream="s", cluster_id="c").encode() == '{"stream":"s","cluster_id":"c"}'


def test_an_old_head_that_says_running_is_read_as_bounded_because_any_run_wrote_it() -> None:
    old = '{"stream":"s","cluster_id":"c","table_id":"t","epoch":7,"batch":3,"desired":"running","reason":"running"}'
    head = Head.decode(old)
    assert (head.desired, head.epoch, head.batch, head.version) == (Desired.BOUNDED, 7, 3, HEAD_VERSION)
    assert Head.decode(head.encode()) == head


def test_an_old_head_that_is_halted_or_stopped_stays_so_and_resumes_as_bounded() -> None:
    for desired in ("halted", "held"):
        head = Head.decode(f'{{"stream":"s","cluster_id":"c","epoch":7,"desired":"{desired}"}}')
        assert (head.desired.value, head.resumes_as) == (desired, Desired.BOUNDED)
    assert Head.decode('{"stream":"s","cluster_id":"c","epoch":7}').desired is Desired.STOPPED
