"""Extensions add alarms and commands; a broken extension removes nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lockstep.extensions
from lockstep import feature as registry
from lockstep.errors import SettingsError
from lockstep.feature import ExtensionBroken, Feature, list_broken_extensions, list_features, load_commands
from lockstep.operations import alarms
from lockstep.operations.alarms import Alarm, AlarmKind, AlarmSeverity, HealthFacts, judge_health
from lockstep.settings import load_settings
from lockstep.table.head import Desired
from tests.support.adding_stream import adding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STREAM = adding("values")
WITHOUT_TABLE = HealthFacts(stream="adding", desired=None)
HALTED = HealthFacts(stream="adding", desired=Desired.HALTED, reason="a gap", next_step="look")

BROKEN = {
    "a syntax error": ("def", "SyntaxError"),
    "an exception": ("1 / 0", "ZeroDivisionError: division by zero"),
    "no feature": ("x = 1", "it has no Feature named FEATURE, but None"),
    "another value": ("FEATURE = 'costs'", "it has no Feature named FEATURE, but 'costs'"),
    "a feature of lockstep": (
        "from lockstep.feature import Feature\nFEATURE = Feature(name='erase')",
        "the name of its feature, 'erase', is taken",
    ),
}


@pytest.fixture
def extend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return a function that writes modules in the working folder, and names them in the settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)

    def write(**modules: str) -> None:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        names = ", ".join(f'"{name}"' for name in modules)
        (tmp_path / "lockstep.toml").write_text(f"extensions = [{names}]\n")
        forget()

    def forget() -> None:
        registry.list_features.cache_clear()
        registry._load_extensions.cache_clear()  # noqa: SLF001  # a process reads its settings once

    yield write
    forget()
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_extension_is_named_and_removes_nothing_else(extend: Callable[..., None], what: str) -> None:
    source, problem = BROKEN[what]
    extend(lame=source, good="from lockstep.feature import Feature\nFEATURE = Feature(name='good')")
    (error,) = list_broken_extensions()
    assert problem in error.problem
    assert error.module == "lame"
    assert [each.name for each in list_features()] == [*registry.INSTALLED, "good"]
    halted, broken = judge_health(HALTED, STREAM)
    assert (halted.kind, broken.kind) == (AlarmKind.HALTED, alarms.BROKEN_EXTENSION)
    assert problem in broken.problem
    assert judge_health(WITHOUT_TABLE, STREAM) == ()


def test_a_missing_module_is_named(extend: Callable[..., None], tmp_path: Path) -> None:
    extend(gone="")
    (tmp_path / "gone.py").unlink()
    assert "ModuleNotFoundError: No module named 'gone'" in list_broken_extensions()[0].problem


def test_wrong_settings_are_the_error_of_the_command_and_no_extension(
    extend: Callable[..., None], tmp_path: Path
) -> None:
    extend()
    (tmp_path / "lockstep.toml").write_text('extensions = ["a b"]\n')
    assert list_broken_extensions() == ()
    with pytest.raises(SettingsError, match="is not the name of a module, such as"):
        load_settings()


def test_broken_commands_of_an_extension_are_named_and_those_of_lockstep_raised() -> None:
    with pytest.raises(ExtensionBroken, match=r"gone_commands cannot be used: ModuleNotFoundError"):
        load_commands(Feature(name="mine", commands=("gone_commands",)))
    with pytest.raises(ModuleNotFoundError):
        load_commands(Feature(name="erase", commands=("gone_commands",)))


@pytest.mark.parametrize("name", lockstep.extensions.__all__)
def test_every_name_for_extensions_is_there(name: str) -> None:
    assert getattr(lockstep.extensions, name) is not None


def test_another_name_is_none() -> None:
    assert not hasattr(lockstep.extensions, "judge_health")


RAISED = Alarm(kind="a", severity=AlarmSeverity.WARNING, problem="p", next_step="n")
NO_ALARMS: dict[str, object] = {
    "nothing": None,
    "a number": [5],
    "no kind": [msgspec.structs.replace(RAISED, kind=None)],
    "another severity": [msgspec.structs.replace(RAISED, severity="urgent")],
    "no text": [msgspec.structs.replace(RAISED, problem=7)],
}


@pytest.mark.parametrize("what", NO_ALARMS)
def test_an_answer_without_alarms_is_named(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A wrong severity would end the exporter of metrics for all streams."""
    monkeypatch.setattr(alarms, "list_features", lambda: (Feature(name="one", alarms=("x:1",)),))
    monkeypatch.setattr(alarms, "load_reference", lambda _: lambda *_: NO_ALARMS[what])
    halted, broken = judge_health(HALTED, STREAM)
    assert (halted.kind, broken.kind) == (AlarmKind.HALTED, alarms.BROKEN_EXTENSION)
    assert broken.problem.startswith("the alarm x:1 failed: ")


KINDS = st.lists(st.sampled_from(["a", "b", "halted"]), max_size=4)


@given(KINDS, KINDS, st.booleans())
def test_alarms_of_extensions_are_added_once_each_and_hide_none(
    first: list[str],
    second: list[str],
    fails: bool,  # noqa: FBT001  # drawn
) -> None:
    """Kinds may be equal, and an extension may fail after some alarms."""
    with pytest.MonkeyPatch.context() as patched:
        features = (Feature(name="one", alarms=("x:1",)), Feature(name="two", alarms=("x:2",)))
        judges = {"x:1": raising(first, fails=fails), "x:2": raising(second, fails=False)}
        patched.setattr(alarms, "list_features", lambda: features)
        patched.setattr(alarms, "load_reference", judges.__getitem__)
        found = [alarm.kind for alarm in judge_health(HALTED, STREAM)]
    own = [f"one.{kind}" for kind in first] + [f"two.{kind}" for kind in second]
    expected = [AlarmKind.HALTED, *own, *([alarms.BROKEN_EXTENSION] if fails else [])]
    assert sorted(found) == sorted(dict.fromkeys(expected))


def raising(kinds: list[str], *, fails: bool) -> Callable[..., Iterator[Alarm]]:
    def judge(*_: object) -> Iterator[Alarm]:
        for kind in kinds:
            yield Alarm(kind=kind, severity=AlarmSeverity.WARNING, problem="p", next_step="n")
        if fails:
            raise ZeroDivisionError

    return judge
