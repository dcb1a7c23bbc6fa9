"""Makes a release current: plans each stream with its code, switches, and replaces the runs.

A switch changes only the choice of the code. Each run chooses its code at its start, so a kill between the switch and
the last handover leaves runs of the code before; the repeated command replaces the remaining runs.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from lockstep.control.heartbeat import WriterState, find_writer, read_heartbeat
from lockstep.declare.discovery import load_streams
from lockstep.errors import EnvironmentProblem, LockstepError
from lockstep.features.deploy.releases import (
    ReleaseUnusable,
    Switch,
    choose_release,
    describe_choice,
    list_switches,
    name_release,
    open_release,
    read_current,
)
from lockstep.model.code_version import CodeVersion
from lockstep.operations.inspect.plan import plan_restart
from lockstep.operations.inspect.undeclared import find_undeclared_tables
from lockstep.operations.stream_table import try_read_head
from lockstep.table.layout import StreamFolders
from lockstep.time_limit import run_command
from lockstep.user_code.pin import copy_code

if TYPE_CHECKING:
    from lockstep.declare.stream import AnyStream
    from lockstep.settings import Settings

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,59}")
VALIDATE_SECONDS_MAX = 300.0


class TakeoverKind(Enum):
    """Outcome for the run of a stream."""

    HANDED_OVER = "handed over"
    SAME_CODE = "runs this code"
    NOT_RUNNING = "does not run"
    BOUNDED = "ends by itself"
    ELSEWHERE = "runs outside of Dagster"
    FAILED = "not handed over"


class StreamPlan(msgspec.Struct, frozen=True):
    """The plan for one stream.

    Attributes:
        stream: Its name.
        refused: Why a run with the new code would not start; empty if it would.
        next_step: The remedy.
        changes: Changes of table and state by the new code.
    """

    stream: str
    refused: str
    next_step: str
    changes: tuple[str, ...]


class StreamTakeover(msgspec.Struct, frozen=True):
    """The run of one stream after the switch.

    Attributes:
        stream: Its name.
        takeover: The outcome.
        detail: The epoch, or the reason.
    """

    stream: str
    takeover: TakeoverKind
    detail: str


class DeployPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the code, before the switch.

    Attributes:
        release: Name of the release; empty for the working folder.
        code: Its version.
        before: Name of the current release; empty for the working folder.
        streams: The plan for each stream.
    """

    release: str
    code: CodeVersion
    before: str
    streams: tuple[StreamPlan, ...]

    @property
    def is_refused(self) -> bool:
        """Whether a run of a stream would be refused."""
        return any(stream.refused for stream in self.streams)


class DeployResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result.

    Attributes:
        plan: The plan.
        streams: The run of each stream.
    """

    plan: DeployPlan
    streams: tuple[StreamTakeover, ...]

    @property
    def is_whole(self) -> bool:
        """Whether each run that could be handed over was."""
        return all(each.takeover is not TakeoverKind.FAILED for each in self.streams)


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A planned change of the code.

    Attributes:
        plan: The plan.
        seen: The newest choice when it was planned.
        declared: The streams of the new code.
    """

    plan: DeployPlan
    seen: Switch
    declared: tuple[AnyStream, ...]


def refuse_name(name: str) -> None:
    """Refuse a name that is not one of a release.

    Raises:
        ReleaseUnusable: Names the rule.
    """
    if not NAME.fullmatch(name):
        rule = "a name has small letters, digits, dots, dashes and underscores, and starts with a letter or digit"
        raise ReleaseUnusable(repr(name), rule, "for example: lockstep deploy 2026-11-30")


