"""`make up`: a slow part ends no other part, each part is reported, and the next `make up` completes it."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.control.heartbeat import HeartbeatRecord, Phase
from lockstep.control.start_request import read_start_request
from lockstep.errors import LockstepError
from lockstep.features.localdev import platform as local_platform
from lockstep.features.localdev import stream_starts
from lockstep.features.localdev.local_platform import KEEPER, LocalPlatform
from lockstep.features.localdev.platform import open_live_platform, start_platform
from lockstep.features.localdev.processes import MARK, list_platform_processes, stop_all
from lockstep.features.localdev.stream_starts import PATIENCE_SECONDS, PROGRESS_SECONDS, StreamState, await_streams
from lockstep.table.layout import StreamFolders

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

SLEEP = ["python", "-c", "import time; time.sleep(600)"]
NEVER = 1e9


class Clock:
    """A clock that only sleep advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowStream:
    """A stream that writes after a time, and whose runs may fail before."""

    def __init__(self, clock: Clock, begins_at: float, fails_at: float, *, wrote: bool) -> None:
        self.clock = clock
        self.begins_at = begins_at
        self.fails_at = fails_at
        self.wrote = wrote

    def look(self) -> StreamState:
        old = HeartbeatRecord(7, Phase.WRITING) if self.wrote else None
        failure = "run 1: no Java" if self.clock.now >= self.fails_at else ""
        if self.clock.now < self.begins_at:
            return StreamState(3 if self.wrote else 0, old, failure)
        return StreamState(4, HeartbeatRecord(int(self.clock.now * 10), Phase.WRITING), failure)


STARTS = st.lists(
    st.tuples(st.floats(0, 3 * PATIENCE_SECONDS) | st.just(NEVER), st.floats(0, 900) | st.just(NEVER), st.booleans()),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(starts=STARTS)
def test_each_stream_is_waited_for_at_the_same_time_and_reported(starts: list[tuple[float, float, bool]]) -> None:
    """Waits in sequence would take 300 s each without a line, and the last timeout would end all streams."""
    clock = Clock()
    streams = {
        f"s{n}": SlowStream(clock, begins, fails, wrote=wrote) for n, (begins, fails, wrote) in enumerate(starts)
    }
    lines = list[tuple[float, str]]()
    late = ""
    try:
        for line in await_streams(list(streams), lambda n: streams[n].look(), clock=clock, sleep=clock.sleep):
            lines.append((clock.now, line))
    except LockstepError as error:
        late = error.problem
    writing = {line.removesuffix(" writes") for _, line in lines if line.endswith(" writes")}
    left = streams.keys() - writing
    assert bool(left) is bool(late)
    assert all(name in late for name in left)
    assert all(streams[name].begins_at > clock.now - PATIENCE_SECONDS for name in left)
    if late:
        assert f"did not write within {PATIENCE_SECONDS:g} s" in late
        assert all(streams[name].begins_at >= clock.now - stream_starts.POLL_SECONDS for name in left)
    for name in writing:
        at = next(at for at, line in lines if line == f"{name} writes")
        assert 0 <= at - streams[name].begins_at <= 3 * stream_starts.POLL_SECONDS
    told = [0.0, *(at for at, _ in lines), clock.now]
    longest = max(later - earlier for earlier, later in itertools.pairwise(told))
    assert longest <= PROGRESS_SECONDS + 2 * stream_starts.POLL_SECONDS


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPlatform]:
    """The platform of a repository with three streams, whose servers are sleeping processes."""
    platform = open_live_platform(tmp_path)

    def start_servers(of: LocalPlatform, speed: float) -> Iterator[str]:
        os.environ[MARK] = str(of.folder)
        yield f"starting with {speed:g}"
        for folder in ("logs", "tables"):
            (of.folder / folder).mkdir(parents=True, exist_ok=True)
        for name in ("kafka", "code", "daemon"):
            of.ensure(name, lambda: SLEEP)

    started = list[subprocess.Popen[bytes]]()
    start = LocalPlatform.start

    def keep(of: LocalPlatform, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        started.append(start(of, name, command))
        return started[-1]

    monkeypatch.setattr(LocalPlatform, "start", keep)
    monkeypatch.setenv(MARK, "")
    monkeypatch.setattr(local_platform, "start_servers", start_servers)
    monkeypatch.setattr(local_platform, "find_streams", lambda _: {name: Named(name) for name in ("a", "b", "c")})
    monkeypatch.setattr(stream_starts, "POLL_SECONDS", 0.01)
    yield platform
    platform.end(KEEPER)
    stop_all(platform.folder, (), ())
    for process in started:
        process.wait()


class Named:
    """A declaration with only a name."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.usefixtures("own_signals")
def test_a_slow_stream_ends_nothing_and_the_next_up_completes_it(
    live: LocalPlatform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writing = {"a", "b"}
    counter = iter(range(1_000_000))

    def look(_: LocalPlatform, stream: str) -> StreamState:
        pulse = HeartbeatRecord(next(counter), Phase.WRITING) if stream in writing else None
        return StreamState(1 if pulse else 0, pulse)

    monkeypatch.setattr(local_platform, "_look", look)
    monkeypatch.setattr(stream_starts, "PATIENCE_SECONDS", 5.0)
    with pytest.raises(LockstepError, match="c did not write within"):
        start_platform(live.repository, 30)
    said = capsys.readouterr().out
    assert "a writes" in said
    assert "b writes" in said
    assert "left running: kafka, code, daemon, keeper; make up completes it" in said
    before = live.servers().started
    assert live.servers().dead() == ()
    assert KEEPER in before
    for stream in ("a", "b", "c"):  # their supervisors start them even if no command waits any more
        assert read_start_request(StreamFolders(stream, live.tables), None) is not None

    os.kill(before["code"].pid, signal.SIGKILL)  # the slow machine has also lost a server
    os.kill(before[KEEPER].pid, signal.SIGKILL)
    while set(live.servers().dead()) < {"code", KEEPER}:
        time.sleep(0.01)
    writing.add("c")
    start_platform(live.repository, 30)
    said = capsys.readouterr().out
    assert "c writes" in said
    assert "up after" in said
    after = live.servers().started
    assert live.servers().dead() == ()
    assert {name for name in before if before[name] == after[name]} == {"kafka", "daemon"}

    start_platform(live.repository, 30)
    assert "it is up already" in capsys.readouterr().out
    assert live.servers().started == after


@pytest.mark.usefixtures("own_signals")
def test_up_starts_a_server_again_that_was_ended_by_name(
    live: LocalPlatform, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counter = iter(range(1_000_000))
    pulse = partial(HeartbeatRecord, phase=Phase.WRITING)
    monkeypatch.setattr(local_platform, "_look", lambda _, __: StreamState(1, pulse(next(counter))))
    start_platform(live.repository, 30)
    live.end("daemon")
    start_platform(live.repository, 30)
    assert "it is up already" not in capsys.readouterr().out
    assert live.is_running("daemon")


@pytest.mark.usefixtures("own_signals")
def test_an_interrupt_while_streams_of_a_running_platform_start_ends_nothing(
    live: LocalPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_platform, "_look", lambda _, __: StreamState(0))
    monkeypatch.setattr(stream_starts, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(LockstepError):
        start_platform(live.repository, 30)
    before = live.servers().started

    def interrupt(_: LocalPlatform, __: str) -> StreamState:
        raise KeyboardInterrupt

    monkeypatch.setattr(local_platform, "_look", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start_platform(live.repository, 30)
    assert live.servers().started == before
    assert live.servers().dead() == ()
    assert list_platform_processes(live.folder)
