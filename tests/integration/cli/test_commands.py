"""Properties of each command: an example that parses, JSON that keeps its struct, exit codes, output to a pipe."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.request import urlopen

import msgspec
import psutil
import pytest
import typer

from lockstep import __version__
from lockstep.cli import control, recover
from lockstep.cli.__main__ import app
from lockstep.cli.app import EXIT_CODES
from lockstep.features.health import commands
from lockstep.integrity.resume_options import IntegrityLost
from lockstep.operations import lifecycle, losses, quarantine, query, repair, show_settings
from lockstep.operations.doctor import doctor
from lockstep.operations.inspect import history, message, plan, state, status, streams, topics
from lockstep.testing import read_messages
from lockstep.testing import run as run_messages
from lockstep.verify.report import VerifyReport
from tests.support.adding_stream import POISON
from tests.support.feed import session, snapshot, update

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.cli.conftest import Platform


def commands_of(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return the commands of a group and its subgroups by the words that call them."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        within = hasattr(command, "commands")
        found |= commands_of(command, f"{prefix}{name} ") if within else {prefix + name: command}
    return found


COMMANDS = commands_of(typer.main.get_command(app))
NAMES = sorted(COMMANDS)
ROOT = Path(__file__).parents[3]

ANSWERS: dict[tuple[str, ...], object] = {
    ("streams",): tuple[streams.DeclaredStream, ...],
    ("status", "adding"): status.Status,
    ("status",): tuple[status.StreamOverview, ...],
    ("topics", "adding"): topics.TopicsOfStream,
    ("history", "adding"): history.History,
    ("plan", "adding"): plan.BatchPreview,
    ("plan", "adding", "--restart"): plan.RestartPreview,
    ("query", "adding"): query.QueryResult,
    ("query", "SELECT max(committed_at), sum(messages) FROM adding_ledger"): query.QueryResult,
    ("state", "adding"): state.SessionStates,
    ("state", "adding", "--session", "a"): state.SessionStates,
    ("positions", "adding"): streams.Positions,
    ("repair", "adding", "--plan"): repair.Repair,
    ("verify", "adding"): VerifyReport,
    ("losses", "adding"): losses.LossList,
    ("quarantine", "list", "adding"): quarantine.QuarantineList,
    ("settings",): show_settings.AllOptions,
    ("doctor",): doctor.Report,
}
"""Read-only commands with the types of their JSON."""


@pytest.mark.parametrize("name", NAMES)
def test_a_command_has_an_example_that_is_itself_and_parses(name: str) -> None:
    command = COMMANDS[name]
    prefix = f"Example: lockstep {name}"
    assert command.epilog is not None
    assert command.epilog.startswith(prefix)
    words = shlex.split(command.epilog.removeprefix(prefix))
    context = command.make_context(name, words)
    assert context.params.keys() == {parameter.name for parameter in command.params}


@pytest.mark.parametrize("name", NAMES)
def test_a_command_says_what_it_does_and_answers_in_json(name: str) -> None:
    assert COMMANDS[name].help
    assert "--json" in {option for parameter in COMMANDS[name].params for option in parameter.opts}


@pytest.mark.parametrize("arguments", ANSWERS, ids=" ".join)
def test_json_is_one_document_that_keeps_its_struct(platform: Platform, arguments: tuple[str, ...]) -> None:
    said = platform.call(*arguments, "--json")
    assert said.exit_code == 0, said.output
    decoded = msgspec.json.decode(said.stdout, type=ANSWERS[arguments])
    assert msgspec.json.encode(decoded).decode() + "\n" == said.stdout


@pytest.mark.parametrize("arguments", [each for each in ANSWERS if "--session" not in each], ids=" ".join)
def test_a_pipe_gets_whole_names_and_no_colours(platform: Platform, arguments: tuple[str, ...]) -> None:
    said = platform.call(*arguments)
    assert said.exit_code == 0, said.output
    assert "\x1b" not in said.stdout
    assert "…" not in said.stdout
    assert all(line == line.rstrip() for line in said.stdout.splitlines())
    if arguments[0] in {"topics", "state", "positions"} or arguments == ("status", "adding"):
        assert f"{platform.feed.family}.values.of.a.topic.with.a.name.that.no.narrow.terminal" in said.stdout


def test_a_terminal_gets_colours_and_whole_names_too(platform: Platform) -> None:
    """At 60 columns a long name wraps over several lines and stays complete."""
    said = on_a_terminal(platform, "positions", "adding")
    name = "values.of.a.topic.with.a.name.that.no.narrow.terminal.shows.in.one.line"
    assert "\x1b[" in said
    assert "…" not in said
    column = "".join(line.split()[0] for line in said.splitlines() if "." in line)
    assert name in column


def test_rows_that_do_not_fit_on_a_terminal_are_shown_with_a_column_a_line(platform: Platform) -> None:
    narrow = on_a_terminal(platform, "query", "SELECT * FROM adding ORDER BY name, total LIMIT 1")
    shown = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", narrow).splitlines() if line.strip()]
    assert shown[:3] == [["name", "a"], ["value", "2"], ["total", "4"]]


def on_a_terminal(platform: Platform, *arguments: str) -> str:
    """Return a command's output on a terminal of 60 columns."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, **platform.environment, "COLUMNS": "60", "TERM": "xterm"}
    command = [sys.executable, "-m", "lockstep.cli", *arguments]
    with subprocess.Popen(command, cwd=platform.folder, env=environment, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        said = b""
        while chunk := read_or_end(ours):
            said += chunk
    os.close(ours)
    assert process.returncode == 0
    return said.decode()


def read_or_end(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # the end of a terminal on Linux
        return b""


@contextmanager
def started(platform: Platform, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """Start a command of lockstep, yield its process and output, and kill it after the test."""
    environment = {**os.environ, **platform.environment}
    command = [sys.executable, "-m", "lockstep.cli", *arguments]
    with subprocess.Popen(command, cwd=platform.folder, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout
        finally:
            process.kill()


def test_a_watch_is_a_document_a_line_and_ctrl_c_is_its_good_end(platform: Platform) -> None:
    with started(platform, "status", "adding", "--watch", "--json") as (process, output):
        looks = [msgspec.json.decode(output.readline(), type=status.Status) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert [look.lag_messages for look in looks] == [1, 1]


def test_metrics_are_served_on_loopback_until_ctrl_c(platform: Platform) -> None:
    with started(platform, "metrics", "--port", "0", "--json") as (process, output):
        exporter = msgspec.json.decode(output.readline(), type=commands.Exporter)
        with urlopen(exporter.address, timeout=60) as answer:  # noqa: S310  # loopback
            served = answer.read().decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    assert exporter.streams == ("adding",)
    assert exporter.address.startswith("http://127.0.0.1:")
    assert 'lockstep_lag_messages{stream="adding"} 1.0' in served


def test_an_unknown_stream_lists_those_that_there_are(platform: Platform) -> None:
    said = platform.call("status", "unknown")
    assert (said.exit_code, said.stdout) == (1, "")
    assert said.stderr == "error: no stream 'unknown' in assets/\nnext: use one of: adding\n"


def test_a_broken_file_of_another_stream_is_named_and_hinders_nobody(fresh: Platform) -> None:
    broken = f"broken_{fresh.feed.family}"
    (fresh.folder / "assets" / f"{broken}.py").write_text("def fold(:\n")
    said = fresh.call("status")
    assert (said.exit_code, "adding" in said.stdout) == (0, True)
    named = f"left out: assets/{broken}.py cannot be imported: SyntaxError: invalid syntax ({broken}.py, line 1)"
    assert said.stderr == f"{named}\nnext: correct assets/{broken}.py; other streams run on\n"


def test_a_stream_whose_file_is_gone_is_named_and_can_be_stopped(fresh: Platform) -> None:
    fresh.feed.send(fresh.feed.create("values"), session(1))
    fresh.runs.run()
    (fresh.folder / "assets" / f"{fresh.feed.family}.py").unlink()
    problem = "there is a table, and no declaration of its stream; it has no living writer"
    assert f"adding: {problem}" in fresh.call("streams").stderr
    said = fresh.call("status")
    assert said.exit_code == 0
    assert said.stdout.splitlines()[1].split()[:3] == ["adding", "bounded", "ended"]
    assert f"adding: {problem}\nnext: declare adding in assets/ again" in said.stdout
    assert "table of adding" in fresh.call("doctor").stdout
    assert f"no stream 'adding' in assets/, but {problem}" in fresh.call("topics", "adding").stderr
    assert "adding: stopped after batch 1" in fresh.call("stop", "adding").stdout
    assert "adding: held after batch 1" in fresh.call("hold", "adding").stdout
    assert fresh.call("stop", "nope").exit_code == 1


def test_a_path_that_is_no_folder_is_named_with_what_to_do(platform: Platform) -> None:
    path = platform.folder / "a-file"
    path.write_text("")
    said = platform.call("backup", "adding", str(path))
    assert said.exit_code == 1
    assert said.stderr.startswith(f"error: Not a directory: {path}")
    assert "next: name another path" in said.stderr


def test_a_reason_that_says_nothing_is_refused(platform: Platform) -> None:
    for command in (["hold"], ["resume"], ["retire", "topic"]):
        said = platform.call(command[0], "adding", *command[1:], "--why", " ")
        assert (said.exit_code, "is empty" in said.stderr) == (2, True)
    said = platform.call("savepoint", "make", "adding", "before", "--why", " ")
    assert (said.exit_code, "is empty" in said.stderr) == (2, True)


def test_a_run_whose_jvm_is_killed_says_so_and_the_next_one_goes_on(fresh: Platform) -> None:
    topic = fresh.feed.create("values")
    fresh.feed.send(topic, session(1))
    lockstep = str(Path(sys.executable).with_name("lockstep"))
    environment = os.environ | fresh.environment
    with subprocess.Popen(
        [lockstep, "run", "adding"],
        cwd=fresh.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        assert run.stdout is not None
        try:
            assert any("batch 1:" in line for line in run.stdout)
            (jvm,) = (child for child in psutil.Process(run.pid).children(recursive=True) if child.name() == "java")
            jvm.kill()
            fresh.feed.send(topic, [update(3, a=1)])
            said = run.stdout.read()
        finally:
            run.kill()
    assert run.returncode == 1
    assert said.endswith(
        "error: Spark's JVM ended under this process: it was killed, or had too little memory\n"
        "next: try again; a run continues after the last committed batch\n"
    )
    fresh.runs.run()
    assert len(fresh.runs.rows(topic)) == 3


def test_settings_with_which_spark_does_not_start_are_shown(fresh: Platform) -> None:
    """The command runs in a separate process, as Spark starts once in a process."""
    fresh.feed.send(fresh.feed.create("values"), session(1))
    lockstep = [str(Path(sys.executable).with_name("lockstep")), "run", "adding", "--available-now"]
    options = {"LOCKSTEP_SPARK__MASTER": "bogus", "LOCKSTEP_SPARK__OPTIONS": '{"spark.hadoop.fs.key": "canary-7f3a"}'}
    environment = os.environ | fresh.environment | options
    said = subprocess.run(lockstep, cwd=fresh.folder, env=environment, capture_output=True, text=True, check=False)
    assert said.returncode == 1
    shown = "error: Spark did not start with master='bogus', driver_memory='1g' and spark.hadoop.fs.key: "
    assert shown in said.stderr
    assert "canary-7f3a" not in said.stdout + said.stderr
    assert "next: correct [spark] in lockstep.toml" in said.stderr
    assert "Traceback" not in said.stderr


def test_a_shadow_without_new_code_is_asked_for_it(platform: Platform) -> None:
    said = platform.call("shadow", "begin", "adding", "--name", "trial", "--from", "4", "--plan")
    assert said.stderr == (
        "error: no --code is given, and assets/ declares no stream 'trial'\n"
        "next: name the new code: lockstep shadow begin adding --code FOLDER --from 4; or declare trial in assets/\n"
    )


@pytest.mark.parametrize("name", ["status", "state", "positions", "repair --plan", "stop", "close", "query"])
def test_without_a_table_it_is_said_how_to_start(fresh: Platform, name: str) -> None:
    said = fresh.call(*name.split(), "adding")
    assert said.exit_code == 1
    assert "next: lockstep start adding (in Dagster) or lockstep run adding (here)" in said.stderr


def test_an_error_about_a_file_of_a_stream_names_the_stream_in_its_next_step(fresh: Platform) -> None:
    fresh.feed.send(fresh.feed.create("values"), session(1))
    fresh.runs.run()
    shutil.rmtree(fresh.runs.folders.state)
    said = fresh.call("state", "adding")
    assert said.exit_code == 1
    assert "or: lockstep rebuild adding --plan; no batch runs without" in said.stderr
    for file in fresh.runs.folders.table.rglob("*.parquet"):
        file.unlink()
    assert "next: lockstep repair adding lists missing or damaged files" in fresh.call("query", "adding").stderr


@pytest.mark.parametrize("arguments", [["plan"], ["positions", "adding", "--format", "xml"], ["no_such_command"]])
def test_wrong_arguments_are_exit_code_2(platform: Platform, arguments: list[str]) -> None:
    assert platform.call(*arguments).exit_code == 2


def test_an_option_that_only_a_path_takes_is_named(platform: Platform) -> None:
    said = platform.call("compact", "adding", "--remove-old")
    assert (said.exit_code, "--remove-old" in said.stderr) == (2, True)


def test_a_halted_stream_is_exit_code_3_with_the_command_that_resumes_it(fresh: Platform) -> None:
    topic = fresh.feed.create("values")
    fresh.feed.send(topic, [*session(1), update(9, a=1)])
    with pytest.raises(IntegrityLost):
        fresh.runs.run()
    environment = {"DAGSTER_HOME": str(fresh.folder)}
    (fresh.folder / "workspace.yaml").write_text("load_from: []\n")
    fresh.environment.update(environment)
    started = fresh.call("start", "adding")
    assert started.exit_code == 3
    loss = f"--skip-session {topic}/0/s"
    assert f"lockstep resume adding {loss}" in started.stderr
    assert fresh.call("repair", "adding", "--plan").exit_code == 1

    assert loss in fresh.call("resume", "adding", "--suggested", "--plan").stdout
    without = fresh.call("resume", "adding", "--suggested")
    assert (without.exit_code, "--why" in without.stderr) == (2, True)
    resumed = fresh.call("resume", "adding", "--why", "a test", *shlex.split(loss), "--json")
    assert msgspec.json.decode(resumed.stdout, type=control.Resumed) == control.Resumed("adding", 2, "bounded")
    closed = fresh.call("close", "adding", "--json")
    assert msgspec.json.decode(closed.stdout, type=control.Closed).stream == "adding"
    stopped = fresh.call("stop", "adding", "--why", "enough", "--json")
    assert msgspec.json.decode(stopped.stdout, type=lifecycle.Stopped).ended_by == "a claim"
    assert "stopped" in fresh.call("streams").stdout


def test_status_and_plan_of_a_halted_stream_name_the_command_that_resumes_it(fresh: Platform) -> None:
    topic = fresh.feed.create("values")
    fresh.feed.send(topic, [*session(1), update(9, a=1)])
    with pytest.raises(IntegrityLost):
        fresh.runs.run()
    look = "next: find the cause with lockstep message adding, then: "
    told = f"{look}lockstep resume adding --skip-session {topic}/0/s --why '...'"

    said = fresh.call("status", "adding")
    halted_at, _, next_step, *_ = said.stdout.splitlines()
    assert said.exit_code == 1
    assert said.stdout.count("gap at") == 1
    assert re.fullmatch(r"adding halted \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", halted_at)
    assert next_step.startswith(told)

    everything = fresh.call("status")
    assert everything.exit_code == 1
    assert everything.stdout.splitlines()[1].split()[:3] == ["adding", "halted", "ended"]
    alarm = everything.stdout.splitlines()[-1]  # alarms are sent to others, so they name no session
    assert alarm.startswith(f"{look}lockstep resume adding --suggested --plan")

    for arguments in (["plan", "adding"], ["plan", "adding", "--restart"]):
        planned = fresh.call(*arguments)
        assert planned.exit_code == 1
        assert "refused: halted: gap at" in planned.stdout
        assert planned.stdout.splitlines()[-1].startswith(told)


def test_plans_of_a_held_stream_say_that_no_run_would_start(fresh: Platform) -> None:
    fresh.feed.send(fresh.feed.create("values"), session(1))
    fresh.runs.run()
    fresh.call("hold", "adding", "--why", "the disk")

    for arguments in (["plan", "adding"], ["plan", "adding", "--restart"]):
        planned = fresh.call(*arguments)
        assert planned.exit_code == 1
        assert "refused: held: the disk" in planned.stdout
        assert planned.stdout.splitlines()[-1].startswith("next: lockstep start adding releases")


def test_what_cannot_be_read_of_a_table_is_said_with_the_command_that_looks_at_its_files(fresh: Platform) -> None:
    fresh.feed.send(fresh.feed.create("values"), session(1))
    fresh.runs.run()
    table = fresh.folder / "tables" / "adding" / "table"
    newest = max((table / "_delta_log").glob("*.json"))
    whole = newest.read_bytes()
    files = {file: file.read_bytes() for file in table.rglob("*.parquet")}

    for file in files:
        file.unlink()
    said = fresh.call("query", "adding")
    assert (said.exit_code, "next: lockstep repair" in said.stderr) == (1, True)
    for file, content in files.items():
        file.write_bytes(content)

    newest.write_bytes(whole[: len(whole) // 2])
    for arguments in (["status", "adding"], ["query", "adding"], ["report", "adding"]):
        said = fresh.call(*arguments)
        assert (said.exit_code, "next: lockstep repair" in said.stderr) == (1, True)


def test_the_message_that_halts_a_stream_becomes_the_input_of_a_unit_test(fresh: Platform) -> None:
    """The exported message raises the same exception in the test, with the line of the fold that raised it."""
    topic = fresh.feed.create("values")
    fresh.feed.send(topic, [*session(2), update(4, a=POISON)])
    with pytest.raises(IntegrityLost, match=r"(?s)transform raised.*in poisoned.*ZeroDivisionError: poison"):
        fresh.runs.run()
    assert "in poisoned" in fresh.call("status", "adding").stdout

    said = fresh.call("message", "adding", "--out", "halted.jsonl")
    assert said.exit_code == 0
    assert f"{topic}/0@3 (in Kafka)" in said.stdout
    assert "in poisoned" in said.stdout
    again = fresh.call("message", "adding", f"{topic}/0@3", "--json")
    found = msgspec.json.decode(again.stdout, type=message.StoredMessage)
    assert msgspec.json.decode((fresh.folder / "halted.jsonl").read_bytes(), type=message.StoredMessage) == found
    assert (found.offset, found.key, found.value) == (3, b"s", update(4, a=POISON))

    ran = run_messages(fresh.runs.stream, *session(2), *read_messages(fresh.folder / "halted.jsonl"), key="s")
    assert ran.finding is not None
    assert (ran.finding.traceback, ran.finding.detail) == (found.finding.traceback, found.finding.detail)  # type: ignore[union-attr]  # it halted
    refused = fresh.call("message", "adding", "--out", "halted.jsonl")
    assert (refused.exit_code, "it is there already" in refused.stderr) == (1, True)


def test_any_message_can_be_shown_and_what_is_not_there_is_said(platform: Platform) -> None:
    topic = f"{platform.feed.family}.values.of.a.topic.with.a.name.that.no.narrow.terminal.shows.in.one.line"
    said = platform.call("message", "adding", f"{topic}/1@0", "--json")
    assert msgspec.json.decode(said.stdout, type=message.StoredMessage).value == session(1)[0]
    for place in (f"{topic}/1@99", f"{platform.feed.family}.none/0@1"):
        missing = platform.call("message", "adding", place)
        assert missing.exit_code == 1
        assert "neither Kafka nor archive or quarantine have a message" in missing.stderr
    nowhere = platform.call("message", "adding", f"{topic}/9@1").stderr
    assert f"at {topic}/9@1: topic {topic} has the partitions 0 to 1\nnext: lockstep topics adding" in nowhere
    assert "is not halted by a message" in platform.call("message", "adding").stderr
    assert platform.call("message", "adding", "nowhere").exit_code == 2


def test_a_halt_by_messages_that_are_gone_says_so_with_the_command_that_resumes_it(fresh: Platform) -> None:
    topic = fresh.feed.create("values")
    fresh.feed.send(topic, session(1))
    fresh.runs.run()
    fresh.feed.send(topic, [update(3, a=1), update(4, a=1)])
    fresh.feed.expire(topic, 3)
    with pytest.raises(IntegrityLost, match="expired unread"):
        fresh.runs.run()
    said = fresh.call("message", "adding")
    assert f"adding is halted by messages that are gone: expired unread at {topic}/0 offset 2" in said.stderr
    assert said.stderr.splitlines()[-1] == next(
        line for line in fresh.call("status", "adding").stdout.splitlines() if line.startswith("next: ")
    )


def test_a_promotion_of_what_is_no_shadow_lists_the_shadows(platform: Platform) -> None:
    said = platform.call("shadow", "promote", "adding", "nope", "--plan")
    assert said.stderr == "error: nope is not a shadow of adding\nnext: lockstep shadow list adding lists its shadows\n"


def test_the_command_that_status_prints_ends_a_run_of_garbage_at_once(fresh: Platform) -> None:
    topic = fresh.feed.create("values")
    fresh.feed.send(topic, [*session(1), *[b"garbage"] * 50, update(3, a=1)])
    with pytest.raises(IntegrityLost):
        fresh.runs.run()
    told = next(line for line in fresh.call("status", "adding").stdout.splitlines() if line.startswith("next: "))
    assert told.startswith("next: find the cause with lockstep message adding, then: ")
    command = told.partition(", then: lockstep ")[2].partition(" (or --fixed")[0]
    command = command.replace("'...'", "'a broken producer'")
    assert f"--accept-loss {topic}/0@2-52" in command
    assert fresh.call(*shlex.split(command)).exit_code == 0
    assert fresh.runs.run().value == "all that was available is committed"
    assert fresh.call("status", "adding").exit_code == 0
    assert fresh.call("verify", "adding").exit_code == 0


def test_the_plan_of_a_resumption_shows_what_each_option_costs_the_cheapest_first(fresh: Platform) -> None:
    topic = fresh.feed.create("values")
    fresh.feed.send(topic, [*session(3), b"garbage", *[update(seq, a=1) for seq in range(5, 9)]])
    with pytest.raises(IntegrityLost):
        fresh.runs.run()
    planned = fresh.call("resume", "adding", "--suggested", "--plan")
    assert planned.exit_code == 0, planned.output
    costs = [line.split()[-4:] for line in planned.stdout.splitlines() if line.startswith(f"{topic}/0@4")]
    assert costs == [["--accept-loss", f"{topic}/0@4", "0", "1"], ["--from-snapshot", f"{topic}/0", "1", "5"]]
    assert f"lockstep resume adding --accept-loss {topic}/0@4 --why '...'" in planned.stdout
    silent = {"LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "LOCKSTEP_KAFKA__TIMEOUT_SECONDS": "1"}
    offline = replace(fresh, environment=fresh.environment | silent).call("resume", "adding", "--suggested", "--plan")
    assert (offline.exit_code, "the cost of the options is unknown: " in offline.stderr) == (0, True)
    assert fresh.call("resume", "adding", "--accept-loss", f"{topic}/0@4", "--why", "garbage").exit_code == 0


def test_status_without_a_name_shows_streams_that_never_ran_too(fresh: Platform) -> None:
    said = fresh.call("status")
    assert said.exit_code == 0
    assert said.stdout.splitlines()[1].split() == ["adding", "no", "table", "yet", "none", "-", "-", "-"]


def test_status_does_not_say_that_nothing_expires_while_kafka_is_down(platform: Platform) -> None:
    silent = {"LOCKSTEP_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "LOCKSTEP_KAFKA__TIMEOUT_SECONDS": "1"}
    said = replace(platform, environment={**platform.environment, **silent}).call("status", "adding")
    assert said.exit_code == 0
    assert "headroom" in said.stdout
    assert "unknown: Kafka did not answer" in said.stdout
    assert "nothing unread expires" not in said.stdout


def test_the_version_is_that_of_the_package(platform: Platform) -> None:
    said = platform.call("--version")
    assert (said.exit_code, said.stdout) == (0, f"lockstep {__version__}\n")


def test_a_start_without_dagster_says_what_else_there_is(fresh: Platform) -> None:
    fresh.environment["DAGSTER_HOME"] = ""
    said = fresh.call("start", "adding")
    assert said.exit_code == 1
    assert "lockstep run adding" in said.stderr


def test_a_stream_whose_table_is_gone_begins_anew_only_when_told_so(fresh: Platform) -> None:
    fresh.feed.send(fresh.feed.create("values"), session(1))
    fresh.runs.run()
    refused = fresh.call("reset", "adding")
    assert (refused.exit_code, "move" in refused.stderr) == (1, True)
    shutil.rmtree(fresh.folder / "tables")
    unmounted = fresh.call("reset", "adding")
    assert (unmounted.exit_code, "mount its disk" in unmounted.stderr) == (1, True)
    (fresh.folder / "tables").mkdir()
    said = fresh.call("reset", "adding", "--json")
    assert msgspec.json.decode(said.stdout, type=recover.Reset) == recover.Reset("adding")
    fresh.runs.run()
    assert fresh.call("query", "SELECT count(*) AS rows FROM adding", "--csv").stdout == "rows\n2\n"


def test_rows_come_as_csv_with_as_many_as_were_asked(platform: Platform) -> None:
    said = platform.call("query", "SELECT name, total FROM adding ORDER BY name, total", "--csv", "--limit", "2")
    assert said.stdout == "name,total\na,4\na,4\n"
    assert said.stderr == "the first 2 rows; more with --limit\n"


def test_a_line_break_in_a_session_or_a_text_is_shown_escaped_in_its_row(fresh: Platform) -> None:
    fresh.feed.send(fresh.feed.create("values"), [snapshot(1, a=1), update(2, **{"n\n": 1})], key="a\nb\x1b[2J")
    fresh.runs.run()
    assert fresh.call("state", "adding").stdout.splitlines()[1].split()[2] == r"a\nb\x1b[2J"
    said = fresh.call("query", "SELECT _session, name FROM adding").stdout
    assert [line.split() for line in said.splitlines()] == [["_session", "name"], [r"a\nb\x1b[2J", r"n\n"]]
    (group,) = msgspec.json.decode(fresh.call("state", "adding", "--json").stdout)["sessions"]
    assert group["session"] == "a\nb\x1b[2J"


def test_the_plan_of_a_rewind_needs_no_reason_and_the_rewind_does(platform: Platform) -> None:
    planned = platform.call("rewind", "adding", "--to", "0", "--plan", "--json")
    assert planned.exit_code == 0, planned.output
    without = platform.call("rewind", "adding", "--to", "0")
    assert (without.exit_code, "--why" in without.stderr) == (2, True)


def test_a_query_plan_keeps_its_lines(platform: Platform) -> None:
    said = platform.call("query", "EXPLAIN SELECT 1 FROM adding").stdout.splitlines()
    assert said[0] == "logical_plan:"
    assert "physical_plan:" in said[1:]


def test_numbers_that_json_has_not_are_strings_in_it(platform: Platform) -> None:
    sql = "SELECT CAST(n AS DOUBLE) FROM (VALUES ('NaN'), ('inf'), ('-inf'), ('0.5'), (NULL)) AS t(n)"
    said = msgspec.json.decode(platform.call("query", sql, "--json").stdout)
    assert said["rows"] == [["NaN"], ["Infinity"], ["-Infinity"], [0.5], [None]]


def test_positions_for_spark_are_json_by_topic(platform: Platform) -> None:
    said = platform.call("positions", "adding", "--format", "spark")
    assert list(json.loads(said.stdout).values()) == [{"0": 3, "1": 2}]


def test_an_end_of_a_run_is_told_in_json_too() -> None:
    ended = control.RunEnded("adding", "stopped")
    assert msgspec.json.decode(msgspec.json.encode(ended), type=control.RunEnded) == ended


def test_help_loads_neither_kafka_nor_delta_nor_spark_nor_dagster() -> None:
    heavy = ("confluent_kafka", "deltalake", "pyarrow", "pyspark", "dagster", "pydantic", "lmdb", "numpy")
    code = (
        "import sys\nfrom lockstep.cli.__main__ import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "[]"


def test_the_page_of_the_command_line_is_that_of_the_commands() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text()
    for name in NAMES:
        command = COMMANDS[name]
        summary = str(command.help).partition("\n")[0]
        example = str(command.epilog).removeprefix("Example: ")
        assert f"| `{name}` | {summary} | `{example.replace('|', chr(92) + '|')}` |" in page
    for code, meaning in EXIT_CODES.items():
        assert f"| {code} | {meaning} |" in page