def make_name() -> str:
    """A name from the time of now, UTC."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}"


def prepare_release(folder: Path, settings: Settings, name: str) -> Deployment:
    """Copy the code of the working folder, and plan each stream with it.

    Args:
        folder: The working folder.
        settings: The tables and the code root.
        name: Name of the release; empty to run the working folder itself.

    Raises:
        CodeUnusable: The code cannot be copied.
        EnvironmentProblem: Dagster cannot load its definitions.
        KafkaError: Kafka does not answer.
    """
    _require_shared(settings)
    root = settings.find_code_root()
    seen = read_current(root)
    copy, version = copy_code(folder, root, settings.list_data_folders())
    version = msgspec.structs.replace(version, release=name)
    return _plan(copy, version, seen, settings, folder)


def prepare_return(folder: Path, settings: Settings, name: str) -> Deployment:
    """Plan each stream with the code of an earlier release.

    Args:
        folder: The working folder.
        settings: The tables and the code root.
        name: Name of the release; empty for the choice before the current one.

    Raises:
        ReleaseUnusable: The release does not exist, or no release was current before.
        EnvironmentProblem, KafkaError: As `prepare_release`.
    """
    _require_shared(settings)
    root = settings.find_code_root()
    switches = list_switches(root)
    seen = switches[-1]
    if not name:
        if seen.number == 0:
            raise ReleaseUnusable("", "no release was current before", "lockstep deploy NAME makes one")
        name = next(each.release for each in reversed(switches) if each.release != seen.release)
    if not name:
        return prepare_release(folder, settings, "")
    copy, version = open_release(root, name)
    return _plan(copy, version, seen, settings, folder)


def _require_shared(settings: Settings) -> None:
    if not settings.has_shared_code:
        raise EnvironmentProblem(
            f"the workers of {settings.spark.master} may not see {settings.find_code_root()}",
            next_step="set code_root to a folder that all machines share (docs/cluster.md)",
        )


def _plan(copy: Path, version: CodeVersion, seen: Switch, settings: Settings, folder: Path) -> Deployment:
    _check_definitions(copy, folder)
    declared = tuple(load_streams(str(copy)).values())
    streams = (*(_plan_stream(stream, settings) for stream in declared), *_plan_undeclared(declared, settings))
    plan = DeployPlan(release=version.release, code=version, before=seen.release, streams=streams)
    return Deployment(plan=plan, seen=seen, declared=declared)


def _check_definitions(copy: Path, folder: Path) -> None:
    """Let Dagster load the definitions of the copy, as each run does.

    Raises:
        EnvironmentProblem: It cannot.
    """
    # A project without Dagster has nothing to load.
    if not (copy / "definitions.py").exists():
        return
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-m", "definitions", "-d", str(copy)]
    try:
        output = run_command(command, "dagster definitions validate", VALIDATE_SECONDS_MAX, folder=folder)
    except TimeoutError as late:
        raise EnvironmentProblem(str(late), next_step="repeat the command when the machine is less busy") from late
    if output.returncode != 0:
        # The last line of Python's frames is the error.
        lines = output.stderr.strip().splitlines()
        cause = lines[-1] if lines else "no reason given"
        problem = f"Dagster cannot load definitions.py: {cause}"
        raise EnvironmentProblem(problem, next_step="dagster definitions validate -w workspace.yaml shows the frames")


def _plan_stream(stream: AnyStream, settings: Settings) -> StreamPlan:
    if try_read_head(StreamFolders(stream.name, settings.table_root)) is None:
        return StreamPlan(stream.name, "", "", ("first start",))
    restart = plan_restart(stream, settings)
    if _is_stopped_by_operator(stream, settings):
        return StreamPlan(stream.name, "", "", ("a halted or held stream stays so", *restart.changes))
    return StreamPlan(stream.name, restart.refused, restart.next_step, restart.changes)


def _is_stopped_by_operator(stream: AnyStream, settings: Settings) -> bool:
    """Whether no run of the stream starts until an operator does something: the new code does not cause its refusal."""
    head = try_read_head(StreamFolders(stream.name, settings.table_root))
    return head is not None and head.desired.value in {"halted", "held"}


def _plan_undeclared(declared: Sequence[AnyStream], settings: Settings) -> Iterator[StreamPlan]:
    """Streams that run and that the new code does not declare."""
    for table in find_undeclared_tables({stream.name for stream in declared}, settings.table_root):
        if table.is_live:
            problem = "it runs, and the new code does not declare it"
            yield StreamPlan(table.name, problem, f"lockstep stop {table.name}, or declare it", ())


def run_deployment(
    deployment: Deployment, settings: Settings, folder: Path, who: str, report: Callable[[str], None]
) -> DeployResult:
    """Name the release, make it current, and hand over the runs of other code.

    Args:
        deployment: The plan.
        settings: The tables and the code root.
        folder: The working folder, with the workspace.
        who: The user.
        report: Receives progress lines.

    Raises:
        ReleaseUnusable: The name is taken, or another command has chosen a release since the plan.
    """
    plan = deployment.plan
    root = settings.find_code_root()
    if plan.release:
        name_release(root, plan.release, plan.code, who)
    if plan.release != plan.before:
        choose_release(root, deployment.seen, plan.release, who)
    elif read_current(root) != deployment.seen:
        raise ReleaseUnusable(plan.release, "another command chose a release meanwhile", "lockstep deploy --list")
    cause = f"lockstep deploy: {describe_choice(plan.release)} ({who})"
    handover = _Handover(deployment, settings, folder, cause, report)
    return DeployResult(plan=plan, streams=tuple(map(handover.take_over, deployment.declared)))


class _Handover:
    """Replaces the runs of other code, one after another; a start takes a core."""

    def __init__(
        self, deployment: Deployment, settings: Settings, folder: Path, cause: str, report: Callable[[str], None]
    ) -> None:
        self._code = deployment.plan.code
        self._settings = settings
        self._folder = folder
        self._cause = cause
        self._report = report
        self._launched = dict[str, str]()

    def take_over(self, stream: AnyStream) -> StreamTakeover:
        folders = StreamFolders(stream.name, self._settings.table_root)
        head = try_read_head(folders)
        if head is None or find_writer(folders.control, head.epoch) is not WriterState.WRITING:
            return StreamTakeover(stream.name, TakeoverKind.NOT_RUNNING, self._describe_next(stream))
        if head.code_version is not None and head.code_version.digest == self._code.digest:
            return StreamTakeover(stream.name, TakeoverKind.SAME_CODE, f"epoch {head.epoch}")
        last = read_heartbeat(folders.control, head.epoch)
        if last is None or not last.never_ending:
            return StreamTakeover(stream.name, TakeoverKind.BOUNDED, "its next run has this code")
        try:
            return self._launch(stream, folders, head.epoch, last.run_id)
        except LockstepError as error:
            return StreamTakeover(stream.name, TakeoverKind.FAILED, f"{error.problem}; next: {error.next_step}")

    def _describe_next(self, stream: AnyStream) -> str:
        if stream.host_group in self._settings.dagster.hosts:  # a host that lives starts it with the code of the host
            return f"its next host has this code: launch host_{stream.host_group} if that runs, then resume or start it"
        return "its next run has this code; if a run is about to write, repeat the command"

    def _launch(self, stream: AnyStream, folders: StreamFolders, epoch: int, run_id: str) -> StreamTakeover:
        from lockstep.features.deploy.handover import await_successor, find_run_job  # loads Dagster
        from lockstep.orchestration.launch import start_job
        from lockstep.orchestration.names import LOCKSTEP_START, make_automatic_tags

        job = find_run_job(stream, self._settings, run_id)
        if job is None:
            return StreamTakeover(stream.name, TakeoverKind.ELSEWHERE, "end its process, and start it again")
        if job not in self._launched:  # a host has several streams
            self._report(f"{stream.name}: a run of {describe_choice(self._code.release)} is launched")
            self._launched[job] = str(uuid.uuid4())
            tags = make_automatic_tags(LOCKSTEP_START, self._cause, epoch)
            start_job(stream, job, self._launched[job], tags, self._folder)
        successor = await_successor(stream, folders, self._launched[job], epoch)
        return StreamTakeover(stream.name, TakeoverKind.HANDED_OVER, f"epoch {successor}")
