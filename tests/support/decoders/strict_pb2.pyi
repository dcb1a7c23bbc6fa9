# ruff: noqa: A002, I001, RUF023, UP007, UP045
# mypy: ignore-errors
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reading(_message.Message):
    __slots__ = ("seq", "id", "where", "inner")
    class Where(_message.Message):
        __slots__ = ("room",)
        ROOM_FIELD_NUMBER: _ClassVar[int]
        room: str
        def __init__(self, room: _Optional[str] = ...) -> None: ...

    class Inner(_message.Message):
        __slots__ = ("depth", "inner")
        DEPTH_FIELD_NUMBER: _ClassVar[int]
        INNER_FIELD_NUMBER: _ClassVar[int]
        depth: int
        inner: Reading.Inner
        def __init__(
            self, depth: _Optional[int] = ..., inner: _Optional[_Union[Reading.Inner, _Mapping]] = ...
        ) -> None: ...

    SEQ_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    INNER_FIELD_NUMBER: _ClassVar[int]
    seq: int
    id: str
    where: Reading.Where
    inner: Reading.Inner
    def __init__(
        self,
        seq: _Optional[int] = ...,
        id: _Optional[str] = ...,
        where: _Optional[_Union[Reading.Where, _Mapping]] = ...,
        inner: _Optional[_Union[Reading.Inner, _Mapping]] = ...,
    ) -> None: ...
