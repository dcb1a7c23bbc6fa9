"""Plain updates folded by the extension, and the same updates folded in Python, have the same result."""

from __future__ import annotations

import tempfile
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.engine.executor.compiled_stream import CompiledStream, compile_stream
from lockstep.engine.executor.row_buffer import CHUNK_ROWS
from lockstep.engine.executor.update_run import UpdateRun
from tests.support.gauge_log import ANY, FAULTS, Source, make_log, process
from tests.support.hand_gauges import BY_HAND, PLAIN
from tests.support.native import needs_extension

if TYPE_CHECKING:
    from lockstep.engine.executor.update_run import Messages

pytestmark = needs_extension
EXAMPLES = max(12, settings().max_examples // 8)
EXAMPLES_DEEP = max(200, settings().max_examples)
UPDATES: list[tuple[str, list[dict[str, object]]]] = [
    (session, [{"name": name, "level": level}]) for level, session, name in product((2.5, 3.5, 4.5), "abc", "xyz")
]


def compile_both(name: str) -> tuple[CompiledStream, CompiledStream]:
    """Return the stream with plain updates, and without them."""
    compiled = compile_stream(BY_HAND[name])
    assert compiled.plain_updates is not None
    return compiled, compiled.without_extension()


def require_the_same(name: str, made: dict[str, Any]) -> None:
    source = Source(make_log(made["steps"], made["faults"]), made["sizes"])
    native, python = compile_both(name)
    updates = native.plain_updates
    assert updates is not None
    native = replace(native, plain_updates=replace(updates, rows_max=made["rows_max"]))  # also ends within a message
    with tempfile.TemporaryDirectory(prefix="lockstep-updates-") as root:
        found = process(native, source, Path(root) / "native", made["splits"])
        assert process(python, source, Path(root) / "python", made["splits"]) == found


MADE = st.fixed_dictionaries(ANY | {"rows_max": st.sampled_from([1, 2, 5, CHUNK_ROWS])})


@pytest.mark.parametrize("name", BY_HAND)
@settings(max_examples=EXAMPLES)
@given(made=MADE)
def test_plain_updates_and_python_have_the_same_result(name: str, made: dict[str, Any]) -> None:
    require_the_same(name, made)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", BY_HAND)
@settings(max_examples=EXAMPLES_DEEP)
@given(made=MADE)
def test_many_more_plain_updates_and_python_have_the_same_result(name: str, made: dict[str, Any]) -> None:
    require_the_same(name, made)


@pytest.mark.parametrize("name", BY_HAND)
@pytest.mark.parametrize("fault", [*FAULTS, "raises"])
def test_each_fault_among_plain_updates_has_the_same_result(fault: str, name: str, tmp_path: Path) -> None:
    steps = list(UPDATES)
    if fault == "raises":
        steps.insert(13, ("b", [{"name": "y", "level": 9.0}, {"name": "x", "level": 1.0, "count": -7}]))
    source = Source(make_log(steps, [(13, fault)] * (fault in FAULTS)), [3])
    native, python = compile_both(name)
    assert process(python, source, tmp_path / "a", []) == process(native, source, tmp_path / "b", [])


@pytest.mark.parametrize("name", ["by key", "one by one"])
def test_more_rows_than_are_encoded_at_once_have_the_same_result(name: str, tmp_path: Path) -> None:
    many: list[dict[str, object]] = [{"name": "x", "level": level / 4} for level in range(3 * CHUNK_ROWS)]
    source = Source(make_log([*UPDATES, ("a", many), *UPDATES, ("b", [*many, {"name": "x", "count": -7}])], []), [])
    native, python = compile_both(name)
    assert process(python, source, tmp_path / "a", []) == process(native, source, tmp_path / "b", [])


@pytest.mark.parametrize("name", BY_HAND)
def test_the_extension_folds_each_plain_update_and_nothing_else(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folded = list[int]()
    fold = UpdateRun.fold

    def counted(run: UpdateRun, messages: Messages, start: int) -> int:
        place = fold(run, messages, start)
        folded.append(place - start)
        return place

    monkeypatch.setattr(UpdateRun, "fold", counted)
    log = make_log(UPDATES * 20, [(100, "snapshot"), (200, "snapshot")])
    process(compile_both(name)[0], Source(log, []), tmp_path, [])
    assert sum(folded) == (len(UPDATES) * 20 if name in PLAIN else 0)
