"""A stream: one declaration, checked whole when it is made."""

from __future__ import annotations

import pickle
import re
import sys
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic

from lockstep.declare.decoders import Decoder, Json
from lockstep.declare.generics import TransformTypes, transform_types
from lockstep.declare.limits import Limits
from lockstep.declare.rules import Rule
from lockstep.declare.topics import Topics
from lockstep.declare.transform import M, R, S, Transform, overridden_hooks
from lockstep.declare.triggers import Every, Trigger
from lockstep.errors import DeclarationError, NotYet
from lockstep.integrity.contract import IntegrityClass

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
"""A stream's name is a folder, an asset key and a consumer group: one spelling that suits all."""


@dataclass(frozen=True, kw_only=True)
class Stream(Generic[M, S, R]):
    """A declared pipeline from a family of topics to one table.

    Attributes:
        name: Lower-case name; folder of the table, asset key, name of the consumer group.
        topics: Which topics are read.
        transform: The fold.
        integrity: What is promised, by which evidence, and what happens when it is lost.
        decoder: How a value becomes a message.
        trigger: When a batch begins.
        limits: Bounds; the defaults suit most streams.
        rules: Data-quality rules of the rows.
        description: A sentence for people, shown in the asset catalog.

    Raises:
        DeclarationError: Names the field, the value and what would be right.
    """

    name: str
    topics: Topics
    transform: Transform[M, S, R]
    integrity: IntegrityClass
    decoder: Decoder = field(default_factory=Json)
    trigger: Trigger = field(default_factory=Every)
    limits: Limits = field(default_factory=Limits)
    rules: tuple[Rule, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        """Check all that can be checked without Kafka or the table."""
        if not NAME.fullmatch(self.name):
            raise DeclarationError("Stream.name", self.name, "is not a lower-case name", "for example 'order_books'")
        if self.rules:
            raise NotYet("Stream.rules", self.rules, "leave rules out; the built-in checks run for every stream")
        _check_hooks(self.transform)
        _check_importable(self.transform)
        _check_types(self.types, self.decoder)

    @cached_property
    def types(self) -> TransformTypes:
        """Message, state and row type of the transform."""
        return transform_types(type(self.transform))

    def shipped(self) -> bytes:
        """The declaration as executors get it: classes by name, values by content."""
        return pickle.dumps(self)

    def __getstate__(self) -> dict[str, object]:
        """Leave out what was computed from the fields."""
        return {name: value for name, value in self.__dict__.items() if name != "types"}


def _check_hooks(transform: Transform[M, S, R]) -> None:
    hooks = overridden_hooks(type(transform))
    if hooks:
        raise NotYet("Stream.transform", f"{type(transform).__name__}.{hooks[0]}", f"remove {', '.join(hooks)} for now")


def _check_importable(transform: Transform[M, S, R]) -> None:
    """Executors import the classes by name; what is pickled by value would lose its fields."""
    cls = type(transform)
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise DeclarationError(
            "Stream.transform",
            f"{cls.__module__}.{cls.__qualname__}",
            "executors cannot import it",
            "put messages, transform and stream at the top level of a module, for example assets/sensors.py",
        )
    if cls.__module__ not in sys.modules:
        raise DeclarationError("Stream.transform", cls.__module__, "is not an imported module", "import it by name")


def _check_types(types: TransformTypes, decoder: Decoder) -> None:
    # Imported here: the two packages below declare nothing, they only judge what is declared.
    from lockstep.state.schema import StateSchema
    from lockstep.table.schema import row_schema

    decoder.build(types.message)
    row_schema(types.row)
    StateSchema(types.state)
