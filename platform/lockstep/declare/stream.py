"""Stream: one declaration, validated at import; message, state and row types are read from generics."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from functools import cached_property
from types import UnionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, get_origin

import msgspec

from lockstep.declare.archive import Archive
from lockstep.declare.decoders.base import Decoder
from lockstep.declare.decoders.plain import Function, Json
from lockstep.declare.delivery import Delivery, check_deliveries
from lockstep.declare.lookup import Lookup, check_lookups
from lockstep.declare.naming import NAME, NO_NAME
from lockstep.declare.options import (
    EventTime,
    Every,
    Export,
    GroupOffsets,
    Limits,
    Objectives,
    Topics,
    Trigger,
    find_longest_wait,
)
from lockstep.declare.replay import ReplayKey, find_replay_key
from lockstep.declare.rules import OnViolation, Rule, check_rules
from lockstep.declare.transform import M, R, S, Transform, is_overridden
from lockstep.errors import DeclarationError
from lockstep.integrity.base import IntegrityClass
from lockstep.integrity.verdict import Judgement
from lockstep.model.declaration import Declaration
from lockstep.model.fault import Fault
from lockstep.model.field_types import check_class, check_classes, check_field_types, format_type

if TYPE_CHECKING:
    import pyarrow as pa


class TransformTypes(msgspec.Struct, frozen=True):
    """The three types of a transform.

    Attributes:
        message: The decoder's result.
        state: The state of one session.
        row: The output row, a Struct.
        stored: The type that stores the state.
    """

    message: object
    state: object
    row: type[msgspec.Struct]
    stored: object


def read_transform_types(transform: type) -> TransformTypes:
    """The M, S and R of a class such as `class Panel(Transform[Snapshot | Update, State, Row])`.

    Raises:
        DeclarationError: The class leaves one of them open.
    """
    arguments = _arguments(transform, {})
    if arguments is None or any(_is_open(argument) for argument in arguments):
        raise DeclarationError(
            "Stream.transform",
            transform.__name__,
            "does not declare its message, state and row types",
            f"write `class {transform.__name__}(Transform[Message, State, Row])`",
        )
    message, state, row = arguments
    row_class = _class(row)
    if row_class is None or not issubclass(row_class, msgspec.Struct):
        raise DeclarationError(
            "Stream.transform", row, "the row type is not a msgspec.Struct", "declare the row as one"
        )
    stored = cast("type[Transform[Any, Any, Any]]", transform).find_stored_type(state)
    return TransformTypes(message=message, state=state, row=row_class, stored=stored)


def _is_open(argument: object) -> bool:
    """Whether an argument contains a type variable, also nested (`dict[K, V]`)."""
    inside: object = () if _class(argument) else getattr(argument, "__parameters__", ())
    return isinstance(argument, TypeVar) or bool(inside)


def _arguments(cls: type, known: dict[object, object]) -> tuple[object, ...] | None:
    """Walk up the bases, replacing type variables by the subclass's arguments."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        arguments = tuple(_replace(argument, known) for argument in get_args(base))
        if origin is Transform:
            return arguments
        generic = _class(origin)
        if generic is not None and _is_transform(generic):
            return _arguments(generic, dict(zip(_parameters(generic), arguments, strict=True)))
    # A base without type arguments: its own bases have them.
    for plain in cls.__bases__:
        if _is_transform(plain) and plain is not Transform:
            return _arguments(plain, {})
    return None


def _is_transform(cls: type[Any]) -> bool:
    return issubclass(cls, Transform)


def _class(value: object) -> type[Any] | None:
    if isinstance(value, type):
        return cast("type[Any]", value)
    return None


def _parameters(cls: type) -> tuple[object, ...]:
    return tuple(getattr(cls, "__parameters__", ()))


def _replace(argument: object, known: dict[object, object]) -> object:
    """Substitute the known types in one argument, also if it is generic itself (`dict[K, V]`)."""
    if argument in known:
        return known[argument]
    inner = getattr(argument, "__parameters__", ())
    if not inner:
        return argument
    return cast("Any", argument)[tuple(known.get(parameter, parameter) for parameter in inner)]


