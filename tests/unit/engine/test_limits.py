"""A limit of the machine or of a library is not a verdict on a message: the task is retried with less."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
import zstandard
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as some

from lockstep import NoIntegrity, Ordered, Strict, Suspend
from lockstep import Sequence as Numbers
from lockstep.errors import EnvironmentProblem
from lockstep.native import extension
from lockstep.table import row_encoder
from tests.support.limited_machine import (
    HOOKS,
    MACHINE,
    BatchesInMemory,
    Machine,
    make_log,
    make_panic,
    metering,
    run_batches,
)
from tests.support.native import needs_extension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


ERRORS: dict[str, Callable[[], BaseException]] = {
    "memory": MemoryError,
    "memory of Arrow": lambda: pa.ArrowMemoryError("malloc of size 64 failed"),
    "memory of zstd": lambda: zstandard.ZstdError("cannot compress: Allocation error : not enough memory"),
    "2 GiB": lambda: pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes, have 2147483648"),
    "handles of the process": lambda: OSError(errno.EMFILE, "Too many open files"),
    "handles of the machine": lambda: OSError(errno.ENFILE, "Too many open files in system"),
    "disk": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "device": lambda: OSError(errno.EIO, "Input/output error"),
    "network": lambda: ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "threads": lambda: RuntimeError("can't start new thread"),
    "threads of Arrow": lambda: pa.ArrowException("Unknown error: Failed to launch worker thread: Resource"),
    "client": lambda: KafkaException(ClientError(ClientError._CRIT_SYS_RESOURCE, "no handle")),  # noqa: SLF001  # its name
    "panic": make_panic,
}
CLASSES = {
    "halting": Strict(evidence=Numbers()),
    "suspending": Strict(evidence=Numbers(), on_violation=Suspend()),
    "ordered": Ordered(),
    "none": NoIntegrity(),
}
LOGS = some.dictionaries(
    some.sampled_from("abcd"), some.lists(some.integers(0, 9), min_size=1, max_size=24), min_size=1, max_size=4
)


@pytest.fixture(autouse=True)
def _boundless() -> Iterator[None]:
    limit_machine()
    yield
    limit_machine()


def limit_machine(
    capacity: int = 10**9,
    hook: str = "",
    error: Callable[[], BaseException] = MemoryError,
    act: Callable[[], None] | None = None,
    renew: Callable[[], None] | None = None,
) -> None:
    """Set the limits of the machine, or the effect of each use of it."""
    fresh = Machine(capacity, hook, error, act=act, on_renewal=renew)
    for name in ("capacity", "hook", "error", "used", "reads", "act", "on_renewal"):
        setattr(MACHINE, name, getattr(fresh, name))


def describe(batches: BatchesInMemory) -> dict[str, list[tuple[object, ...]]]:
    """Return the rows by topic, with their provenance."""
    return {
        topic: [tuple(row[name] for name in ("_offset", "_row", "seq", "total")) for row in rows]
        for topic, rows in batches.rows.items()
    }


def find_judged(batches: BatchesInMemory) -> list[object]:
    """Return the judgements of a batch: findings, and files of the quarantine and of the late table."""
    judged: list[object] = [item.finding for result in batches.results for item in result.ranges if item.finding]
    return judged + [file for result in batches.results for file in (*result.quarantine, *result.late)]


@pytest.mark.fault("F11")
@given(
    made=LOGS,
    run_messages=some.integers(1, 30),
    capacity=some.integers(1, 40),
    hook=some.sampled_from(HOOKS),
    name=some.sampled_from(sorted(ERRORS)),
    integrity=some.sampled_from(sorted(CLASSES)),
    ends=some.booleans(),
)
def test_a_batch_whose_messages_pass_one_by_one_passes_as_a_whole(
    made: Mapping[str, Sequence[int]],
    run_messages: int,
    capacity: int,
    hook: str,
    name: str,
    integrity: str,
    *,
    ends: bool,
) -> None:
    stream = metering(CLASSES[integrity])
    logs = {topic: make_log([*values, None] if ends else values) for topic, values in made.items()}
    limit_machine()
    alone = run_batches(stream, logs, messages_max=1)
    limit_machine(capacity, hook, ERRORS[name])
    together = run_batches(stream, logs, run_messages=run_messages)
    assert find_judged(together) == []
    assert describe(together) == describe(alone)
    assert all(item.next_offset == len(logs[item.topic]) for item in together.positions.values())


@pytest.mark.fault("F11")
@pytest.mark.parametrize("name", sorted(ERRORS.keys() - {"panic"}))
@pytest.mark.parametrize("integrity", sorted(CLASSES))
def test_a_message_that_reaches_it_alone_is_named_by_an_error_of_the_run(name: str, integrity: str) -> None:
    limit_machine(0, "on_update", ERRORS[name])
    logs = {"a": make_log([1, 2, 3]), "b": make_log([5])}
    with pytest.raises(EnvironmentProblem, match=r"a/0@1: a task of this message alone lacks ") as raised:
        run_batches(metering(CLASSES[integrity]), logs)
    assert str(ERRORS[name]()) in raised.value.problem
    assert "skip" not in raised.value.next_step


@pytest.mark.parametrize("integrity", sorted(CLASSES))
def test_a_message_that_makes_a_library_panic_alone_is_an_error_of_the_message(integrity: str) -> None:
    """Otherwise no later message would be read on any machine."""
    limit_machine(0, "on_update", make_panic)
    batches = run_batches(metering(CLASSES[integrity]), {"a": make_log([1, 2, 3]), "b": make_log([5])})
    findings = [item.finding for result in batches.results for item in result.ranges if item.finding]
    if integrity == "halting":
        assert [(finding.offset, finding.cause) for finding in findings] == [(1, "transform raised")]
        assert "PanicException" in findings[0].detail
    else:
        assert findings == []
        assert batches.positions["a"].next_offset == 3


def test_what_a_batch_left_is_due_at_once() -> None:
    limit_machine(3, "on_update")
    cut = run_batches(metering(), {"a": make_log([1] * 9)})
    assert [result.is_cut for result in cut.results] == [True] * (len(cut.results) - 1) + [False]
    troubles = [item.trouble for result in cut.results for item in result.ranges]
    assert troubles[0] == "the range ended earlier for lack of memory: MemoryError: "


@needs_extension
@pytest.mark.parametrize("method", ["encode_rows", "encode_columns"])
def test_a_panic_while_rows_are_encoded_changes_none(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    logs = {"a": make_log([1, 2, 3]), "b": make_log([5])}
    expected = describe(run_batches(metering(), logs))

    class Panicking:
        """An extension with one function that panics."""

        def __getattr__(self, name: str) -> object:
            return self.panic if name == method else getattr(extension, name)

        def panic(self, *_: object) -> None:
            """Panic as the extension does."""
            raise make_panic()

    monkeypatch.setattr(row_encoder, "extension", Panicking())
    batches = run_batches(metering(), logs)
    assert describe(batches) == expected
    assert [result.is_cut for result in batches.results] == [False]


@pytest.mark.fault("F11")
def test_handles_that_a_transform_keeps_end_ranges_earlier() -> None:
    """With the real limit of the process: the engine itself needs some handles, for tables and state."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    spare = 60
    held = list[int]()

    def open_one() -> None:
        held.append(os.open("/dev/null", os.O_RDONLY))

    def close_all() -> None:
        while held:
            os.close(held.pop())

    limit_machine(hook="on_update", act=open_one, renew=close_all)
    logs = {topic: make_log([1] * 100) for topic in "ab"}
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + spare, before[1]))
    try:
        batches = run_batches(metering(CLASSES["suspending"]), logs)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        close_all()
    assert find_judged(batches) == []
    assert {topic: len(rows) for topic, rows in batches.rows.items()} == {"a": 99, "b": 99}
    assert "Too many open files" in str(batches.results[0].ranges[0].trouble)


