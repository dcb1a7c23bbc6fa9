"""A stream is checked fully when it is declared, and sent to executors by name."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import pytest

from lockstep import FileSize, Halt, Json, Objectives, Sequence, Stream, Strict, TableFold, Transform
from lockstep.declare.naming import NO_NAME
from lockstep.declare.stream import read_transform_types
from lockstep.decoders import Decoder, Function, MessagePack
from lockstep.errors import DeclarationError
from tests.unit.declare import wrong_transforms as wrong
from tests.unit.declare.panels import Panel, PanelTransform, Reading, Snapshot, Update, panels

if TYPE_CHECKING:
    from collections.abc import Callable

    import msgspec


TOP_LEVEL = "put messages, transform and stream at the top level of a module, for example assets/sensors.py"


def refusal(**changed: object) -> str:
    with pytest.raises(DeclarationError) as refused:
        panels(**changed)
    return str(refused.value)


@pytest.mark.parametrize("name", ["", "Panels", "1panel", "panel-a", "panel.a", "panel a", "p" * 64, "../panels"])
def test_a_name_that_is_no_lower_case_name_is_refused(name: str) -> None:
    assert refusal(name=name) == (f"Stream.name = {name!r}: {NO_NAME}\n  next: for example 'order_books'")


@pytest.mark.parametrize(
    ("part", "value", "expected"),
    [
        ("name", None, "is not of type str\n  next: for example 'order_books'"),
        ("topics", "sensors.+", "is not of type Topics\n  next: for example Topics(pattern=r'sensors\\..+')"),
        ("transform", PanelTransform, "is not of type Transform\n  next: an instance, for example MyTransform()"),
        ("integrity", Strict, "is not of type IntegrityClass\n  next: for example Strict(evidence=Sequence())"),
        ("decoder", Json, "is not of type Decoder\n  next: for example Json()"),
        ("trigger", 5, "is not of type Every | AvailableNow | FileSize\n  next: for example Every(seconds=5)"),
        ("limits", {"topics": 5}, "is not of type Limits\n  next: for example Limits(batch_messages=100_000)"),
        ("description", 5, "is not of type str\n  next: for example 'Order books of all markets'"),
    ],
)
def test_a_part_of_another_type_is_refused(part: str, value: object, expected: str) -> None:
    assert refusal(**{part: value}) == f"Stream.{part} = {value!r}: {expected}"


def test_a_policy_that_is_none_is_refused() -> None:
    integrity = Strict(evidence=Sequence(), on_violation="halt")  # type: ignore[arg-type]  # wrong on purpose
    assert refusal(integrity=integrity) == (
        "Strict.on_violation = 'halt': is not of type Policy\n  next: for example Halt()"
    )


def test_an_objective_that_a_healthy_stream_misses_is_refused() -> None:
    objectives = Objectives(freshness=timedelta(minutes=30))
    told = 'under FileSize(target="128 MB", at_most=timedelta(hours=1))\n  next: more than timedelta(hours=1)'
    assert told in refusal(objectives=objectives, trigger=FileSize("128 MB"))
    assert panels(objectives=objectives).objectives is objectives


def test_a_timer_without_a_deadline_is_refused() -> None:
    assert refusal(transform=wrong.Timed()) == (
        "Stream.transform = 'Timed': has on_timer without deadline\n  next: override deadline too, or neither"
    )


def test_a_deadline_without_a_timer_is_refused() -> None:
    assert refusal(transform=wrong.Due()).startswith("Stream.transform = 'Due': has deadline without on_timer")


def test_a_hook_for_late_messages_is_refused_where_none_is_late() -> None:
    assert refusal(transform=wrong.Late()) == (
        "Stream.transform = 'Late.on_late': is never called under Strict: no message is late\n"
        "  next: use FuzzyWindow(lateness=...), or remove on_late"
    )


def test_hooks_that_run_are_accepted() -> None:
    panels(transform=wrong.Watermarked())
    panels(transform=wrong.Ending())


def test_a_transform_inside_a_function_is_refused() -> None:
    class Local(PanelTransform):
        pass

    name = f"{__name__}.test_a_transform_inside_a_function_is_refused.<locals>.Local"
    assert refusal(transform=Local()) == (
        f"Stream.transform = {name!r}: executors cannot import it\n  next: {TOP_LEVEL}"
    )


def test_a_transform_of_a_script_is_refused() -> None:
    script = textwrap.dedent("""
        from lockstep.errors import DeclarationError
        from tests.unit.declare.panels import PanelTransform, panels
        class Scripted(PanelTransform): ...
        try:
            panels(transform=Scripted())
        except DeclarationError as error:
            print(error)
    """)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == (f"Stream.transform = '__main__.Scripted': executors cannot import it\n  next: {TOP_LEVEL}\n")


def test_a_lambda_as_decoder_is_refused() -> None:
    decoder = Function(lambda value: value)
    name = f"{__name__}.test_a_lambda_as_decoder_is_refused.<locals>.<lambda>"
    assert refusal(decoder=decoder) == (f"Stream.decoder = {name!r}: executors cannot import it\n  next: {TOP_LEVEL}")


def test_a_decoder_inside_a_function_is_refused() -> None:
    class Local(Decoder):
        def build(self, message_type: object) -> Callable[[bytes], object]:
            raise NotImplementedError

    assert "Local': executors cannot import it" in refusal(decoder=Local())


def test_a_transform_that_holds_a_lock_is_refused() -> None:
    assert refusal(transform=wrong.Holding(threading.Lock())) == (
        "Stream = 'panels': cannot be sent to executors: cannot pickle '_thread.lock' object\n"
        "  next: keep open files, connections and locks out of the transform and the decoder"
    )


WRONG_TYPES: dict[type, str] = {
    wrong.NoTags: (
        r"Stream\.transform = .*UntaggedA \| .*UntaggedB: messages cannot be decoded to this type: .*"
        r"all Struct types must be tagged.*\n  next: use a msgspec\.Struct, or a union of Structs distinguished "
        r"by tag_field and tag"
    ),
    wrong.UnresolvedMessage: (
        r"Stream\.transform = .*Unresolved'>: messages cannot be decoded to this type: name 'Fraction' is not "
        r"defined\n  next: use a msgspec\.Struct, .*"
    ),
    wrong.OwnNameRow: (
        r"OwnName\._offset = '_offset': names that begin with _ and commit_hour belong to lockstep's own columns\n"
        r"  next: rename the field"
    ),
    wrong.PartitionNameRow: (
        r"PartitionName\.Commit_Hour = 'Commit_Hour': names that begin with _ and commit_hour belong to lockstep's "
        r"own columns\n  next: rename the field"
    ),
    wrong.SameButForCaseRow: (
        r"SameButForCase\.Price = 'Price': Delta cannot tell it from the column 'price': case does not count\n"
        r"  next: rename one"
    ),
    wrong.NoColumnRow: (
        r"NoColumn\.tags = set\[str\]: has no column type\n  next: use list\[X\] with a fixed order: a set "
        r"has none, and a replayed row must be the same"
    ),
    wrong.UnsavedState: (
        r"Transform\[Message, State, Row\]: the state type = .*Unsaved.*: cannot be saved and recovered: msgspec "
        r"does not encode and decode it by itself\n  next: use types that msgspec encodes: .*"
    ),
    wrong.DictRow: (
        r"Stream\.transform = <class 'dict'>: the row type is not a msgspec\.Struct\n  next: declare the row as one"
    ),
    wrong.Untyped: (
        r"Stream\.transform = 'Untyped': does not declare its message, state and row types\n"
        r"  next: write `class Untyped\(Transform\[Message, State, Row\]\)`"
    ),
    wrong.KeyedBy: (
        r"Stream\.transform = 'KeyedBy': does not declare its message, state and row types\n"
        r"  next: write `class KeyedBy\(Transform\[Message, State, Row\]\)`"
    ),
}


@pytest.mark.parametrize("transform", WRONG_TYPES, ids=lambda transform: transform.__name__)
def test_types_that_cannot_work_are_refused(transform: type) -> None:
    message = refusal(transform=transform())
    assert re.fullmatch(WRONG_TYPES[transform], message, re.DOTALL), message


def test_a_whole_declaration_is_accepted_with_its_defaults() -> None:
    stream = panels()
    assert (stream.types.message, stream.types.state, stream.types.row) == (Snapshot | Update, Panel, Reading)
    assert stream.integrity.on_violation == Halt()
    assert stream.decoder == Json()


@pytest.mark.parametrize("decoder", [Json(), MessagePack(), Function(wrong.decode_update)])
def test_a_stream_goes_to_executors_by_name_and_comes_back_equal(decoder: Decoder) -> None:
    stream = panels(transform=PanelTransform(unit="ohm"), decoder=decoder)
    again: Stream[Snapshot | Update, Panel, msgspec.Struct] = pickle.loads(stream.shipped())  # noqa: S301  # made here
    assert again == stream
    assert type(again.transform) is PanelTransform
    assert again.types == stream.types
    assert again != panels(transform=PanelTransform(unit="volt"), decoder=decoder)


def test_what_was_computed_from_a_declaration_does_not_travel() -> None:
    stream = panels()
    before = stream.shipped()
    assert stream.types is stream.types
    assert stream.shipped() == before


M = TypeVar("M")
S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R", bound=msgspec.Struct)
A = TypeVar("A")
B = TypeVar("B", bound=msgspec.Struct)

Messages = Snapshot | Update


class Direct(Transform[Messages, Panel, Reading]): ...


class Inherited(Direct): ...


class InheritedTwice(Inherited): ...


class Named(Generic[T]):
    """A generic base that is not a transform."""


class WithMixinBefore(Named[int], Direct): ...


class WithPlainMixin(Direct, Named[int]): ...


class RowLeftOpen(Transform[Messages, Panel, R], Generic[R]): ...


class RowGiven(RowLeftOpen[Reading]): ...


class Renamed(Transform[A, dict[str, S], B], Generic[S, B, A]):
    """A transform whose type parameters are in another order than the base's."""