@dataclass(frozen=True, kw_only=True)
class Stream(Declaration, Generic[M, S, R]):
    """A declared pipeline from a family of topics to one table.

    Example: `Stream(name="plants", topics=Topics(pattern="plants"), transform=Plants(), integrity=NoIntegrity())`

    Attributes:
        name: Lower-case name; folder of the table, asset key, name of the consumer group. For all streams.
        topics: The topics that are read. For all streams.
        transform: The fold. For all streams.
        integrity: The promise, its evidence, and the reaction to a violation. For all streams.
        decoder: Decodes a record's value. For messages that are not JSON.
        trigger: When a batch starts. For rows sooner or later than five seconds, bounded runs, and files of one size.
        limits: Bounds. For very large messages, very many topics or a very slow fold.
        event_time: Watermark, timers and idle timeouts. For timers, sessions that end when idle, and wrong clocks.
        objectives: When the stream raises an alarm. For rows that somebody waits for.
        retention: How long rows stay in the table, in whole hours counted from the newest batch; None keeps all. For
            tables that must not grow without end.
        quarantine_retention: How long messages stay in quarantine and late table, counted likewise; None keeps all. For
            personal data in refused messages.
        archive: Keeps each message as Kafka had it (docs/archive.md); None for none. For topics with a short retention.
        current: Whether the table `<table_root>/<stream>/current` is kept (docs/current.md). For readers of the newest
            values, and for tables with `retention`.
        export: A plain Parquet dataset of the old hours; None for none. For readers without Delta.
        deliveries: Targets outside of the table that receive the rows (docs/deliver.md): exactly once in Kafka and
            Postgres, at least once at a webhook. For consumers of a topic, a database or a system of your own.
        rules: Promises about the rows (docs/quality.md). For more than completeness and order.
        lookups: Other Delta tables that the transform reads (docs/lookups.md). For folds that need reference data.
        host_group: `lockstep host` runs the streams of a group in one process (docs/host.md); None keeps a stream out
            of each host. For streams that need a driver for themselves, and for several hosts.
        description: A sentence for people, shown in the asset catalog. For teams that share a catalog.

    Raises:
        DeclarationError: Names the field, the value and a valid alternative.
    """

    name: str
    topics: Topics
    transform: Transform[M, S, R]
    integrity: IntegrityClass
    decoder: Decoder = field(default_factory=Json)
    trigger: Trigger = field(default_factory=Every)
    limits: Limits = field(default_factory=Limits)
    event_time: EventTime = field(default_factory=EventTime)
    objectives: Objectives = field(default_factory=Objectives)
    retention: timedelta | None = None
    quarantine_retention: timedelta | None = None
    archive: Archive | None = None
    current: bool = False
    export: Export | None = None
    deliveries: Sequence[Delivery] = ()
    rules: Sequence[Rule] = ()
    lookups: Sequence[Lookup[Any]] = ()
    host_group: str | None = "default"
    description: str = ""

    def __post_init__(self) -> None:
        """Check everything that needs neither Kafka nor the table."""
        check_classes(self)
        _check_parts(self)
        if not NAME.fullmatch(self.name):
            raise DeclarationError("Stream.name", self.name, NO_NAME, "for example 'order_books'")
        if self.host_group is not None and not NAME.fullmatch(self.host_group):
            raise DeclarationError("Stream.host_group", self.host_group, NO_NAME, "for example 'markets', or None")
        _check_start(self)
        _check_on_snapshot(type(self.transform))
        _check_envelope(type(self.transform), self.types.message)
        _check_timers(self.transform, self.integrity)
        self.transform.check_integrity(self.integrity)
        _check_freshness(self.objectives, self.trigger)
        _check_retention("Stream.retention", self.retention, "rows")
        _check_retention("Stream.quarantine_retention", self.quarantine_retention, "messages")
        _check_archive(self.archive)
        check_lookups(self.lookups, self.name)
        _check_importable(self)
        _check_shippable(self)
        _check_types(self.types, self.decoder)
        key = find_replay_key(self.transform, self.types.state, self.types.row)
        _check_current(self.transform, key, wanted=self.current)
        _check_export(self.export, self.types)
        check_deliveries(self.deliveries, self.topics, self.types.row)
        check_rules(self.rules, self.types.row)
        _check_quarantine(self.rules, self.integrity)
        check_field_types(self)  # last: the checks before it know better what would be right

    @property
    def replay_key(self) -> ReplayKey | None:
        """The columns by which rows replay to the states of sessions; None if they do not."""
        return find_replay_key(self.transform, self.types.state, self.types.row)

    @cached_property
    def types(self) -> TransformTypes:
        """Message, state and row type of the transform."""
        return read_transform_types(type(self.transform))

    def shipped(self) -> bytes:
        """The declaration as sent to executors: classes by name, values by content."""
        return pickle.dumps(self)

    def __getstate__(self) -> dict[str, object]:
        """Exclude values computed from the fields, and the deliveries: executors need neither."""
        return {name: value for name, value in self.__dict__.items() if name not in {"types", "deliveries"}}


