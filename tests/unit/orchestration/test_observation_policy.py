"""When the topics of a stream are observed: from figures alone."""

from __future__ import annotations

from lockstep.orchestration.observation_policy import (
    AGAIN_SECONDS,
    SWEEP_SECONDS,
    ObservationCursor,
    TopicSnapshot,
    decide_observation,
)

NOW = 1_000_000_000.0


def looked(wanted: str, registered: str, sweep: ObservationCursor, now: float = NOW) -> TopicSnapshot | None:
    return decide_observation(wanted.split(), registered.split(), sweep, now)


def test_all_topics_are_looked_at_in_turns() -> None:
    first = looked("a b", "a b", ObservationCursor())
    assert first == TopicSnapshot(shows_all=True, after=ObservationCursor(looked_at=NOW))
    assert looked("a b", "a b", first.after, NOW + SWEEP_SECONDS - 1) is None
    again = looked("a b", "a b", first.after, NOW + SWEEP_SECONDS)
    assert again == TopicSnapshot(shows_all=True, after=ObservationCursor(looked_at=NOW + SWEEP_SECONDS))


def test_a_new_topic_is_looked_at_at_once_and_again_after_a_minute() -> None:
    look = looked("a b", "a", ObservationCursor(looked_at=NOW - 1))
    assert look is not None
    assert look.shows_all
    assert looked("a b", "a b", look.after, NOW + AGAIN_SECONDS - 1) is None
    assert looked("a b", "a b", look.after, NOW + AGAIN_SECONDS) is not None


def test_what_one_look_left_over_is_taken_up_by_the_next_without_the_table_of_all() -> None:
    look = looked("a b", "a b", ObservationCursor(looked_at=NOW - 10, behind=True))
    assert look == TopicSnapshot(shows_all=False, after=ObservationCursor(looked_at=NOW - 10))


def test_a_topic_that_is_gone_is_not_new() -> None:
    assert looked("a", "a b", ObservationCursor(looked_at=NOW)) is None


def test_a_clock_that_was_set_back_does_not_stop_the_looks() -> None:
    assert looked("a", "a", ObservationCursor(looked_at=NOW + 3600)) is not None