class Turned(Renamed[Panel, Reading, Messages]): ...


class StillOpen(Renamed[S, Reading, Messages], Generic[S]): ...


class Closed(StillOpen[int]): ...


class Optional(Transform[A | None, list[A], Reading], Generic[A]): ...


class OptionalOfUpdate(Optional[Update]): ...


class Fold(TableFold[Messages, str, float, Reading]): ...


class FoldOf(TableFold[M, tuple[str, T], T, Reading], Generic[M, T]): ...


class FoldOfFloat(FoldOf[Update, float]): ...


FOUND: dict[type, tuple[object, object, type[msgspec.Struct]]] = {
    Direct: (Messages, Panel, Reading),
    Inherited: (Messages, Panel, Reading),
    InheritedTwice: (Messages, Panel, Reading),
    WithMixinBefore: (Messages, Panel, Reading),
    WithPlainMixin: (Messages, Panel, Reading),
    RowGiven: (Messages, Panel, Reading),
    Turned: (Messages, dict[str, Panel], Reading),
    Closed: (Messages, dict[str, int], Reading),
    OptionalOfUpdate: (Update | None, list[Update], Reading),
    Fold: (Messages, dict[str, float], Reading),
    FoldOfFloat: (Update, dict[tuple[str, float], float], Reading),
}


@pytest.mark.parametrize("transform", FOUND, ids=lambda transform: transform.__name__)
def test_the_types_are_found_through_any_depth_of_generic_bases(transform: type) -> None:
    message, state, row = FOUND[transform]
    found = read_transform_types(transform)
    assert (found.message, found.state, found.row) == (message, state, row)


@pytest.mark.parametrize("transform", [RowLeftOpen, StillOpen, Renamed, TableFold, FoldOf, Transform])
def test_a_class_that_leaves_a_type_open_is_refused(transform: type) -> None:
    with pytest.raises(DeclarationError, match=r"does not declare its message, state and row types"):
        read_transform_types(transform)