_PARTS: Mapping[str, tuple[type | UnionType, str]] = {
    "name": (str, "for example 'order_books'"),
    "topics": (Topics, r"for example Topics(pattern=r'sensors\..+')"),
    "transform": (Transform, "an instance, for example MyTransform()"),
    "integrity": (IntegrityClass, "for example Strict(evidence=Sequence())"),
    "decoder": (Decoder, "for example Json()"),
    "trigger": (Trigger, "for example Every(seconds=5)"),
    "limits": (Limits, "for example Limits(batch_messages=100_000)"),
    "event_time": (EventTime, "for example EventTime(session_idle=timedelta(minutes=30))"),
    "objectives": (Objectives, "for example Objectives(freshness=timedelta(minutes=5))"),
    "rules": (Sequence, "for example [NotNull('price')]"),
    "lookups": (Sequence, "for example (INSTRUMENTS,)"),
    "description": (str, "for example 'Order books of all markets'"),
}


def _check_parts(stream: Stream[M, S, R]) -> None:
    """Refuse a part of another type, such as a class instead of a value, before anything uses it."""
    for name, (kind, instead) in _PARTS.items():
        value = getattr(stream, name)
        if not isinstance(value, kind):
            raise DeclarationError(f"Stream.{name}", value, f"is not of type {format_type(kind)}", instead)


def _check_start(stream: AnyStream) -> None:
    """Refuse the group in which the stream itself publishes its positions: it has none before the first run."""
    for start in (stream.topics.start, *stream.topics.start_by_topic.values()):
        if isinstance(start, GroupOffsets) and start.group == stream.name:
            problem = "is the consumer group in which this stream publishes its own positions"
            raise DeclarationError("Topics.start", start, problem, "rename the stream, or FirstSnapshot()")


def _check_envelope(kind: type[Transform[M, S, R]], message_type: object) -> None:
    """Refuse a transform without an envelope, and fields that a method hides."""
    declared = kind.envelope_fields
    has_method = is_overridden(kind, "envelope")
    if declared is None and not has_method:
        right = 'a method envelope, or envelope_fields = EnvelopeFields(sequence="seq")'
        raise DeclarationError("Stream.transform", kind.__name__, "has neither envelope nor envelope_fields", right)
    if declared is not None and has_method and _find_owner(kind, "envelope_fields") <= _find_owner(kind, "envelope"):
        problem = "has envelope_fields that its method envelope hides"
        raise DeclarationError("Stream.transform", kind.__name__, problem, "remove one of the two")
    check_class(f"{kind.__name__}: envelope_fields", declared)
    if declared is not None and not has_method:
        declared.check(kind.__name__, message_type)


def _find_owner(kind: type, name: str) -> int:
    """The place of the class that defines an attribute, among a class and its bases."""
    return next(place for place, each in enumerate(kind.__mro__) if name in vars(each))


def _check_on_snapshot(kind: type[Transform[M, S, R]]) -> None:
    """Refuse an `on_snapshot` that does not take the previous state."""
    try:
        inspect.signature(kind.on_snapshot).bind("self", "message", "record", "previous")
    except TypeError as error:
        right = (
            "on_snapshot(self, message, record, previous): previous is the state that the snapshot replaces, or None"
        )
        raise DeclarationError("Stream.transform", f"{kind.__name__}.on_snapshot", str(error), right) from None


