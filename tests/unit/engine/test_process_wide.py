"""Shared by all streams of a process: compiled streams, consumers, the exemption from the collector."""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.engine.driver import loop
from lockstep.engine.executor import message_source
from lockstep.engine.executor.compiled_stream import compile_pickled
from lockstep.engine.executor.message_source import KafkaSource
from lockstep.kafka.reader import Range
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from lockstep.kafka.client import Configuration, RangeConsumer
    from lockstep.kafka.reader import MessageRun

STREAMS = 64


@cache
def ship(number: int) -> bytes:
    return adding(rf"topics\.{number}").shipped()


@pytest.fixture(autouse=True)
def clear() -> Iterator[None]:
    yield
    compile_pickled.cache_clear()
    message_source._cached_consumer.cache_clear()  # noqa: SLF001  # the cache of a worker


@given(st.lists(st.integers(0, STREAMS - 1), min_size=1, max_size=4 * STREAMS))
def test_a_worker_compiles_each_of_the_streams_that_take_turns_in_it_once(turns: list[int]) -> None:
    compiled = {number: compile_pickled(ship(number)) for number in turns}
    for number in turns:
        assert compile_pickled(ship(number)) is compiled[number]


@given(st.lists(st.booleans(), min_size=1, max_size=50))
def test_streams_that_take_turns_in_a_worker_share_a_consumer_also_where_one_has_a_corrupt_log(
    corrupt: list[bool],
) -> None:
    message_source._cached_consumer.cache_clear()  # noqa: SLF001  # as above
    made: list[Configuration] = []

    def make(configuration: Configuration) -> RangeConsumer:
        made.append(configuration)
        return cast("RangeConsumer", object())

    def read(_: RangeConsumer, _ranges: Sequence[Range], _tuning: object) -> Iterator[MessageRun]:
        yield from ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(message_source, "make_consumer", make)
        patch.setattr(message_source, "read_ranges", read)
        for single in corrupt:
            wanted = Range(topic="t", partition=0, start=0, until=1, single_batches=single)
            list(KafkaSource({"bootstrap.servers": "b"}).read([wanted]))
    assert len(made) == len(set(corrupt))


@given(st.integers(2, 9))
def test_the_starts_of_further_streams_exempt_no_garbage_from_the_collector(starts: int) -> None:
    exempted: list[None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: exempted.append(None))
        loop._quiet_collector.cache_clear()  # noqa: SLF001  # as in a new process
        for _ in range(starts):
            loop._quiet_collector()  # noqa: SLF001  # as each run
    assert len(exempted) == 1
