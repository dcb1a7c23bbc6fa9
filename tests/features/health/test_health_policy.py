"""Announced alarms and evaluations of the check, decided from snapshots alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given
from hypothesis import strategies as some
from typing_extensions import override

from lockstep.features.health.asset_check import describe_health
from lockstep.features.health.policy import (
    REFRESH_SECONDS,
    WAITING_MAX,
    HealthCursor,
    HealthDecision,
    HealthSnapshot,
    decide_health,
)
from lockstep.features.health.sensor import OutageNotes
from lockstep.features.health.webhook import AlarmWebhook, Notification, NotificationEvent
from lockstep.operations.alarms import Alarm, AlarmKind, AlarmSeverity, HealthFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 1_000_000.0
HEADROOM = Alarm(
    kind=AlarmKind.HEADROOM, severity=AlarmSeverity.WARNING, problem="45 min", next_step="lockstep start s"
)
URGENT = msgspec.structs.replace(HEADROOM, severity=AlarmSeverity.ERROR, problem="5 min")
SILENT = Alarm(kind=AlarmKind.KAFKA, severity=AlarmSeverity.WARNING, problem="no answer", next_step="lockstep doctor")


def look(*alarms: Alarm, **changes: object) -> HealthSnapshot:
    return msgspec.structs.replace(HealthSnapshot(stream="s", alarms=alarms, unknown=(), notifies=True), **changes)


def decide(*looks: HealthSnapshot, seconds: float = 30.0) -> list[HealthDecision]:
    """Return the decisions of consecutive snapshots."""
    cursor = HealthCursor()
    found = list[HealthDecision]()
    for number, each in enumerate(looks):
        found.append(decide_health(each, cursor, NOW + number * seconds))
        cursor, warning = HealthCursor.read(found[-1].cursor.encode())
        assert (warning, cursor) == ("", found[-1].cursor)
    return found


def events(decisions: list[HealthDecision]) -> list[tuple[NotificationEvent, str]]:
    return [(note.event, note.alarm) for note in decisions[-1].cursor.waiting]


BEGAN = NotificationEvent.BEGAN
CHANGED = NotificationEvent.CHANGED
ENDED = NotificationEvent.ENDED


def test_a_healthy_stream_is_evaluated_once_and_then_at_times() -> None:
    count = int(REFRESH_SECONDS // 30) + 2
    assert [number for number, each in enumerate(decide(*[look()] * count)) if each.evaluates] == [0, count - 2]


def test_a_result_that_a_run_has_hidden_is_given_again() -> None:
    decisions = decide(look(HEADROOM), look(HEADROOM), look(HEADROOM, is_hidden=True), look(HEADROOM))
    assert [each.evaluates for each in decisions] == [False, True, True, False]


def test_a_stream_that_never_ran_is_not_evaluated() -> None:
    (decision,) = decide(look(has_run=False))
    assert (decision.evaluates, decision.says) == (False, "the stream has no table yet: there is nothing to judge")


def test_an_alarm_is_announced_by_the_second_look_in_a_row_that_sees_it() -> None:
    decisions = decide(look(HEADROOM), look(HEADROOM), look(HEADROOM))
    assert [each.evaluates for each in decisions] == [False, True, False]
    assert [len(each.cursor.raised) for each in decisions] == [0, 1, 1]
    assert decisions[-1].cursor.raised[0].since == NOW + 30
    assert events(decisions) == [(BEGAN, AlarmKind.HEADROOM)]
    (note,) = decisions[-1].cursor.waiting
    assert note.text == "lockstep s, warning: 45 min; next: lockstep start s"


def test_what_only_one_look_sees_is_announced_to_nobody_and_evaluates_nothing() -> None:
    decisions = decide(look(), look(HEADROOM), look(), look(HEADROOM))
    assert [each.evaluates for each in decisions] == [True, False, False, False]
    assert events(decisions) == []
    assert [each.says for each in decisions[:2]] == ["no alarm", "no alarm; seen once: headroom"]


def test_an_alarm_that_ends_and_one_that_becomes_urgent_are_news() -> None:
    decisions = decide(look(HEADROOM), look(HEADROOM), look(URGENT), look())
    assert [each.evaluates for each in decisions] == [False, True, True, True]
    assert events(decisions) == [(event, AlarmKind.HEADROOM) for event in (BEGAN, CHANGED, ENDED)]
    assert decisions[-1].cursor.waiting[-1].text == "lockstep s, resolved: headroom has ended"
    assert {note.since for note in decisions[-1].cursor.waiting} == {NOW + 30}


def test_an_alarm_that_cannot_be_judged_stays_as_it_was() -> None:
    blind = look(SILENT, unknown=(AlarmKind.HEADROOM, AlarmKind.LEADERLESS))
    decisions = decide(look(HEADROOM), look(HEADROOM), blind, blind, look())
    kinds = [{each.alarm.kind for each in decision.cursor.raised} for decision in decisions]
    both = {AlarmKind.HEADROOM, AlarmKind.KAFKA}
    assert kinds == [set(), {AlarmKind.HEADROOM}, {AlarmKind.HEADROOM}, both, set()]
    assert [each.evaluates for each in decisions] == [False, True, False, True, True]


def test_an_alarm_of_an_extension_stays_while_any_fact_is_unknown() -> None:
    """An extension does not declare its facts: if any fact is unknown, the alarm's absence proves nothing."""
    own = msgspec.structs.replace(HEADROOM, kind="margins.backlog")
    blind = look(unknown=(AlarmKind.HEADROOM,))
    decisions = decide(look(own), look(own), blind, blind, look())
    assert [len(each.cursor.raised) for each in decisions] == [0, 1, 1, 1, 0]
    assert events(decisions) == [(BEGAN, "margins.backlog"), (ENDED, "margins.backlog")]