def _check_timers(transform: Transform[M, S, R], integrity: IntegrityClass) -> None:
    """Refuse hooks that would never be called."""
    kind = type(transform)
    for hook, other in (("deadline", "on_timer"), ("on_timer", "deadline")):
        if is_overridden(kind, hook) and not is_overridden(kind, other):
            problem = f"has {hook} without {other}"
            raise DeclarationError("Stream.transform", kind.__name__, problem, f"override {other} too, or neither")
    if is_overridden(kind, "on_late") and not integrity.keeps_late:
        raise DeclarationError(
            "Stream.transform",
            f"{kind.__name__}.on_late",
            f"is never called under {type(integrity).__name__}: no message is late",
            "use FuzzyWindow(lateness=...), or remove on_late",
        )


def _check_freshness(objectives: Objectives, trigger: Trigger) -> None:
    """Refuse an objective that the stream misses while all is well."""
    wait = find_longest_wait(trigger)
    if objectives.freshness is not None and objectives.freshness <= wait:
        raise DeclarationError(
            "Objectives.freshness",
            objectives.freshness,
            f"is not longer than messages wait for their batch under {format_source(trigger, with_defaults=True)}",
            f"more than {format_source(wait)}, or a shorter trigger",
        )


RETENTION_MAX = timedelta(days=36_525)
"""A century: a longer time keeps all rows, and dates before the year 1 cannot be computed."""


def _check_retention(field_name: str, retention: object, kept: str) -> None:
    if retention is None:
        return
    if not isinstance(retention, timedelta) or retention < timedelta(hours=1):
        raise DeclarationError(field_name, retention, "is not at least an hour", "for example timedelta(days=90)")
    if retention > RETENTION_MAX:
        raise DeclarationError(field_name, retention, "is more than a century", f"None, which keeps all {kept}")


def _check_archive(archive: object) -> None:
    if archive is None:
        return
    if not isinstance(archive, Archive):
        raise DeclarationError("Stream.archive", archive, "is not an archive", "for example Archive()")
    _check_retention("Archive.keep", archive.keep, "messages")


def _check_current(transform: Transform[M, S, R], key: ReplayKey | None, *, wanted: bool) -> None:
    """Refuse a current table of rows that do not replay to the states."""
    if wanted and key is None:
        problem = f"needs rows that replay to the states, which those of {type(transform).__name__} do not"
        right = "False; or declare `key` and `removed` in the transform, and keep `ends_remove`"
        raise DeclarationError("Stream.current", wanted, problem, right)


def _check_export(export: object, types: TransformTypes) -> None:
    """Refuse columns that the table will not have."""
    if export is None:
        return
    if not isinstance(export, Export):
        raise DeclarationError("Stream.export", export, "is not an export", "for example Export()")
    from lockstep.model.table_schema import make_file_schema

    schema = make_file_schema(types.row)
    columns = schema.names
    for name in (*export.columns, *export.partition_by):
        if name not in columns:
            right = f"one of {', '.join(columns)}"
            raise DeclarationError("Stream.export", name, "is not a column of the table", right)
    for name in export.partition_by:
        _check_folder_type(name, schema.types[columns.index(name)])
        # The folder has the name without underscores at its start.
        if name.lstrip("_") != name and name.lstrip("_") in columns:
            problem = f"would be a folder {name.lstrip('_')}=..., which is another column of the table"
            raise DeclarationError("Stream.export", name, problem, "another column")


def _check_folder_type(name: str, kind: pa.DataType) -> None:
    """Refuse to divide by values that cannot be names of folders: NaN equals nothing, and others have several texts."""
    import pyarrow as pa

    divides = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)
    if not any(is_kind(kind) for is_kind in divides):
        problem = f"is a column of type {kind}, whose values cannot be names of folders"
        raise DeclarationError("Export.partition_by", name, problem, "a column of texts, integers, booleans or dates")


