"""A limit of the machine or of a library is no verdict on a message: the task is tried again with less."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, cast

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException
from hypothesis import given
from hypothesis import strategies as some

from lockstep import NoIntegrity, Ordered, Strict, Suspend
from lockstep import Sequence as Numbers
from lockstep.errors import EnvironmentProblem
from lockstep.native import extension
from tests.support.limited_machine import HOOKS, MACHINE, BatchesInMemory, Machine, make_log, metering, run_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


class Declared(msgspec.Struct):
    """The declaration of a table without columns, as the extension reads it."""

    message: list[object] = []
    tag_field: str = ""
    tag: str = ""
    session: str | None = None
    sequence: str = ""
    time: str | None = None
    rows: str = ""
    row: tuple[tuple[str, str, bool], ...] = (("k", "int", True),)
    key: str = "k"
    columns: list[str] = []
    message_forbids_unknown: bool = True
    row_forbids_unknown: bool = True
    message_bytes_max: int = 9
    emits_unchanged: bool = True


def make_panic() -> BaseException:
    """A panic as each extension of pyo3 raises it: by ours if it is installed, which has no zero columns."""
    if extension is None:
        return cast("BaseException", type("PanicException", (BaseException,), {"__module__": "pyo3_runtime"})("boom"))
    table = extension.ColumnTable(Declared())
    try:
        table.change((1,), 9)
    except BaseException as error:  # noqa: BLE001  # it is no Exception
        return error
    raise AssertionError("a table without columns is changed")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "memory": MemoryError,
    "memory of Arrow": lambda: pa.ArrowMemoryError("malloc of size 64 failed"),
    "2 GiB": lambda: pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes, have 2147483648"),
    "handles of the process": lambda: OSError(errno.EMFILE, "Too many open files"),
    "handles of the machine": lambda: OSError(errno.ENFILE, "Too many open files in system"),
    "disk": lambda: OSError(errno.ENOSPC, "No space left on device"),
    "device": lambda: OSError(errno.EIO, "Input/output error"),
    "network": lambda: ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
    "threads": lambda: RuntimeError("can't start new thread"),
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


def limit_machine(capacity: int = 10**9, hook: str = "", error: Callable[[], BaseException] = MemoryError) -> None:
    fresh = Machine(capacity, hook, error)
    for name in ("capacity", "hook", "error", "used", "reads"):
        setattr(MACHINE, name, getattr(fresh, name))


def describe(batches: BatchesInMemory) -> dict[str, list[tuple[object, ...]]]:
    """The rows by topic, with their provenance."""
    return {
        topic: [tuple(row[name] for name in ("_offset", "_row", "seq", "total")) for row in rows]
        for topic, rows in batches.rows.items()
    }


def find_judged(batches: BatchesInMemory) -> list[object]:
    """What a batch judged: findings, and files of quarantine and late table."""
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
