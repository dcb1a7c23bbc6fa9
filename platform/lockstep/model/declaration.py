"""The base of declared classes: a wrong call is refused as a wrong value is, with an example of a right call.

Python checks arguments before `__post_init__` can, and its error names no remedy. The class of the classes repeats the
check after a failed call, so that a call without mistakes costs nothing but a frame.
"""

from __future__ import annotations

import inspect
import re
from abc import ABCMeta
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter, Signature
from reprlib import Repr
from typing import TYPE_CHECKING, Protocol

from lockstep.errors import CallError

_EXAMPLE = re.compile(r"^\s*Example: `(.+)`$", re.MULTILINE)
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_COLLECTORS = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_VALUE_CHARS = 60
_ARGUMENTS_SHOWN = 3
_SHORT = Repr()


if TYPE_CHECKING:
    _Metaclass = ABCMeta
else:
    _Metaclass = type(Protocol)  # of ABCMeta; a user's fold may derive from a Protocol as well


class DeclarationType(_Metaclass):
    """The class of declared classes."""

    if not TYPE_CHECKING:  # checkers know the arguments of `__init__`, and would lose them

        def __call__(cls, *args: object, **kwargs: object) -> object:  # noqa: N805  # of a metaclass
            """Make an object; a wrong call raises `CallError`."""
            try:
                return super().__call__(*args, **kwargs)
            except TypeError:
                refused = _find_mistake(cls, args, kwargs)
                if refused is None:
                    raise
            raise refused

        def __instancecheck__(cls, instance: object) -> bool:  # noqa: N805
            """No declared class is a protocol: Python 3.11 would ask for attributes of one."""
            return ABCMeta.__instancecheck__(cls, instance)

    @property
    def __signature__(cls) -> Signature:  # noqa: N805
        """The arguments of `__init__`; `inspect` would show those of `__call__`."""
        initialize = type.__getattribute__(cls, "__init__")
        if initialize is object.__init__:
            return Signature()
        signature = inspect.signature(initialize)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


class Declaration(metaclass=DeclarationType):
    """The base of classes whose objects users declare."""

    __slots__ = ()


def _find_mistake(cls: DeclarationType, args: Sequence[object], kwargs: Mapping[str, object]) -> CallError | None:
    """The mistake of a call; None if the arguments are those of the class, so that its own code has failed."""
    if inspect.isabstract(cls):
        methods = ", ".join(sorted(cls.__abstractmethods__))
        step = f"call a subclass that defines them: class My{cls.__name__}({cls.__name__})"
        return CallError(cls.__name__, f"is a base class without {methods}", step)
    parameters = cls.__signature__.parameters
    return (
        _find_unknown_name(cls, parameters, kwargs)
        or _find_surplus(cls, parameters, args)
        or _find_repeated(cls, parameters, args, kwargs)
        or _find_missing(cls, parameters, args, kwargs)
    )


def _find_unknown_name(
    cls: DeclarationType, parameters: Mapping[str, Parameter], kwargs: Mapping[str, object]
) -> CallError | None:
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    unknown = next((name for name in kwargs if name not in parameters), None)
    if unknown is None:
        return None
    problem = f"is not an argument of {cls.__name__}"
    argument = f"{cls.__name__}.{unknown} = {_show(kwargs[unknown])}"
    similar = get_close_matches(unknown, parameters, n=1)
    example = _find_example(cls)
    if similar:
        name = similar[0]
        fitting = example if f"{name}=" in example else f"{cls.__name__}({name}=...)"
        return CallError(argument, problem, f"did you mean {name}? For example {fitting}")
    if not parameters:
        return CallError(argument, problem, f"{cls.__name__} has no arguments: {example}")
    return CallError(argument, problem, f"its arguments are {', '.join(parameters)}; for example {example}")


def _find_surplus(
    cls: DeclarationType, parameters: Mapping[str, Parameter], args: Sequence[object]
) -> CallError | None:
    """More arguments without a name than the class takes."""
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters.values()):
        return None
    positional = [name for name, parameter in parameters.items() if parameter.kind in _BY_POSITION]
    if len(args) <= len(positional):
        return None
    more = ", ..." if len(args) > _ARGUMENTS_SHOWN else ""
    call = f"{cls.__name__}({', '.join(map(_show, args[:_ARGUMENTS_SHOWN]))}{more})"
    if not parameters:
        return CallError(call, f"{cls.__name__} has no arguments", _find_example(cls))
    problem = "its arguments need names"
    if positional:
        problem = f"takes {_count(len(positional))} without a name ({', '.join(positional)})"
    return CallError(call, problem, f"for example {_find_example(cls)}")


def _find_repeated(
    cls: DeclarationType, parameters: Mapping[str, Parameter], args: Sequence[object], kwargs: Mapping[str, object]
) -> CallError | None:
    by_position = list(parameters)[: len(args)]
    repeated = next((name for name in by_position if name in kwargs), None)
    if repeated is None:
        return None
    return CallError(f"{cls.__name__}.{repeated}", "is given twice", f"give it once: {_find_example(cls)}")


def _find_missing(
    cls: DeclarationType, parameters: Mapping[str, Parameter], args: Sequence[object], kwargs: Mapping[str, object]
) -> CallError | None:
    names = {*list(parameters)[: len(args)], *kwargs}
    missing = [name for name in _list_required(parameters) if name not in names]
    if not missing:
        return None
    arguments = ", ".join(f"{cls.__name__}.{name}" for name in missing)
    problem = "is missing" if len(missing) == 1 else "are missing"
    return CallError(arguments, problem, f"for example {_find_example(cls)}")


def _list_required(parameters: Mapping[str, Parameter]) -> list[str]:
    required = list[str]()
    for parameter in parameters.values():
        if parameter.default is Parameter.empty and parameter.kind not in _COLLECTORS:
            required.append(parameter.name)
    return required


def _find_example(cls: DeclarationType) -> str:
    """The example in the docstring of a class; without one, its required arguments."""
    documented = _EXAMPLE.search(cls.__doc__ or "")
    if documented is not None:
        return documented[1]
    arguments = [f"{name}=..." for name in _list_required(cls.__signature__.parameters)]
    return f"{cls.__name__}({', '.join(arguments)})"


def _show(value: object) -> str:
    text = _SHORT.repr(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]}..."


def _count(number: int) -> str:
    return "1 argument" if number == 1 else f"{number} arguments"