def _check_quarantine(rules: Sequence[Rule], integrity: IntegrityClass) -> None:
    """Refuse to leave messages out of a stream whose class promises that none is missing."""
    if integrity.judge(Fault.TRANSFORM_FAILED) is not Judgement.VIOLATION:
        return
    for rule in rules:
        if rule.on_violation is OnViolation.QUARANTINE:
            problem = f"leaves a message out, and {type(integrity).__name__} with Halt() promises that none is missing"
            instead = f"OnViolation.FAIL, or {type(integrity).__name__}(on_violation=Suspend())"
            raise rule.error("on_violation", rule.on_violation, problem, instead)


def _check_importable(stream: Stream[M, S, R]) -> None:
    """Executors import classes and functions by name; an object pickled by value would lose its fields."""
    for field_name, imported in _imported_by_executors(stream):
        module = getattr(imported, "__module__", "")
        name = getattr(imported, "__qualname__", "")
        if module == "__main__" or "<" in name:  # <locals>, <lambda>
            raise DeclarationError(
                field_name,
                f"{module}.{name}",
                "executors cannot import it",
                "put messages, transform and stream at the top level of a module, for example assets/sensors.py",
            )
        if module and module not in sys.modules:
            raise DeclarationError(field_name, module, "is not an imported module", "import it by name")


def _imported_by_executors(stream: Stream[M, S, R]) -> Iterator[tuple[str, object]]:
    yield "Stream.transform", type(stream.transform)
    yield "Stream.decoder", type(stream.decoder)
    if isinstance(stream.decoder, Function):
        yield "Stream.decoder", stream.decoder.decode
    registry: object = getattr(stream.decoder, "registry", None)
    if registry is not None:
        yield "Stream.decoder.registry", type(registry)
    for lookup in stream.lookups:
        yield "Lookup.row", lookup.row


def _check_shippable(stream: Stream[M, S, R]) -> None:
    try:
        stream.shipped()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise DeclarationError(
            "Stream",
            stream.name,
            f"cannot be sent to executors: {error}",
            "keep open files, connections and locks out of the transform and the decoder",
        ) from error


def _check_types(types: TransformTypes, decoder: Decoder) -> None:
    # Imported here: the two packages below judge declarations, they declare nothing.
    from lockstep.model.table_schema import make_row_schema
    from lockstep.state.codec import StateSchema

    decoder.build(types.message)
    make_row_schema(types.row)
    StateSchema(types.state)
    StateSchema(types.stored)


_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60))


def format_source(value: object, *, with_defaults: bool = False) -> str:
    """The value as source text.

    Args:
        value: A part of a declaration: a dataclass, or a plain value.
        with_defaults: Also show the fields of a dataclass that have their default.
    """
    if is_dataclass(value) and not isinstance(value, type):
        shown = [each for each in fields(value) if each.init and (with_defaults or _differs(value, each))]
        parts = ", ".join(f"{each.name}={format_source(getattr(value, each.name))}" for each in shown)
        return f"{type(value).__name__}({parts})"
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, timedelta):
        return _duration(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str):
        return f'"{value}"'
    return getattr(value, "__qualname__", None) or repr(value)


def format_integrity(integrity: IntegrityClass) -> str:
    """An integrity class without its policy, as the head records it: the same text for the same judgement."""
    parts = [each for each in fields(integrity) if each.init and each.name not in _POLICY and _differs(integrity, each)]
    shown = ", ".join(f"{each.name}={format_source(getattr(integrity, each.name))}" for each in parts)
    return _ADDRESS.sub("", f"{type(integrity).__name__}({shown})")


_POLICY = ("on_violation", "on_growth")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""In the text of an object without a name, such as evidence of the user; it differs in each process."""


def _differs(owner: object, field: Field[object]) -> bool:
    default = field.default
    if field.default_factory is not MISSING:
        default = field.default_factory()
    return bool(getattr(owner, field.name) != default)


def _duration(value: timedelta) -> str:
    seconds = value.total_seconds()
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds and not seconds % size), ("seconds", 1))
    return f"timedelta({unit}={format_source(seconds / size)})"


AnyStream = Stream[Any, Any, Any]

"""A stream whose types do not matter to the engine; they are invariant, so only Any accepts all."""
