# ruff: noqa: A002, I001, RUF023, UP007, UP045
# mypy: ignore-errors
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Snapshot(_message.Message):
    __slots__ = ("seq", "values")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

    SEQ_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    seq: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, seq: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ...) -> None: ...

class Update(_message.Message):
    __slots__ = ("seq", "id", "value", "origin", "text", "code")
    class Origin(_message.Message):
        __slots__ = ("device", "quality")
        class Quality(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = ()
            UNKNOWN: _ClassVar[Update.Origin.Quality]
            GOOD: _ClassVar[Update.Origin.Quality]

        UNKNOWN: Update.Origin.Quality
        GOOD: Update.Origin.Quality
        DEVICE_FIELD_NUMBER: _ClassVar[int]
        QUALITY_FIELD_NUMBER: _ClassVar[int]
        device: str
        quality: Update.Origin.Quality
        def __init__(
            self, device: _Optional[str] = ..., quality: _Optional[_Union[Update.Origin.Quality, str]] = ...
        ) -> None: ...

    SEQ_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    id: str
    value: float
    origin: Update.Origin
    text: str
    code: int
    def __init__(
        self,
        seq: _Optional[int] = ...,
        id: _Optional[str] = ...,
        value: _Optional[float] = ...,
        origin: _Optional[_Union[Update.Origin, _Mapping]] = ...,
        text: _Optional[str] = ...,
        code: _Optional[int] = ...,
    ) -> None: ...
