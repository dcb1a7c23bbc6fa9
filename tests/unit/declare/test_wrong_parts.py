"""A wrong part of a declaration is reported when it is declared, in the same words each time."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import msgspec
import pytest

from lockstep import (
    DecimalType,
    Every,
    FileSize,
    FuzzyWindow,
    Limits,
    Lookup,
    Objectives,
    Ordered,
    Sequence,
    Strict,
    Suspend,
    TableFields,
    Topics,
)
from lockstep.decoders import Avro, Function
from lockstep.derived import Export
from lockstep.errors import DeclarationError
from lockstep.model.field_types import check_field_types, find_owner, read_types
from lockstep.rules import InRange, Severity
from tests.support.adding_stream import adding
from tests.support.public_surface import list_public_classes

if TYPE_CHECKING:
    from collections.abc import Callable

FLAG = "is not of type bool\n  next: True or False, without quotes"
PREFIX = r"use a prefix: r'sensors\..+'"


class Unit(msgspec.Struct, frozen=True):
    """A row of a lookup."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Own(Avro):
    """A user's decoder with a field whose annotation is wrong."""

    limit: float


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "a pattern that is no expression": (
        lambda: Topics(pattern="sensors.["),
        (
            "Topics.pattern = 'sensors.[': is not a regular expression: unterminated character set at position 8\n"
            r"  next: for example r'sensors\..+'"
        ),
    ),
    "a pattern that is no text": (
        lambda: Topics(pattern=None),  # type: ignore[arg-type]  # wrong on purpose
        (
            "Topics.pattern = None: is not a text: one regular expression matches all topics\n"
            r"  next: for example r'sensors\..+', or r'sensors\..+|meters\..+'"
        ),
    ),
    "patterns in a list": (
        lambda: Topics(pattern=["a"]),  # type: ignore[arg-type]  # wrong on purpose
        (
            "Topics.pattern = ['a']: is not a text: one regular expression matches all topics\n"
            r"  next: for example r'sensors\..+', or r'sensors\..+|meters\..+'"
        ),
    ),
    "a pattern that matches everything": (
        lambda: Topics(pattern=".*"),
        f"Topics.pattern = '.*': matches the empty name, so it would match anything\n  next: {PREFIX}",
    ),
    "an exclusion that is no expression": (
        lambda: Topics(pattern="s.+", exclude="("),
        (
            "Topics.exclude = '(': is not a regular expression: missing ), unterminated subpattern at position 0\n"
            r"  next: for example r'sensors\..+'"
        ),
    ),
    "an exclusion of everything": (
        lambda: Topics(pattern="s.+", exclude=""),
        f"Topics.exclude = '': matches the empty name, so it would match anything\n  next: {PREFIX}",
    ),
    "a time of inactivity that is not positive": (
        lambda: Topics(pattern="s.+", inactive_after=timedelta(0)),
        "Topics.inactive_after = datetime.timedelta(0): is not a positive timedelta\n  next: timedelta(days=7)",
    ),
    "a time of inactivity without a unit": (
        lambda: Topics(pattern="s.+", inactive_after=7),  # type: ignore[arg-type]  # wrong on purpose
        "Topics.inactive_after = 7: is not a positive timedelta\n  next: timedelta(days=7)",
    ),
    "no function": (
        lambda: Function(5),  # type: ignore[arg-type]  # wrong on purpose
        "Function.decode = 5: is not a function\n  next: for example Function(read_message)",
    ),
    "a text for the effect of growth": (
        lambda: adding("s.+", Ordered(on_growth="restart sessions")),  # type: ignore[arg-type]  # wrong on purpose
        (
            "Ordered.on_growth = 'restart sessions': is not of type OnGrowth\n"
            "  next: OnGrowth.VIOLATION or OnGrowth.RESTART_SESSIONS"
        ),
    ),
    "a text for what becomes of repeats": (
        lambda: adding("s.+", Strict(evidence=Sequence(), repeats="drop")),  # type: ignore[arg-type]  # wrong on purpose
        "Strict.repeats = 'drop': is not of type Repeats\n  next: Repeats.VIOLATION or Repeats.DROP",
    ),
    "a pace that burns CPU": (
        lambda: Every(seconds=0.01),
        "Every.seconds = 0.01: is not between 0.05 and 3600\n  next: Every(seconds=5)",
    ),
    "a pace of days": (
        lambda: Every(seconds=86400),
        "Every.seconds = 86400: is not between 0.05 and 3600\n  next: Every(seconds=5)",
    ),
    "a pace that is no number": (
        lambda: Every(seconds=float("nan")),
        "Every.seconds = nan: is not between 0.05 and 3600\n  next: Every(seconds=5)",
    ),
    "a pace in words": (
        lambda: Every(seconds="5 s"),  # type: ignore[arg-type]  # wrong on purpose
        "Every.seconds = '5 s': is not between 0.05 and 3600\n  next: Every(seconds=5)",
    ),
    "a size without a unit": (
        lambda: FileSize("128"),
        "FileSize.target = '128': is not a size from 64 kB to 8 GB\n  next: a number and a unit: FileSize(\"128 MB\")",
    ),
    "a size that makes thousands of files": (
        lambda: FileSize("1 kB"),
        "FileSize.target = '1 kB': is not a size from 64 kB to 8 GB\n  next: a number and a unit: FileSize(\"128 MB\")",
    ),
    "a size as a number": (
        lambda: FileSize(128_000_000),  # type: ignore[arg-type]  # wrong on purpose
        (
            "FileSize.target = 128000000: is not a size from 64 kB to 8 GB\n"
            '  next: a number and a unit: FileSize("128 MB")'
        ),
    ),
    "a wait without end": (
        lambda: FileSize("128 MB", at_most=timedelta.max),
        (
            "FileSize.at_most = datetime.timedelta(days=999999999, seconds=86399, microseconds=999999): "
            "is not a time from a second to a day\n  next: timedelta(minutes=60)"
        ),
    ),
    "a limit that lets nothing through": (
        lambda: Limits(batch_messages=0),
        "Limits.batch_messages = 0: is not a positive whole number\n  next: leave it out for the default",
    ),
    "half a message": (
        lambda: Limits(batch_messages=0.5),  # type: ignore[arg-type]  # wrong on purpose
        "Limits.batch_messages = 0.5: is not a positive whole number\n  next: leave it out for the default",
    ),
    "a limit that is a yes": (
        lambda: Limits(topics=True),
        "Limits.topics = True: is not a positive whole number\n  next: leave it out for the default",
    ),
    "a negative time-out": (
        lambda: Limits(stop_timeout_seconds=-1.0),
        "Limits.stop_timeout_seconds = -1.0: is not a positive number\n  next: leave it out for the default",
    ),
    "a time-out that is no number": (
        lambda: Limits(handover_timeout_seconds=float("nan")),
        "Limits.handover_timeout_seconds = nan: is not a positive number\n  next: leave it out for the default",
    ),
    "a share in percent": (
        lambda: Limits(quarantine_share=5),
        (
            "Limits.quarantine_share = 5: is more than the whole batch, so that no batch would stop the stream\n"
            "  next: 0.1 for ten percent"
        ),
    ),
    "a codec in words": (
        lambda: Export(codec="zstd"),  # type: ignore[arg-type]  # wrong on purpose
        "Export.codec = 'zstd': is not one of Codec\n  next: Codec.ZSTD",
    ),
    "one column instead of several": (
        lambda: Export(columns="price"),  # type: ignore[arg-type]  # wrong on purpose
        "Export.columns = 'price': is not a tuple of names\n  next: for example ('_topic',)",
    ),
    "one column to divide by": (
        lambda: Export(partition_by="product"),  # type: ignore[arg-type]  # wrong on purpose
        "Export.partition_by = 'product': is not a tuple of names\n  next: for example ('_topic',)",
    ),
    "a row group in words": (
        lambda: Export(row_group_rows="5"),  # type: ignore[arg-type]  # wrong on purpose
        "Export.row_group_rows = '5': is not a positive whole number\n  next: 1_000_000",
    ),
    "an objective without a unit": (
        lambda: Objectives(freshness=300),  # type: ignore[arg-type]  # wrong on purpose
        "Objectives.freshness = 300: is not a positive timedelta\n  next: for example timedelta(minutes=5)",
    ),
    "an objective that is left open where there must be one": (
        lambda: Objectives(headroom=None),  # type: ignore[arg-type]  # wrong on purpose
        "Objectives.headroom = None: is not a positive timedelta\n  next: for example timedelta(minutes=5)",
    ),
    "a quarantine that nobody may enter": (
        lambda: Objectives(quarantine_per_hour=0),
        "Objectives.quarantine_per_hour = 0: is not a positive whole number\n  next: leave it out for the default",
    ),
    "evidence that is none": (
        lambda: Strict(evidence="sequence"),  # type: ignore[arg-type]  # wrong on purpose
        "Strict.evidence = 'sequence': is not evidence\n  next: for example Strict(evidence=Sequence())",
    ),
    "a yes in words": (
        lambda: adding("s.+", FuzzyWindow(lateness=timedelta(seconds=5), reorder="yes")),  # type: ignore[arg-type]  # wrong on purpose
        f"FuzzyWindow.reorder = 'yes': {FLAG}",
    ),
    "a no in words": (
        lambda: adding("s.+", Strict(evidence=Sequence(), buffer_until_snapshot="no")),  # type: ignore[arg-type]  # wrong on purpose
        f"Strict.buffer_until_snapshot = 'no': {FLAG}",
    ),
    "a flag of a policy as a number": (
        lambda: adding("s.+", Ordered(on_violation=Suspend(accept_loss=1))),  # type: ignore[arg-type]  # wrong on purpose
        f"Suspend.accept_loss = 1: {FLAG}",
    ),
    "a flag of a rule in words": (
        lambda: replace(adding("s.+"), rules=[InRange("value", at_least=0, blocking="no", severity=Severity.CRITICAL)]),  # type: ignore[arg-type]  # wrong on purpose
        f"InRange.blocking = 'no': {FLAG}",
    ),
    "a pace that is a yes": (
        lambda: replace(adding("s.+"), trigger=Every(seconds=True)),
        "Every.seconds = True: is not of type float\n  next: a number, without quotes",
    ),
    "a number as a folder": (
        lambda: Export(folder=5),  # type: ignore[arg-type]  # wrong on purpose
        "Export.folder = 5: is not of type str\n  next: a text in quotes",
    ),
    "a schema that is a number": (
        lambda: replace(adding("s.+"), decoder=Avro(reader_schema=5)),  # type: ignore[arg-type]  # wrong on purpose
        (
            "Avro.reader_schema = 5: cannot be parsed: TypeError: a bytes-like object is required, not 'int'\n"
            "  next: pass an Avro schema as JSON text, or leave it out"
        ),
    ),
    "digits in quotes": (
        lambda: DecimalType("18", 8),  # type: ignore[arg-type]  # wrong on purpose
        "DecimalType.precision = '18': is not of type int\n  next: a whole number, without quotes",
    ),
    "a number of rows that is a yes": (
        lambda: Lookup("units", "/units", key="number", row=Unit, rows_max=True),
        "Lookup.rows_max = True: is not of type int\n  next: a whole number, without quotes",
    ),
    "a field as a flag": (
        lambda: TableFields(snapshot=Unit, rows="rows", key="key", emits_unchanged="yes"),  # type: ignore[arg-type]  # wrong on purpose
        f"TableFields.emits_unchanged = 'yes': {FLAG}",
    ),
}


