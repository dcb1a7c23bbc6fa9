"""The frame of plans: prepare, show, commit the plan that was shown; obstacles refuse a plan by name.

A plan and its result are data. Each states its page once: facts with their units, tables, next steps. One renderer
for the terminal and one for Dagster's metadata show every page; JSON is the data itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import ClassVar, Generic, Protocol, TypeVar, cast

import msgspec

from lockstep.errors import LockstepError, format_some

CHANGED = "the plan has changed since it was shown"


class Obstacle(msgspec.Struct, frozen=True):
    """A reason why a plan is refused.

    Attributes:
        kind: The kind of reason, the same text each time.
        problem: The reason in one sentence, with names and figures.
        next_step: The remedy.
    """

    kind: str
    problem: str
    next_step: str


class Refused(LockstepError):
    """A plan is refused; nothing was changed.

    Attributes:
        subject: The stream or the dataset.
        obstacles: All reasons.
    """

    def __init__(self, subject: str, plan: str, obstacles: Iterable[Obstacle]) -> None:
        """Name all reasons, with the remedy of each.

        Args:
            subject: Name of the stream, or folder of the dataset.
            plan: The refused plan, such as "the rewind".
            obstacles: The reasons, at least one.
        """
        self.subject = subject
        self.obstacles = tuple(obstacles)
        problems = "; ".join(each.problem for each in self.obstacles)
        steps = dict.fromkeys(each.next_step for each in self.obstacles)
        super().__init__(f"{plan} of {subject} is refused: {problems}", next_step="; ".join(steps))


class Unit(Enum):
    """Unit of a value."""

    NONE = ""
    BYTES = "bytes"
    SECONDS = "seconds"
    PATH = "path"


Value = int | float | str | datetime | None


class Labelled(msgspec.Struct, frozen=True):
    """A labelled value of a page.

    Attributes:
        label: The label; also the key in Dagster's metadata, with underscores.
        value: The value; None if it is unknown.
        unit: Unit of a number; PATH for the path of a folder.
        note: A remark behind the value.
    """

    label: str
    value: Value
    unit: Unit = Unit.NONE
    note: str = ""


class Records(msgspec.Struct, frozen=True):
    """A table of a page; shown only if it has rows.

    Attributes:
        label: Its label.
        columns: Names of the columns.
        rows: The rows, the most important first: a terminal shows the first of many.
    """

    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    @staticmethod
    def of(label: str, items: Iterable[object], fields: str) -> Records:
        """Return a table of some fields of structs, named in one text; the columns have the names of the fields."""
        names = fields.split()
        columns = tuple(name.replace("_", " ") for name in names)
        return Records(label, columns, tuple(_make_row(item, names) for item in items))


def _make_row(item: object, fields: Iterable[str]) -> tuple[Value, ...]:
    return tuple(_format_cell(getattr(item, name)) for name in fields)


def _format_cell(value: object) -> Value:
    """The value of an enum, and the number of elements of a tuple."""
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return len(value)
    return cast("Value", value)


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A plan or a result, as people read it.

    Attributes:
        title: The first line.
        facts: Labelled values, in the order in which they are shown.
        records: Tables.
        notes: Remarks.
        obstacles: Reasons for a refusal.
        is_open: It is a plan without an obstacle, and may be carried out.
        next_steps: The next commands.
    """

    title: str
    facts: tuple[Labelled, ...] = ()
    records: tuple[Records, ...] = ()
    notes: tuple[str, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    is_open: bool = False
    next_steps: tuple[str, ...] = ()


class Described(Protocol):
    """Data with a page."""

    def describe(self) -> Description:
        """Return its description."""
        ...


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a command, as data.

    Attributes:
        stream: Name of the stream.
        obstacles: Why it is refused; empty if nothing refuses it.
    """

    PLAN: ClassVar[str] = "the plan"
    """Its name in a refusal."""

    stream: str
    obstacles: tuple[Obstacle, ...] = ()

    @property
    def is_due(self) -> bool:
        """Whether it changes something."""
        return True

    @abstractmethod
    def describe(self) -> Description:
        """Return its description."""

    def make_description(
        self, title: str, facts: tuple[Labelled, ...], *, records: tuple[Records, ...] = (), notes: Iterable[str] = ()
    ) -> Description:
        """Return a page with the obstacles of the plan."""
        return Description(
            title=f"{self.stream}: {title}",
            facts=facts,
            records=records,
            notes=tuple(notes),
            obstacles=self.obstacles,
            is_open=self.is_due and not self.obstacles,
        )


P = TypeVar("P", bound=Plan)
R = TypeVar("R")


class Prepared(msgspec.Struct, Generic[P, R], frozen=True):
    """A plan, and the commit of exactly this plan.

    Attributes:
        plan: The plan.
        carry_out: Commits it, or refuses it if it is not the same on the table of that time.
    """

    plan: P
    carry_out: Callable[[], R]

    def commit(self) -> R:
        """Carry the plan out.

        Raises:
            Refused: Names every obstacle.
        """
        if self.plan.obstacles:
            raise Refused(self.plan.stream, self.plan.PLAN, self.plan.obstacles)
        return self.carry_out()


def drop_accepted(obstacles: Iterable[Obstacle], accepted: Mapping[str, bool]) -> tuple[Obstacle, ...]:
    """Return the obstacles without those of the kinds that an operator accepts."""
    return tuple(each for each in obstacles if not accepted.get(each.kind, False))


def refuse_changed(shown: P, now: P, fields: Iterable[str]) -> None:
    """Refuse a plan that would do something else than the plan that was shown.

    Args:
        shown: The plan that was shown.
        now: The plan on the table as it is now.
        fields: The fields of the plan in which both must agree.

    Raises:
        Refused: They differ; names the fields.
    """
    pairs = {name: (getattr(shown, name), getattr(now, name)) for name in fields}
    changed = [f"{name} was {before}, is {after}" for name, (before, after) in pairs.items() if before != after]
    if changed:
        raise make_changed(now.stream, now.PLAN, format_some(changed))


def make_changed(stream: str, plan: str, problem: str) -> Refused:
    """Return the refusal of a plan that differs from the plan that was shown."""
    obstacle = Obstacle(CHANGED, f"{CHANGED}: {problem}", "read the new plan: the same command with --plan")
    return Refused(stream, plan, [obstacle])
