"""A wrong call of a declared class is refused with the class, the argument and an example that works."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep import MapState, NoIntegrity, Once, Stream, Strict, TableFold, Topics
from lockstep.decoders import Decoder
from lockstep.errors import CallError, DeclarationError, LockstepError
from lockstep.model.declaration import Declaration
from tests.support.adding_stream import Adding, adding
from tests.support.derived_tables import count_windows
from tests.support.examples import scale_examples
from tests.support.public_surface import MODULES, list_public_classes

if TYPE_CHECKING:
    from collections.abc import Callable

DECLARED = [kind for kind in list_public_classes() if issubclass(kind, Declaration)]
CALLABLE = [kind for kind in DECLARED if not inspect.isabstract(kind)]
ABSTRACT = [kind for kind in DECLARED if inspect.isabstract(kind)]
VALUES = st.one_of(st.integers(), st.text(), st.lists(st.text()), st.dictionaries(st.text(), st.floats()))
SHORT_CHARS = 3
TEXT_CHARS_MAX = 600
EXAMPLE = re.compile(r"^ *Example: `(.+)`$", re.MULTILINE)


def name_of(value: object) -> str:
    return getattr(value, "__name__", repr(value))


def read_parameters(kind: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


def refuse(call: Callable[..., object]) -> CallError:
    with pytest.raises(CallError) as refused:
        call()
    assert isinstance(refused.value, TypeError)
    assert refused.value.__context__ is None
    return refused.value


def make_names() -> dict[str, Any]:
    """Return the names that examples use: public names, Python's names and the user's names."""
    names: dict[str, Any] = {}
    for module in map(import_module, MODULES):
        names |= {name: getattr(module, name) for name in module.__all__}

    class Unit(msgspec.Struct, frozen=True):
        number: int

    class Snapshot(msgspec.Struct, tag=True):
        sensors: dict[str, float]

    own = {"Unit": Unit, "Snapshot": Snapshot, "Plants": Adding, "plants": adding("plants")}
    own |= {"count_by_hour": count_windows, "read_line": bytes.decode}
    return names | own | {"datetime": datetime, "timedelta": timedelta, "UTC": UTC}


NAMES = make_names()


def test_all_public_classes_are_declared_but_for_values_and_errors() -> None:
    """Message values are made in the hot loop, and a metaclass would cost time."""
    others = [kind for kind in list_public_classes() if not issubclass(kind, (Declaration, Enum, Exception))]
    assert [kind for kind in others if not issubclass(kind, (msgspec.Struct, MapState))] == []


@pytest.mark.parametrize("kind", CALLABLE, ids=name_of)
def test_the_documented_example_works(kind: type) -> None:
    documented = EXAMPLE.search(kind.__doc__ or "")
    required = [each for each in read_parameters(kind).values() if each.default is each.empty]
    assert documented is not None or not required
    if documented is not None:
        assert isinstance(eval(documented[1], NAMES), kind)  # noqa: S307  # our own text


@pytest.mark.parametrize("kind", CALLABLE, ids=name_of)
def test_a_call_without_required_arguments_names_them(kind: type) -> None:
    required = [name for name, each in read_parameters(kind).items() if each.default is each.empty]
    if not required:
        return
    error = refuse(kind)
    missing = ", ".join(f"{kind.__name__}.{name}" for name in required)
    verb = "is" if len(required) == 1 else "are"
    assert error.problem == f"{missing}: {verb} missing"
    assert error.next_step.startswith(f"for example {kind.__name__}(")


@st.composite
def misspell(draw: st.DrawFn, name: str) -> str:
    """Return the name with a letter left out, added, replaced or moved."""
    place = draw(st.integers(0, len(name) - 1))
    letter = draw(st.sampled_from("aeioust_"))
    edits = (
        name[:place] + name[place + 1 :],
        name[:place] + letter + name[place:],
        name[:place] + letter + name[place + 1 :],
        name[:place] + name[place + 1 : place + 2] + name[place] + name[place + 2 :],
    )
    return draw(st.sampled_from(edits))


def check_unknown(kind: type, wanted: str, unknown: str) -> None:
    names = list(read_parameters(kind))
    error = refuse(lambda: kind(**{unknown: 1}))
    assert error.problem == f"{kind.__name__}.{unknown} = 1: is not an argument of {kind.__name__}"
    assert f"{kind.__name__}(" in error.next_step
    near = re.match(r"did you mean (\w+)\?", error.next_step)
    assert near is None or near[1] in names
    assert near is not None or wanted not in names or len(wanted) <= SHORT_CHARS


@pytest.mark.parametrize("kind", CALLABLE, ids=name_of)
def test_an_unknown_argument_is_refused(kind: type) -> None:
    check_unknown(kind, "", "unheard_of")
    for name in read_parameters(kind):
        check_unknown(kind, name, f"{name}x")


@settings(max_examples=scale_examples(400))
@given(data=st.data())
def test_an_unknown_argument_is_named_with_the_nearest_one(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(CALLABLE))
    names = list(read_parameters(kind))
    wanted = data.draw(st.sampled_from(names)) if names else "seconds"
    unknown = data.draw(misspell(wanted))
    if unknown and unknown not in names:
        check_unknown(kind, wanted, unknown)


def check_surplus(kind: type, surplus: int, value: object) -> None:
    taken = [name for name, each in read_parameters(kind).items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    error = refuse(lambda: kind(*[value] * (len(taken) + surplus)))
    assert error.problem.startswith(f"{kind.__name__}(")
    assert f"{kind.__name__}(" in error.next_step
    assert all(name in error.problem for name in taken)
    assert len(str(error)) < TEXT_CHARS_MAX


@pytest.mark.parametrize("kind", CALLABLE, ids=name_of)
def test_an_argument_too_many_is_refused(kind: type) -> None:
    check_surplus(kind, 1, ["a"])


@settings(max_examples=scale_examples(200))
@given(kind=st.sampled_from(CALLABLE), surplus=st.integers(1, 1_000), value=VALUES)
def test_any_arguments_too_many_are_refused_in_a_short_text(kind: type, surplus: int, value: object) -> None:
    check_surplus(kind, surplus, value)


@pytest.mark.parametrize("kind", CALLABLE, ids=name_of)
def test_an_argument_that_is_given_twice_is_named(kind: type) -> None:
    for name, each in read_parameters(kind).items():
        if each.kind is each.POSITIONAL_OR_KEYWORD:
            error = refuse(lambda: kind(1, **{name: 1}))  # noqa: B023  # called immediately
            assert error.problem == f"{kind.__name__}.{name}: is given twice"
        break


@pytest.mark.parametrize("kind", ABSTRACT, ids=name_of)
def test_a_base_class_names_the_methods_that_a_subclass_defines(kind: type) -> None:
    error = refuse(kind)
    assert kind.__name__ in error.problem
    assert all(method in error.problem for method in kind.__abstractmethods__)  # type: ignore[attr-defined]  # of ABCMeta


@pytest.mark.parametrize("kind", CALLABLE, ids=name_of)
def test_a_declared_value_is_copied_and_pickled(kind: type) -> None:
    documented = EXAMPLE.search(kind.__doc__ or "")
    if documented is None or kind in {
        Stream,
        NAMES["Lookup"],
        NAMES["TableFields"],
        NAMES["EnvelopeFields"],
        NAMES["Function"],
    }:
        return  # their parts are local to this test
    value = eval(documented[1], NAMES)  # noqa: S307  # our own text
    assert copy.copy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301  # made here


class Failing(TableFold[Any, Any, Any, Any]):
    """A user's fold with a mistake in its own code."""

    def __init__(self, depth: int) -> None:
        self.depth = depth + "1"  # type: ignore[operator]  # wrong on purpose

    envelope = changes = emit = bytes.decode  # type: ignore[assignment]  # never called


