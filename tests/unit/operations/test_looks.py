"""Reads of several streams do not wait for each other."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from lockstep.operations.stream_handle import computed_once

WAIT_SECONDS_MAX = 30.0


class Looks:
    """A value that is computed only together with the value of another instance."""

    together = threading.Barrier(2)

    def __init__(self) -> None:
        self.computed = 0

    @computed_once
    def value(self) -> int:
        """Return how often the value was computed."""
        self.together.wait(WAIT_SECONDS_MAX)
        self.computed += 1
        return self.computed


def test_a_value_is_computed_once_and_no_instance_waits_for_another() -> None:
    """`functools.cached_property` of Python 3.11 holds a lock that all instances share: the barrier would break."""
    looks = [Looks(), Looks()]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda look: look.value, looks)) == [1, 1]
    assert [look.value for look in looks] == [1, 1]
    assert [look.computed for look in looks] == [1, 1]
