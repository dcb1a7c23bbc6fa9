"""A request that Kafka does not answer is repeated: forever, for a while, or until the run must end."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep.engine.driver import kafka_patience
from lockstep.engine.driver.kafka_patience import REPORT_SECONDS_MAX, KafkaPatience
from lockstep.errors import KafkaError, KafkaUnreachable
from lockstep.model.tuning import Tuning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TUNING = Tuning()
QUESTION_SECONDS = some.floats(0.01, 20.0)
OUTAGES = some.lists(QUESTION_SECONDS, max_size=60)
"""The duration of each unanswered request, in seconds."""


class Time:
    """The clock of the module, moved only by pauses and requests."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(scope="module", autouse=True)
def clock() -> Iterator[Time]:
    moved = Time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_patience, "time", moved)
        yield moved


def ask_through(clock: Time, failures: Sequence[tuple[float, KafkaError]]) -> Callable[[], str]:
    """Return a request that fails as listed, and is then answered."""
    left = list(failures)

    def ask() -> str:
        if not left:
            return "answer"
        seconds, error = left.pop(0)
        clock.sleep(seconds)
        raise error

    return ask


def make_outage(seconds: Sequence[float]) -> list[tuple[float, KafkaError]]:
    return [(each, KafkaUnreachable("no broker answers", next_step="wait")) for each in seconds]


def patience(*, is_endless: bool, gives_up: Callable[[], bool] = lambda: False) -> KafkaPatience:
    return KafkaPatience(TUNING, is_endless=is_endless, gives_up=gives_up)


@given(seconds=OUTAGES)
def test_a_never_ending_run_gets_its_answer_soon_after_any_outage(clock: Time, seconds: list[float]) -> None:
    began = clock.now
    assert patience(is_endless=True).ask(ask_through(clock, make_outage(seconds))) == "answer"
    pauses = clock.now - began - sum(seconds)
    assert pauses <= len(seconds) * (TUNING.retry_seconds_max + 0.01)


@given(seconds=OUTAGES)
def test_a_bounded_run_gives_up_at_its_time_and_not_before(clock: Time, seconds: list[float]) -> None:
    began = clock.now
    try:
        answer = patience(is_endless=False).ask(ask_through(clock, make_outage(seconds)))
    except KafkaUnreachable:
        longest = max(seconds) + TUNING.retry_seconds_max + 0.01
        assert TUNING.patience_seconds <= clock.now - began <= TUNING.patience_seconds + longest
    else:
        assert answer == "answer"
        last = seconds[-1] if seconds else 0.0
        assert clock.now - began <= TUNING.patience_seconds + last + TUNING.retry_seconds_max + 0.01


@given(before=OUTAGES, is_endless=some.booleans(), refusal_seconds=some.sampled_from([0.0, 5.0, None]))
def test_a_refusal_that_lasts_ends_every_run(
    clock: Time, before: list[float], refusal_seconds: float | None, *, is_endless: bool
) -> None:
    began = clock.now
    refused = [(1.0, KafkaError("the password is wrong", next_step="correct it"))] * 1_000
    with pytest.raises(KafkaError) as ended:
        patience(is_endless=is_endless).ask(
            ask_through(clock, make_outage(before) + refused), refusal_seconds=refusal_seconds
        )
    limit = TUNING.patience_seconds if refusal_seconds is None else refusal_seconds
    if is_endless:
        assert type(ended.value) is KafkaError
        assert clock.now - began >= limit
    assert clock.now - began <= max(limit, TUNING.patience_seconds) + sum(before) + 5 * len(before) + 10


@given(seconds=some.lists(QUESTION_SECONDS, min_size=1, max_size=60), stops_after=some.floats(0, 600))
def test_a_stop_ends_the_wait_within_the_question_that_is_under_way(
    clock: Time, seconds: list[float], stops_after: float
) -> None:
    began = clock.now
    stop_at = clock.now + stops_after
    ask = ask_through(clock, make_outage(seconds))
    try:
        patience(is_endless=True, gives_up=lambda: clock.now >= stop_at).ask(ask)
    except KafkaUnreachable:
        assert clock.now - began <= stops_after + max(seconds) + 0.2
    else:
        assert clock.now <= stop_at + max(seconds)


@given(seconds=OUTAGES)
def test_the_log_tells_of_an_outage_at_once_then_now_and_then_and_of_its_end(clock: Time, seconds: list[float]) -> None:
    lines = list[str]()
    began = clock.now
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]  # as a recorder
    kafka_patience.LOG.addHandler(handler)
    try:
        patience(is_endless=True).ask(ask_through(clock, make_outage(seconds)))
    finally:
        kafka_patience.LOG.removeHandler(handler)
    if not seconds:
        assert lines == []
        return
    assert lines[0].startswith("no broker answers; asking again until it answers, ")
    assert lines[-1].startswith("Kafka answers again after ")
    elapsed = clock.now - began
    assert len(lines) <= 3 + math.log2(max(2.0, elapsed)) + elapsed / REPORT_SECONDS_MAX