def test_a_materialization_is_followed_by_an_evaluation_that_is_shown_with_it() -> None:
    decisions = decide(look(), look(materialization=7), look(materialization=7))
    assert [each.evaluates for each in decisions] == [True, True, False]


def test_a_clock_that_went_back_delays_no_evaluation() -> None:
    assert [each.evaluates for each in decide(look(), look(), seconds=-30.0)] == [True, True]


def test_without_a_webhook_nothing_waits_for_one() -> None:
    silent = look(HEADROOM, notifies=False)
    assert events(decide(silent, silent)) == []
    assert events(decide(look(HEADROOM), look(HEADROOM), silent)) == []


def test_what_waits_for_a_webhook_is_bounded() -> None:
    looks = [look(HEADROOM), look(HEADROOM), look()] * WAITING_MAX
    waiting = decide(*looks)[-1].cursor.waiting
    assert (len(waiting), waiting[-1].event) == (WAITING_MAX, ENDED)


def test_a_cursor_that_cannot_be_read_is_reset_with_a_warning() -> None:
    assert HealthCursor.read(None) == (HealthCursor(), "")
    newer = HealthCursor(version=HealthCursor().version + 1).encode()
    for text, why in (("{", "cannot be read"), ('{"raised": 7}', "cannot be read"), (newer, "is of version 2")):
        cursor, warning = HealthCursor.read(text)
        assert cursor == HealthCursor()
        assert why in warning


def test_an_alarm_names_a_session_letter_by_letter_in_a_paragraph_of_its_own() -> None:
    halted = msgspec.structs.replace(HEADROOM, problem="session '<img src=x>'", next_step="lockstep message a_b")
    text = describe_health(HealthFacts(stream="s", desired=None), [halted, SILENT])
    assert text.split("\n\n")[0] == r"warning: session '\<img src=x\>' (next: lockstep message a_b)"


def test_an_outage_that_was_asked_about_twice_is_announced_by_one_look() -> None:
    away = look(SILENT, HEADROOM, certain=frozenset({AlarmKind.KAFKA}))
    decisions = decide(away)
    assert events(decisions) == [(BEGAN, AlarmKind.KAFKA)]
    assert decisions[-1].cursor.seen == (AlarmKind.HEADROOM,)
    assert events(decide(away, look())) == [(BEGAN, AlarmKind.KAFKA), (ENDED, AlarmKind.KAFKA)]


class Taker(AlarmWebhook):
    """A webhook that accepts notifications as a test sets it."""

    def __init__(self, takes: Iterator[bool]) -> None:
        super().__init__("env:X")
        self._takes, self.taken = takes, list[Notification]()

    @override
    def send(self, note: Notification) -> bool:
        if taken := next(self._takes, True):
            self.taken.append(note)
        return taken


@given(
    streams=some.integers(1, 6),
    outages=some.integers(1, 3),
    severities=some.lists(some.sampled_from(AlarmSeverity), min_size=6, max_size=6),
    takes=some.lists(some.booleans(), max_size=10),
)
def test_an_outage_is_told_once_however_many_streams_it_stops(
    streams: int, outages: int, severities: list[AlarmSeverity], takes: list[bool]
) -> None:
    """Start and end are sent once per severity; a notification that the webhook refuses is sent again."""
    told = OutageNotes()
    webhook = Taker(iter(takes))
    for _ in range(outages):
        for event in (BEGAN, ENDED):
            for number, severity in enumerate(severities[:streams]):
                note = make_note(f"s{number}", event, severity)
                while not told.send(note, webhook):
                    pass
    once = [(event, severity) for event in (BEGAN, ENDED) for severity in dict.fromkeys(severities[:streams])]
    assert [(note.event, note.severity) for note in webhook.taken] == once * outages


def make_note(stream: str, event: NotificationEvent, severity: AlarmSeverity) -> Notification:
    return Notification(
        text="", event=event, stream=stream, alarm=AlarmKind.KAFKA, severity=severity, problem="", next_step="",
        since=0.0, at=0.0,
    )  # fmt: skip
