"""Injects the faults of a game day into a local platform, on processes that it started itself.

Processes are found by the platform's records (pid and start time) and by the heartbeats of the runs in its own
tables, never by name alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

import psutil

from lockstep.control.heartbeat import is_process_alive, read_heartbeat, read_run_heartbeats
from lockstep.declare.stream import AnyStream
from lockstep.errors import LockstepError
from lockstep.features.localdev.local_platform import LocalPlatform, find_tool
from lockstep.features.localdev.producer import produce
from lockstep.features.localdev.recordings import Recorded
from lockstep.features.rehearsal.fault_plan import FaultKind, PlannedFault
from lockstep.model.position import TopicIdPartition
from lockstep.operations.stream_handle import StreamHandle
from lockstep.operations.stream_table import try_read_head
from lockstep.settings import Settings
from lockstep.table.head import Desired
from lockstep.table.layout import StreamFolders
from lockstep.time_limit import SLOW, describe_silence, run_command

COMMAND_SECONDS_MAX = 300.0
PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.5
NEW_TOPIC_MESSAGES = 200
POISON = b"\x00 a message that no decoder accepts"


class FreshMessage:
    """A message of now."""

    def __init__(self, key: bytes, value: bytes) -> None:
        self.key: bytes | None = key
        self.value: bytes | None = value
        self.timestamp_ms = time.time_ns() // 1_000_000


def _find_writing_process(folders: StreamFolders) -> psutil.Process | None:
    """The process of the run that writes a stream; None if none is seen."""
    head = try_read_head(folders)
    if head is None:
        return None
    beat = read_heartbeat(folders.control, head.epoch)
    if beat is None:
        return None
    pulse = read_run_heartbeats(folders.control).get(beat.run_id)
    if pulse is None or pulse.process is None or not is_process_alive(pulse.process):
        return None
    return psutil.Process(pulse.process.pid)


def _is_python_worker(process: psutil.Process) -> bool:
    return process.name() != "java" and "pyspark" in " ".join(process.cmdline())


@dataclass
class FaultInjector:
    """Injects one fault after another.

    Attributes:
        platform: The platform.
        settings: Settings of its streams.
        streams: Its streams by name.
        recordings: Recorded messages by topic, for new topics.
        seed: Distinguishes the sessions and topics of this game day.
    """

    platform: LocalPlatform
    settings: Settings
    streams: Mapping[str, AnyStream]
    recordings: Mapping[str, Sequence[Recorded]]
    seed: int
    _faults: dict[FaultKind, Callable[[PlannedFault], str]] = field(init=False)

    def __post_init__(self) -> None:
        """Each kind has its function."""
        self._faults = {
            FaultKind.RUN_KILLED: lambda fault: self._kill("run", self._run_of(fault.stream)),
            FaultKind.JVM_KILLED: lambda fault: self._kill("JVM", self._jvm_of(fault.stream)),
            FaultKind.WORKER_KILLED: lambda fault: self._kill("Python worker", self._worker_of(fault.stream)),
            FaultKind.RUN_PAUSED: lambda fault: self._pause("run", self._run_of(fault.stream), fault.outage_seconds),
            FaultKind.CODE_SERVER_KILLED: lambda _: self._restart_server("code"),
            FaultKind.DAEMON_KILLED: lambda _: self._restart_server("daemon"),
            FaultKind.BROKER_STOPPED: lambda fault: self._end_broker(signal.SIGTERM, fault.outage_seconds),
            FaultKind.BROKER_KILLED: lambda fault: self._end_broker(signal.SIGKILL, fault.outage_seconds),
            FaultKind.BROKER_PAUSED: lambda fault: self._pause("broker", self._server("kafka"), fault.outage_seconds),
            FaultKind.TOPIC_ADDED: self._add_topic,
            FaultKind.POISON_MESSAGE: self._send_poison,
            FaultKind.MAINTENANCE: self._maintain,
        }

    def inject(self, fault: PlannedFault) -> str:
        """Inject a fault and end it; what should recover by itself is left to recover.

        Returns:
            A description of the fault.

        Raises:
            LockstepError: It could not be done, or a command of an operator failed.
        """
        return self._faults[fault.kind](fault)

    def run_command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `lockstep` command in the platform's environment."""
        try:
            return run_command(
                [find_tool("lockstep"), *arguments],
                f"lockstep {' '.join(arguments[:2])}",
                COMMAND_SECONDS_MAX,
                folder=self.platform.repository,
                environment={**os.environ, **self.platform.environment()},
            )
        except TimeoutError as late:
            raise LockstepError(str(late), next_step=f"{SLOW}: run the game day with less other work") from late

    def _server(self, name: str) -> psutil.Process:
        pids = self.platform.servers().pids(name)
        if not pids:
            raise LockstepError(f"{name} of the platform does not run", next_step=f"read {self.platform.log(name)}")
        return psutil.Process(pids[0])

    def _run_of(self, stream: str) -> psutil.Process:
        """The driver of a stream, by the heartbeat of its writer."""
        folders = StreamFolders(stream, self.platform.tables)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            process = _find_writing_process(folders)
            if process is not None:
                return process
            time.sleep(POLL_SECONDS)
        silence = describe_silence(f"stream {stream}", PATIENCE_SECONDS, verb="show a run that sends heartbeats")
        raise LockstepError(silence, next_step=f"{SLOW}; else read {self.platform.log('code')}")

    def _jvm_of(self, stream: str) -> psutil.Process:
        return self._below(stream, "JVM", lambda process: process.name() == "java")

    def _worker_of(self, stream: str) -> psutil.Process:
        return self._below(stream, "Python worker", _is_python_worker)

    def _below(self, stream: str, what: str, is_chosen: Callable[[psutil.Process], bool]) -> psutil.Process:
        """The last of the processes of a run that are of a kind: of the workers one, not their daemon."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            chosen: list[psutil.Process] = []
            for process in self._run_of(stream).children(recursive=True):
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    if is_chosen(process):
                        chosen.append(process)
            if chosen:
                return chosen[-1]
            time.sleep(POLL_SECONDS)
        silence = describe_silence(f"the run of {stream}", PATIENCE_SECONDS, verb=f"start a {what}")
        raise LockstepError(silence, next_step=f"{SLOW}; else read {self.platform.log('code')}")

    @staticmethod
    def _kill(what: str, process: psutil.Process) -> str:
        process.kill()
        return f"killed the {what} (pid {process.pid})"

    @staticmethod
    def _pause(what: str, process: psutil.Process, seconds: float) -> str:
        process.suspend()
        try:
            time.sleep(seconds)
        finally:
            process.resume()
        return f"paused the {what} (pid {process.pid}) for {seconds:g} s"

    def _restart_server(self, name: str) -> str:
        """Kill a server and start it again with the same arguments, as a process manager does."""
        process = self._server(name)
        arguments = process.cmdline()[1:]
        process.kill()
        psutil.wait_procs([process], timeout=PATIENCE_SECONDS)
        self.platform.start(name, ["python", *arguments])
        return f"killed {name} (pid {process.pid}), started it again"

    def _end_broker(self, number: signal.Signals, seconds: float) -> str:
        process = self._server("kafka")
        process.send_signal(number)
        psutil.wait_procs([process], timeout=PATIENCE_SECONDS)
        time.sleep(seconds)
        self.platform.restart_kafka()
        return f"sent {number.name} to the broker (pid {process.pid}), started it again after {seconds:g} s"

    def _add_topic(self, fault: PlannedFault) -> str:
        """A topic with one session, as the feed would send it."""
        original = self._topic_of(fault.stream)
        topic = f"{original}_game_{self.seed}_{fault.number}"
        session = [
            FreshMessage(f"{message.book}.game.{self.seed}.{fault.number}".encode(), message.value)
            for message in islice(self.recordings[original], NEW_TOPIC_MESSAGES)
        ]
        count = produce(self.settings.kafka, topic, session)
        self._wait(lambda: self._position(fault.stream, topic) >= count, f"topic {topic} is read")
        return f"topic {topic} with {count} messages, read to its end by {fault.stream}"

    def _send_poison(self, fault: PlannedFault) -> str:
        """A message of a separate session; if it halts the stream, an operator resumes it as proposed."""
        topic = self._topic_of(fault.stream)
        key = f"poison.{self.seed}.{fault.number}".encode()
        position_before = self._position(fault.stream, topic)
        produce(self.settings.kafka, topic, [FreshMessage(key, POISON)])
        end = self._end_of(fault.stream, topic)
        self._wait(
            lambda: self._desired(fault.stream) is Desired.HALTED or self._position(fault.stream, topic) >= end,
            f"{fault.stream} has judged the message in {topic}, from {position_before} on",
        )
        if self._desired(fault.stream) is not Desired.HALTED:
            return f"an undecodable message in {topic}; {fault.stream} continued"
        done = self.run_command("resume", fault.stream, "--suggested", "--why", "game day: poison message")
        if done.returncode:
            raise LockstepError(
                f"lockstep resume failed: {done.stderr.strip()}", next_step=f"lockstep status {fault.stream}"
            )
        return f"an undecodable message in {topic} halted {fault.stream}; resumed with --suggested"

    def _maintain(self, fault: PlannedFault) -> str:
        for command in ("close", "compact", "housekeeping"):
            done = self.run_command(command, fault.stream)
            if done.returncode:
                problem = f"lockstep {command} {fault.stream} failed: {done.stderr.strip() or done.stdout.strip()}"
                raise LockstepError(problem, next_step=f"lockstep status {fault.stream}")
        return f"lockstep close, compact and housekeeping of {fault.stream}"

    def _topic_of(self, stream: str) -> str:
        """The first recorded topic of a stream."""
        return min(self.streams[stream].topics.select(self.recordings))

    def _position(self, stream: str, topic: str) -> int:
        rows = self._handle(stream).positions.values()
        return max((row.until for row in rows if row.topic == topic), default=0)

    def _end_of(self, stream: str, topic: str) -> int:
        view = self._handle(stream).view
        return view.ends[TopicIdPartition(view.topics[topic].topic_id, 0)].stable_end

    def _desired(self, stream: str) -> Desired | None:
        head = self._handle(stream).head
        return None if head is None else head.desired

    def _handle(self, stream: str) -> StreamHandle:
        return StreamHandle(self.streams[stream], self.settings)

    def _wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready():
            if time.monotonic() > deadline:
                silence = describe_silence("the platform", PATIENCE_SECONDS, verb=f"get so far: {what},")
                raise LockstepError(silence, next_step=f"{SLOW}; else read {self.platform.folder / 'logs'}")
            time.sleep(POLL_SECONDS)
