"""Wrong transforms, each wrong in one way; at the top level, as executors need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from lockstep import Envelope, Record, Transform
from tests.unit.declare.panels import Panel, PanelTransform, Reading, Snapshot, Update

if TYPE_CHECKING:
    from collections.abc import Iterable
    from fractions import Fraction

M = TypeVar("M")
S = TypeVar("S")
R = TypeVar("R", bound=msgspec.Struct)


class Bare(Transform[M, S, R], Generic[M, S, R]):
    """The methods that every transform has, for any types."""

    def envelope(self, message: M, record: Record) -> Envelope:
        raise NotImplementedError

    def on_snapshot(self, message: M, record: Record, previous: S | None) -> S:
        raise NotImplementedError

    def on_update(self, state: S, message: M, record: Record) -> Iterable[R]:
        raise NotImplementedError


class Watermarked(PanelTransform):
    def watermark(self, message: Snapshot | Update, record: Record) -> int | None:
        raise NotImplementedError


class Timed(PanelTransform):
    def on_timer(self, state: Panel, deadline_us: int) -> Iterable[Reading]:
        raise NotImplementedError


class Late(PanelTransform):
    def on_late(self, state: Panel, message: Snapshot | Update, record: Record) -> Iterable[Reading]:
        raise NotImplementedError


class Ending(PanelTransform):
    def on_end(self, state: Panel) -> Iterable[Reading]:
        raise NotImplementedError


class Due(PanelTransform):
    def deadline(self, state: Panel) -> int | None:
        raise NotImplementedError


class Holding(PanelTransform):
    """A transform that holds a value which cannot be sent to an executor."""

    def __init__(self, held: object) -> None:
        super().__init__()
        self.held = held


class UntaggedA(msgspec.Struct):
    a: int


class UntaggedB(msgspec.Struct):
    b: int


class NoTags(Bare[UntaggedA | UntaggedB, Panel, Reading]):
    """Messages without tags to distinguish them."""


class Unresolved(msgspec.Struct):
    share: Fraction


class UnresolvedMessage(Bare[Unresolved, Panel, Reading]):
    """A message with a field whose type is imported only for the type checker."""


class OwnName(msgspec.Struct):
    _offset: int


class PartitionName(msgspec.Struct):
    Commit_Hour: str


class SameButForCase(msgspec.Struct):
    price: float
    Price: float


class NoColumn(msgspec.Struct):
    tags: set[str]


class Unsaved:
    """A class that msgspec cannot encode."""


class OwnNameRow(Bare[Update, Panel, OwnName]):
    """A row with one of lockstep's own names."""


class PartitionNameRow(Bare[Update, Panel, PartitionName]):
    """A row with the name of the partition column, in other letters."""


class SameButForCaseRow(Bare[Update, Panel, SameButForCase]):
    """A row with two columns that Delta cannot distinguish."""


class NoColumnRow(Bare[Update, Panel, NoColumn]):
    """A row with a field that has no column type."""


class UnsavedState(Bare[Update, Unsaved, Reading]):
    """A state that cannot be saved."""


class DictRow(Bare[Update, Panel, dict]):  # type: ignore[type-arg, type-var]  # wrong on purpose
    """A row that is not a Struct."""


class Untyped(Bare):  # type: ignore[type-arg]  # wrong on purpose
    """A transform without any of its three types."""


class KeyedBy(Bare[Update, dict[S, int], Reading], Generic[S]):
    """A transform whose state has an open type of keys."""


def decode_update(value: bytes) -> Update:
    return msgspec.json.decode(value, type=Update)