STARVED = """
import re
import resource
import tempfile
from pathlib import Path

import tests.unit.engine.test_limits as limits
from lockstep.engine.executor.compiled_stream import compile_stream
from tests.support.limited_machine import BatchesInMemory, LogsInMemory

held = []

def take_memory():
    try:
        spare = bytes(60_000_000)  # for the libraries around the transform: some end the process without it
        held.append(bytes(20_000_000))
        del spare
    except MemoryError:
        held.clear()  # as with the frames of the error
        raise

limits.limit_machine(hook="on_update", act=take_memory, renew=held.clear)
logs = {topic: limits.make_log([1] * 40) for topic in "ab"}
compiled = compile_stream(limits.metering(limits.CLASSES["suspending"]))

def run(logs):
    with tempfile.TemporaryDirectory() as root:
        batches = BatchesInMemory(compiled, LogsInMemory(logs), Path(root), reads_rows=False)
        batches.run_to_end()
        return batches

run({"a": limits.make_log([1])})
used = 1024 * int(re.search(r"VmData:\\s+(\\d+)", open("/proc/self/status").read())[1])
resource.setrlimit(resource.RLIMIT_DATA, (used + 300_000_000,) * 2)
batches = run(logs)
print(limits.find_judged(batches), batches.totals()["with_rows"], batches.results[0].ranges[0].trouble)
"""


@pytest.mark.fault("F11")
def test_memory_that_a_transform_takes_ends_ranges_earlier() -> None:
    """With the real limit of a process."""
    pool = {"ARROW_DEFAULT_MEMORY_POOL": "system"}  # Arrow's own pool does not recover
    environment = {**os.environ, **pool}
    done = subprocess.run(
        [sys.executable, "-c", STARVED], capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    found = (done.returncode, done.stdout, done.stderr)
    assert done.stdout.startswith("[] 78 the range ended earlier for lack of memory: MemoryError: "), found
