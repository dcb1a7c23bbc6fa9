"""Eight streams in one host with a real Kafka: kills, halts, stops and restarts of a stream leave the others whole."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from lockstep.control.handover import StopRequest
from lockstep.errors import LockstepError
from lockstep.features.host.keeper import POLL_SECONDS
from lockstep.features.host.start import start_group, start_in_host
from lockstep.integrity.resume_options import suggest_option
from lockstep.operations.lifecycle import stop_stream
from lockstep.operations.resume import resume_stream
from lockstep.table.head import Desired
from tests.features.host.hanging import ENDED, HANG, RELEASE
from tests.features.host.hosted import HANGING, WAIT_SECONDS, Hosted
from tests.support.feed import session, update
from tests.support.installation import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.feed import Feed


STREAMS = 8
HALTED = 0
STOPPED = 1
OTHERS = range(2, STREAMS)
WHY = StopRequest("the disk is changed", "an operator")
TERMINATED = StopRequest("host default terminated in Dagster", "an operator")
WITH_HOST = 2


def read_desired(hosted: Hosted, number: int) -> Desired | None:
    head = hosted.head(number)
    return None if head is None else head.desired


def read_epoch(hosted: Hosted, number: int) -> int:
    head = hosted.head(number)
    return 0 if head is None else head.epoch


def halt_one(hosted: Hosted) -> None:
    """Halt one stream by a gap; the others continue."""
    hosted.feed.send(f"{hosted.feed.family}.{HALTED}", [update(1_000, a=1)])
    wait_until(lambda: read_desired(hosted, HALTED) is Desired.HALTED, "the halt", WAIT_SECONDS)
    for number in hosted.numbers[1:]:
        hosted.send_updates(number, 3)
    hosted.wait_until_whole(*hosted.numbers[1:])
    assert [read_desired(hosted, number) for number in hosted.numbers[1:]] == [Desired.RUNNING] * (STREAMS - 1)


def restart_stopped(hosted: Hosted) -> None:
    """Stop a stream, and start it by a request to the host, which claims a new epoch in the same process."""
    folders = hosted.runs(STOPPED).folders
    epoch = read_epoch(hosted, STOPPED)
    assert stop_stream(folders, WHY, patience_seconds=60).ended_by == "the writer"
    hosted.send_updates(STOPPED, 2)
    hosted.send_updates(OTHERS[0], 2)
    hosted.wait_until_whole(OTHERS[0])
    assert not hosted.is_whole(STOPPED)
    runs = hosted.runs(STOPPED)
    started = start_in_host(runs.stream, runs.settings, "an operator")
    assert started is not None
    assert not started.was_running
    hosted.wait_until_whole(STOPPED)
    again = start_in_host(runs.stream, runs.settings, "an operator")
    assert again is not None
    assert (again.epoch, again.was_running) == (started.epoch, True)
    assert read_epoch(hosted, STOPPED) > epoch + 1


def restart_group(hosted: Hosted) -> None:
    """Start the group: only the streams stopped with its host start."""
    stop_stream(hosted.runs(STOPPED).folders, WHY, patience_seconds=60)
    stop_stream(hosted.runs(WITH_HOST).folders, TERMINATED, patience_seconds=60)
    runs = hosted.runs(WITH_HOST)
    streams = [hosted.runs(number).stream for number in hosted.numbers]
    with pytest.raises(LockstepError, match="no host of the group others runs"):
        start_group("others", streams, runs.settings, "an operator")
    started = start_group("default", streams, runs.settings, "an operator")
    assert [each.stream for each in started] == [runs.stream.name]
    assert read_desired(hosted, STOPPED) is Desired.STOPPED
    with pytest.raises(LockstepError, match="no stream of the group default was stopped with its host"):
        start_group("default", streams, runs.settings, "an operator")
    start_in_host(hosted.runs(STOPPED).stream, runs.settings, "an operator")


def resume_halted(hosted: Hosted) -> None:
    """Resume a halted stream, which then starts again."""
    folders = hosted.runs(HALTED).folders
    head = hosted.head(HALTED)
    assert head is not None
    options = [suggest_option(finding) for finding in head.findings]
    resume_stream(folders, why="the producer lost it", who="an operator", accepted=options)
    epoch = read_epoch(hosted, HALTED)
    wait_until(lambda: read_epoch(hosted, HALTED) > epoch, "the start after the resumption", WAIT_SECONDS)
    assert read_desired(hosted, HALTED) is Desired.RUNNING


def replace_hanging(hosted: Hosted) -> None:
    """Let a commit hang: another thread continues the stream, and the epoch later refuses the commit."""
    epoch = read_epoch(hosted, HANGING)
    (hosted.folder / HANG).touch()
    for number in OTHERS:
        hosted.send_updates(number, 3)
    hosted.wait_until_whole(*OTHERS)
    assert read_epoch(hosted, HANGING) > epoch
    (hosted.folder / RELEASE).touch()
    wait_until((hosted.folder / ENDED).exists, "the end of the old thread", WAIT_SECONDS)
    assert (hosted.folder / ENDED).read_text() == "Fenced"
    hosted.send_updates(HANGING, 3)
    hosted.wait_until_whole(HANGING)


def test_eight_streams_in_one_host_stay_whole_over_a_kill_a_halt_a_stop_a_hang_and_a_resumption(
    feed: Feed, tmp_path: Path
) -> None:
    hosted = Hosted.make(feed, tmp_path, STREAMS)
    for number in hosted.numbers:
        hosted.send(number, *session(5))
    with hosted.host() as first:
        hosted.wait_until_whole(*hosted.numbers)
        for number in hosted.numbers:
            hosted.send_updates(number, 200)
        wait_until(lambda: any(map(hosted.is_whole, hosted.numbers)), "a stream ahead of the others", WAIT_SECONDS)
        for number in hosted.numbers:
            hosted.send_updates(number, 200)
        first.kill()
    with hosted.host() as second:
        hosted.wait_until_whole(*hosted.numbers)
        assert {read_epoch(hosted, number) for number in hosted.numbers} == {2}
        halt_one(hosted)
        restart_stopped(hosted)
        restart_group(hosted)
        replace_hanging(hosted)
        resume_halted(hosted)
        output = second.stop()
    assert "ended (SIGTERM), 8 streams" in output
    assert {read_desired(hosted, number) for number in hosted.numbers} == {Desired.RUNNING}
    for number in hosted.numbers:
        hosted.prove(number)


def test_a_second_host_takes_the_streams_and_the_first_has_them_again_after_its_kill(
    feed: Feed, tmp_path: Path
) -> None:
    hosted = Hosted.make(feed, tmp_path, 3)
    for number in hosted.numbers:
        hosted.send(number, *session(5))
    with hosted.host() as first:
        hosted.wait_until_whole(*hosted.numbers)
        with hosted.host() as second:
            for number in hosted.numbers:
                wait_until(lambda: read_epoch(hosted, number) == 2, "the handover", WAIT_SECONDS)  # noqa: B023  # called here
            for number in hosted.numbers:
                hosted.send_updates(number, 50)
            hosted.wait_until_whole(*hosted.numbers)
            time.sleep(5 * POLL_SECONDS)  # the first host reads the heads meanwhile, and leaves the streams
            assert {read_epoch(hosted, number) for number in hosted.numbers} == {2}
            second.kill()
        for number in hosted.numbers:
            hosted.send_updates(number, 50)
        hosted.wait_until_whole(*hosted.numbers)
        assert {read_epoch(hosted, number) for number in hosted.numbers} == {3}
        first.stop()
    for number in hosted.numbers:
        hosted.prove(number)
