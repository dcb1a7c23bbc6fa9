"""Many streams that start together, on a machine with generated time: their order, and that each starts."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.control.heartbeat import POLLS, HeartbeatRecord, Phase
from lockstep.control.start_request import StartRequest
from lockstep.orchestration.restart_policy import RestartCursor, SensorObservation, decide_restart
from lockstep.orchestration.supervisor_policy import (
    LAUNCH_SECONDS_MAX,
    RunStage,
    SeenRun,
    StartSlots,
    SupervisorCursor,
    SupervisorObservation,
    decide_supervision,
)
from lockstep.table.head import Desired, Head
from tests.support.examples import scale_examples

TICK_SECONDS = 5.0


@dataclass
class Machine:
    """The facts of a stream: its table, its writer, and its next run."""

    name: str
    desired: Desired | None
    batch: int
    request: StartRequest | None
    start_ticks: int
    epoch: int = 1
    lives: bool = False
    counter: int = 0
    comes: int | None = None
    wants_topics: bool = False
    dies_at: int | None = None
    launched: int = 0
    cursor: SupervisorCursor = field(default_factory=SupervisorCursor)
    restart: RestartCursor = field(default_factory=RestartCursor)

    @property
    def head(self) -> Head | None:
        if self.desired is None:
            return None
        return Head(
            stream=self.name, cluster_id="c", table_id="0123456789", epoch=self.epoch, batch=self.batch,
            desired=self.desired,
        )  # fmt: skip

    @property
    def is_wanted(self) -> bool:
        return self.desired is Desired.RUNNING or (self.request is not None and self.request.holds(self.head))

    def pulse(self) -> HeartbeatRecord | None:
        return None if self.desired is None else HeartbeatRecord(self.counter, Phase.WRITING, self.lives, "writer")

    def runs(self) -> tuple[SeenRun, ...]:
        if self.comes is None:
            return ()
        return (SeenRun(run_id=f"run {self.launched}", stage=RunStage.LAUNCHED, counter=self.counter),)

    def launch(self) -> None:
        assert self.desired is not Desired.HALTED, "a run into a halted stream"
        self.comes = self.start_ticks
        self.launched = self.launched + 1

    def pass_time(self) -> None:
        self.counter += 1 if self.lives or self.comes is not None else 0
        if self.comes is None:
            return
        self.comes -= 1
        if self.comes <= 0:  # it claims, and writes
            self.comes = None
            self.lives = True
            self.epoch = self.epoch + 1
            if self.desired is not Desired.HALTED:
                self.desired, self.batch = Desired.RUNNING, max(1, self.batch)


@st.composite
def machines(draw: st.DrawFn) -> list[Machine]:
    found = []
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(("ran", "ran", "request", "new", "halted", "stopped", "bounded request")))
        desired = {
            "ran": Desired.RUNNING, "halted": Desired.HALTED, "stopped": Desired.STOPPED,
            "bounded request": Desired.BOUNDED,
        }.get(kind)  # fmt: skip
        request = StartRequest("lockstep start (me)", 0, f"{number}") if "request" in kind else None
        found.append(
            Machine(
                name=f"s{number}",
                desired=desired,
                batch=0 if desired is None or kind == "bounded request" else draw(st.integers(1, 9)),
                request=request,
                start_ticks=draw(st.integers(1, 20)),
                wants_topics=draw(st.booleans()),
                lives=(dies_at := draw(st.none() | st.integers(1, 12)) if kind == "ran" else None) is not None,
                dies_at=dies_at,
            )
        )
    return draw(st.permutations(found))


class Supervision:
    """Both sensors over all streams, tick after tick."""

    def __init__(self, streams: list[Machine], slots: int) -> None:
        self.streams = streams
        self.slots = slots
        self.now = 1_000.0
        self.starts = list[list[Machine]]()

    def starting(self) -> set[str]:
        return {each.name for each in self.streams if each.comes is not None}

    def tick(self) -> None:
        self.now += TICK_SECONDS
        for each in self.streams:
            if each.dies_at == len(self.starts):
                each.lives = False
        slots = StartSlots(self.slots, {each.name: each.cursor for each in self.streams}, "a boot", self.starting())
        started = list[Machine]()
        for each in self.streams:
            seen = SupervisorObservation(head=each.head, pulse=each.pulse(), runs=each.runs(), request=each.request)
            decision = decide_supervision(
                seen,
                each.cursor,
                self.now,
                boot="a boot",
                may_start=slots.may_start(each.name, has_written=seen.has_written),
            )
            each.cursor = decision.cursor
            slots.note(each.name, decision.cursor)
            if decision.start is not None:
                each.launch()
                started.append(each)
        self.look_for_topics()
        assert len({each.name for each in self.streams if each.comes is not None and each.batch}) <= self.slots
        self.starts.append(started)
        for each in self.streams:
            each.pass_time()

    def look_for_topics(self) -> None:
        for each in self.streams:
            starting = self.starting()
            seen = SensorObservation(
                head=each.head,
                wanted=frozenset({"t"}) if each.wants_topics else frozenset(),
                pulse=each.pulse(),
                on_its_way="a run" if each.name in starting else None,
                may_start=len(starting - {each.name}) < self.slots,
            )
            before = each.launched
            decision = decide_restart(seen, each.restart, self.now)
            each.restart = decision.cursor
            if decision.restart is not None:
                assert each.comes is None, "a second start beside one under way"
                assert len(starting) < self.slots
                each.launch()
                each.lives = False
                assert each.launched == before + 1


@settings(max_examples=scale_examples(150), deadline=None)
@given(streams=machines(), slots=st.integers(1, 3), ticks=st.integers(1, 20))
def test_starts_take_turns_and_all_that_are_wanted_come_to_run(streams: list[Machine], slots: int, ticks: int) -> None:
    supervision = Supervision(streams, slots)
    wanted = {each.name for each in streams if each.is_wanted}
    left_alone = {each.name for each in streams if not each.is_wanted}
    for _ in range(ticks):
        supervision.tick()
    for each in streams:
        each.wants_topics = False
    for _ in range(POLLS + len(streams) * 25 + int(LAUNCH_SECONDS_MAX / TICK_SECONDS)):
        supervision.tick()
    assert {each.name for each in streams if each.lives} == wanted
    assert all(each.launched == 0 for each in streams if each.name in left_alone)


def find_start_times(streams: list[Machine], slots: int) -> dict[str, float]:
    """Return when each wanted stream starts, in seconds."""
    supervision = Supervision([copy.deepcopy(each) for each in streams], slots)
    found = dict[str, float]()
    while len(found) < len([each for each in streams if each.is_wanted]):
        supervision.tick()
        found |= {each.name: supervision.now for each in supervision.starts[-1]}
        assert supervision.now < 1_000 + TICK_SECONDS * (POLLS + 25 * (len(streams) + 2))
    return found


@settings(max_examples=scale_examples(100), deadline=None)
@given(streams=machines(), slots=st.integers(1, 3))
def test_first_starts_hold_up_no_stream_that_has_written(streams: list[Machine], slots: int) -> None:
    """After a reboot all streams are due at the same poll, in any order of their declarations."""
    for each in streams:
        each.wants_topics = False
    ran = [each for each in streams if each.is_wanted and each.batch]
    alone = find_start_times(ran, slots)
    together = find_start_times(streams, slots)
    assert {name: together[name] for name in alone} == alone


@given(
    version=st.integers(0, 9),
    desired=st.sampled_from(Desired),
    head_version=st.integers(0, 9),
    epoch=st.integers(0, 3),
)
def test_a_request_holds_until_an_operator_or_a_claim_has_said_otherwise(
    version: int, desired: Desired, head_version: int, epoch: int
) -> None:
    head = Head(stream="s", cluster_id="c", epoch=epoch, desired=desired, desired_version=head_version)
    request = StartRequest("me", version)
    holds = request.holds(head)
    assert holds == (version == head_version and (desired is Desired.BOUNDED or epoch == 0))
    assert request.holds(None) == (version == 0)
    assert not (holds and epoch and desired in {Desired.HALTED, Desired.HELD, Desired.STOPPED})
    assert msgspec.json.decode(msgspec.json.encode(request), type=StartRequest) == request
