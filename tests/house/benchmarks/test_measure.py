"""The usage of a command includes the usage of all its descendants."""

import os
import sys

import pytest

from benchmarks.measure import CommandFailedError, Usage, run_measured

BURN = """
import time
def burn(seconds):
    block = bytearray(64 << 20)
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
"""
CHILD = """
import os
if os.fork() == 0:
    burn(1)
    os._exit(0)
os.wait()
"""
DAEMON = """
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        burn(1)
    os._exit(0)
os.wait()
"""
IGNORED = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = os.fork()
if child == 0:
    burn(1)
    os._exit(0)
while os.path.exists(f"/proc/{child}"):
    time.sleep(0.01)
"""
IGNORED_AND_LEFT = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
parent = os.getpid()
if os.fork() == 0:
    burn(1)
    os.kill(parent, signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)
    os._exit(0)
time.sleep(60)
"""
PAIR = """
import os
child = os.fork()
burn(1)
if child == 0:
    os._exit(0)
os.wait()
"""


def measured(script: str) -> Usage:
    return run_measured([sys.executable, "-c", BURN + script], os.environ)


@pytest.mark.parametrize(
    "script",
    [
        pytest.param("burn(1)", id="itself", marks=pytest.mark.slow),
        pytest.param(CHILD, id="child", marks=pytest.mark.slow),
        pytest.param(DAEMON, id="daemon"),
    ],
)
def test_the_cpu_time_of_every_descendant_is_counted_once(script: str) -> None:
    start_up = measured("").cpu_seconds
    found = measured(script).cpu_seconds
    # The script burns until its clock shows 1 s: less would be lost, 2 s would be counted twice.
    assert 1.0 <= found < 1.9 + start_up


def test_the_cpu_time_of_children_that_nobody_waits_for_is_counted_to_a_quarter_second() -> None:
    """Spark's daemon of Python workers ignores their ends; the kernel then adds their time to no process."""
    start_up = measured("").cpu_seconds
    assert 0.5 <= measured(IGNORED).cpu_seconds < 1.9 + start_up


def test_the_cpu_time_of_a_child_whose_ignoring_parent_ends_first_is_counted_once() -> None:
    """Spark's daemon also ends first, with the JVM: its workers are adopted, and counted when they are waited for."""
    start_up = measured("").cpu_seconds
    with pytest.raises(CommandFailedError) as raised:
        measured(IGNORED_AND_LEFT)
    assert 1.0 <= raised.value.usage.cpu_seconds < 1.7 + start_up


@pytest.mark.slow
def test_the_peak_memory_is_that_of_all_processes_together() -> None:
    assert measured(PAIR).peak_memory_bytes > 2 * (64 << 20)


def test_a_failed_command_is_an_error_with_its_usage() -> None:
    with pytest.raises(CommandFailedError) as raised:
        measured("raise SystemExit(3)")
    assert raised.value.usage.exit_code == 3