@pytest.mark.parametrize("kind", list(filter(is_dataclass, list_public_classes())), ids=lambda kind: kind.__name__)
def test_the_types_of_all_fields_are_known_where_they_are_checked(kind: type) -> None:
    """If only a type checker imported a name, each declaration of the class would end in a NameError."""
    assert set(read_types(kind)) == {each.name for each in fields(kind)}


def test_fields_that_users_declare_are_theirs() -> None:
    assert find_owner(Own) is Avro
    own = Own(limit="any")  # type: ignore[arg-type]  # wrong on purpose
    check_field_types(own)
    with pytest.raises(DeclarationError, match=r"^Own.reader_schema = 5: is not of type str"):
        check_field_types(replace(own, reader_schema=5))  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_part_is_refused_with_its_field_value_problem_and_remedy(what: str) -> None:
    declare, message = WRONG[what]
    with pytest.raises(DeclarationError) as refused:
        declare()
    assert str(refused.value) == message


def test_the_parts_of_a_refusal_are_attributes() -> None:
    with pytest.raises(DeclarationError) as refused:
        Every(seconds=-1)
    error = refused.value
    assert (error.field, error.value, error.next_step) == ("Every.seconds", -1, "Every(seconds=5)")


def test_topics_are_selected_by_their_whole_name_without_internal_and_excluded_ones() -> None:
    topics = Topics(pattern=r"sensors\..+|__.+", exclude=r".*\.test")
    names = ["sensors.a", "sensors.b.test", "xsensors.a", "sensors.", "__consumer_offsets", "other"]
    assert topics.select(names) == {"sensors.a"}