def test_an_error_of_the_users_own_code_stays_as_it_is() -> None:
    with pytest.raises(TypeError, match="unsupported operand") as raised:
        Failing(1)
    assert not isinstance(raised.value, LockstepError)


def test_a_class_of_the_user_is_called_with_its_own_arguments() -> None:
    error = refuse(Failing)
    assert str(error) == "Failing.depth: is missing\n  next: for example Failing(depth=...)"


class Named(Protocol):
    """A user's interface."""

    name: str


class OfTwoBases(Adding, Named):
    """A fold that also derives from an interface."""

    name = "adding"


def test_a_fold_may_derive_from_an_interface_too() -> None:
    named: Named = OfTwoBases()
    assert (named.name, isinstance(named, Adding)) == ("adding", True)
    assert not isinstance(Adding(), OfTwoBases)


class Configured(Decoder):
    """A user's decoder that accepts any option."""

    def __init__(self, *parts: object, **options: object) -> None:
        self.parts = parts
        self.options = options

    def build(self, message_type: object) -> Any:
        del message_type
        return bytes.decode


def test_a_class_that_takes_anything_is_given_anything() -> None:
    assert Configured(1, 2, unknown=3).options == {"unknown": 3}


WORST: dict[str, tuple[Callable[..., object], str]] = {
    "no evidence": (
        Strict,
        "Strict.evidence: is missing\n  next: for example Strict(evidence=Sequence())",
    ),
    "no number of ids": (
        Once,
        "Once.keep_ids: is missing\n  next: for example Once(keep_ids=1_000)",
    ),
    "a misspelled option": (
        lambda: Stream(topic=Topics(pattern="a"), name="a", transform=Adding(), integrity=NoIntegrity()),  # type: ignore[call-arg]  # wrong on purpose
        (
            "Stream.topic = Topics(patter...t_by_topic={}): "
            "is not an argument of Stream\n  next: did you mean topics? For example Stream("
            'name="plants", topics=Topics(pattern="plants"), transform=Plants(), integrity=NoIntegrity())'
        ),
    ),
    "a list as a pattern": (
        lambda: Topics(["a"]),  # type: ignore[arg-type, call-arg]  # wrong on purpose
        "Topics(['a']): its arguments need names\n  next: for example Topics(pattern=r\"sensors\\..+\")",
    ),
}


@pytest.mark.parametrize("call", WORST)
def test_the_worst_calls_read_well(call: str) -> None:
    wrong, text = WORST[call]
    assert str(refuse(wrong)) == text


def test_checkers_and_help_see_the_real_arguments() -> None:
    assert list(read_parameters(Once)) == ["on_violation", "session_start", "keep_ids"]
    assert read_parameters(TableFold) == {}
    assert issubclass(CallError, DeclarationError)
