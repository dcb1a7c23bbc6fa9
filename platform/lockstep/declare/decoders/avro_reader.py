"""The reader of Avro's binary encoding, strict by the specification.

A schema is compiled once to functions from (bytes, position) to (value, position after it). A value that the schema
does not allow is refused: never cut, and never taken for another value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, cast

from lockstep.declare.decoders.avro_resolution import (
    PROMOTIONS,
    Unresolvable,
    choose_branch,
    resolve_fields,
    resolve_symbols,
)
from lockstep.declare.decoders.avro_schema import (
    LEVELS_MAX,
    ArrayType,
    EnumType,
    Field,
    FixedType,
    MapType,
    PrimitiveType,
    RecordType,
    Schema,
    UnionType,
    find_short_name,
    list_records,
)
from lockstep.declare.decoders.avro_values import INT_MAX, INT_MIN, Convert, find_conversion
from lockstep.declare.decoders.base import DecodeCause, Undecodable

Read = Callable[[bytes, int], tuple[Any, int]]
"""From bytes and a position to a value and the position after it."""
Run = Callable[[bytes, int, int], tuple[list[Any], int]]
"""From bytes, a position and a count to so many values and the position after them."""


class Misfit(Exception):  # becomes Undecodable when its place is known
    """Bytes are not a value of their type.

    Attributes:
        cause: The cause.
        place: Place in the message, from inside out.
    """

    def __init__(self, cause: DecodeCause, problem: str) -> None:
        super().__init__(problem)
        self.cause = cause
        self.place: list[str] = []


MISFITS: Final = (Misfit, IndexError, struct.error, ValueError)
"""Raised by readers: by a position behind the end an IndexError or struct.error, by a wrong value a ValueError."""
EARLY: Final = "the message ends too early"


def read_message(read: Read, data: bytes, start: int) -> Any:
    """Read the one value that the bytes hold from a position on.

    Raises:
        Undecodable: They hold no value of the type, or more than one.
    """
    try:
        value, end = read(data, start)
    except MISFITS as error:
        misfit = _place(error, "")
        place = "".join(reversed(misfit.place))
        problem = f"{misfit} - at `${place}`" if place else str(misfit)
        raise Undecodable(misfit.cause, problem) from error
    except RecursionError as error:
        raise Undecodable(DecodeCause.TOO_DEEP, "the message is nested too deeply") from error
    # A value that another schema wrote may be read without an error, and ends elsewhere.
    if end != len(data):
        raise Undecodable(DecodeCause.TRAILING, f"{len(data) - end} bytes after the message")
    return value


def _place(error: Exception, place: str) -> Misfit:
    """The error with its place."""
    if isinstance(error, Misfit):
        misfit = error
    elif isinstance(error, (IndexError, struct.error)):
        misfit = Misfit(DecodeCause.TRUNCATED, EARLY)
    else:
        misfit = Misfit(DecodeCause.MALFORMED, str(error))
    misfit.place.append(place)
    return misfit


LONG_SHIFT: Final = 63
"""Of the tenth byte of a long, which has one bit left."""
INT_BYTES_MAX: Final = 5


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read a long: seven bits a byte, the lowest first; the sign is the lowest bit.

    Raises:
        Misfit: It has more than ten bytes, or more than 64 bits.
    """
    number = data[at]
    at += 1
    if number > 0x7F:  # noqa: PLR2004  # the last byte of a number has no high bit
        number -= 0x80
        shift = 7
        while (byte := data[at]) > 0x7F:  # noqa: PLR2004
            if shift == LONG_SHIFT:
                raise Misfit(DecodeCause.MALFORMED, "a number of more than 10 bytes")
            number += (byte - 0x80) << shift
            at += 1
            shift += 7
        if shift == LONG_SHIFT and byte > 1:
            raise Misfit(DecodeCause.MALFORMED, "a number of more than 64 bits")
        number += byte << shift
        at += 1
    return (~(number >> 1) if number & 1 else number >> 1), at


def read_int(data: bytes, at: int) -> tuple[int, int]:
    """Read an int.

    Raises:
        Misfit: It has more than five bytes, or more than 32 bits.
    """
    number, end = read_long(data, at)
    if end - at > INT_BYTES_MAX or not INT_MIN <= number <= INT_MAX:
        raise Misfit(DecodeCause.MALFORMED, f"{number} in {end - at} bytes is not an int of 32 bits")
    return number, end


def read_null(data: bytes, at: int) -> tuple[None, int]:
    """Read nothing."""
    del data
    return None, at


def read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    """Read a byte that is 0 or 1."""
    byte = data[at]
    if byte > 1:
        raise Misfit(DecodeCause.MALFORMED, f"0x{byte:02x} is not a boolean")
    return byte == 1, at + 1


def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Read a length, and so many bytes."""
    length, at = read_long(data, at)
    end = at + length
    if length < 0:
        raise Misfit(DecodeCause.MALFORMED, f"a length of {length}")
    if end > len(data):
        raise Misfit(DecodeCause.TRUNCATED, EARLY)
    return data[at:end], end


def read_string(data: bytes, at: int) -> tuple[str, int]:
    """Read a length, and so many bytes of UTF-8."""
    length = data[at]
    if length > 0x7F or length & 1:  # noqa: PLR2004  # the length has more bytes, or is refused
        content, end = read_bytes(data, at)
        return content.decode(), end
    at += 1
    end = at + (length >> 1)
    if end > len(data):
        raise Misfit(DecodeCause.TRUNCATED, EARLY)
    return data[at:end].decode(), end


_unpack_float = struct.Struct("<f").unpack_from
_unpack_double = struct.Struct("<d").unpack_from


def read_float(data: bytes, at: int) -> tuple[float, int]:
    """Read a number of four bytes."""
    return _unpack_float(data, at)[0], at + 4


def read_double(data: bytes, at: int) -> tuple[float, int]:
    """Read a number of eight bytes."""
    return _unpack_double(data, at)[0], at + 8


PRIMITIVES: Final[Mapping[str, Read]] = {
    "null": read_null,
    "boolean": read_boolean,
    "int": read_int,
    "long": read_long,
    "float": read_float,
    "double": read_double,
    "bytes": read_bytes,
    "string": read_string,
}


def _read_fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):
            raise Misfit(DecodeCause.TRUNCATED, EARLY)
        return data[at:end], end

    return read


ONE_BYTE: Final = 64
"""Indexes of one byte, which is twice the index."""


def _read_enum(symbols: Sequence[str | None], name: str) -> Read:
    """The reader of an enum. A symbol that the reader's schema lacks is None."""
    by_byte = {2 * index: symbol for index, symbol in enumerate(symbols[:ONE_BYTE]) if symbol is not None}

    def read(data: bytes, at: int) -> tuple[str, int]:
        if (known := by_byte.get(data[at])) is not None:
            return known, at + 1
        index, at = read_int(data, at)
        if not 0 <= index < len(symbols):
            raise Misfit(DecodeCause.MALFORMED, f"symbol {index} of the {len(symbols)} of {name}")
        symbol = symbols[index]
        if symbol is None:
            raise Misfit(DecodeCause.UNFIT_SCHEMA, f"{UNRESOLVABLE}: it lacks symbol {index} of {name}")
        return symbol, at

    return read


UNRESOLVABLE: Final = "cannot be resolved to Avro.reader_schema"


def read_union(branches: Sequence[Read]) -> Read:
    """The reader of a union: the index of a branch, and its value."""
    by_byte = {2 * index: branch for index, branch in enumerate(branches[:ONE_BYTE])}

    def read(data: bytes, at: int) -> tuple[Any, int]:
        if (known := by_byte.get(data[at])) is not None:
            return known(data, at + 1)
        index, at = read_int(data, at)
        if not 0 <= index < len(branches):
            raise Misfit(DecodeCause.MALFORMED, f"branch {index} of a union of {len(branches)}")
        return branches[index](data, at)

    return read


def _read_record(fields: Sequence[tuple[str, Read]]) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, read_field in fields:
                values[name], at = read_field(data, at)
        except MISFITS as error:
            raise _place(error, f".{name}") from None
        return values, at

    return read


def _read_resolved_record(
    fields: Sequence[tuple[str, str | None, Read]], defaults: Iterable[tuple[str, object]]
) -> Read:
    """The reader of a record for a reader's schema.

    Args:
        fields: Place, name in the reader's schema and reader of each field; None if it has no such field.
        defaults: The fields that the writer lacks.
    """

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values = {name: deepcopy(default) for name, default in defaults}
        place = ""
        try:
            for place, name, read_field in fields:  # noqa: B007  # of the error
                value, at = read_field(data, at)
                if name is not None:
                    values[name] = value
        except MISFITS as error:
            raise _place(error, place) from None
        return values, at

    return read


def _tag(read: Read, tags: Mapping[str, str]) -> Read:
    """Put the name of a record of a union into its tag field, unless it has a field of that name."""

    def read_tagged(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        record, at = read(data, at)
        return {**tags, **record}, at

    return read_tagged


def _refuse(problem: str) -> Read:
    """The reader of a branch that does not resolve to the reader's schema."""

    def read(data: bytes, at: int) -> NoReturn:
        del data, at
        raise Misfit(DecodeCause.UNFIT_SCHEMA, f"{UNRESOLVABLE}: {problem}")

    return read


def _convert(read: Read, convert: Convert) -> Read:
    def read_converted(data: bytes, at: int) -> tuple[object, int]:
        value, at = read(data, at)
        return convert(value), at

    return read_converted


def _read_block_start(data: bytes, at: int) -> tuple[int, int, int | None]:
    """Read the start of a block: the count of its values, their position, and their end if it is given."""
    count, at = read_long(data, at)
    end: int | None = None
    if count < 0:
        size, at = read_long(data, at)
        count = -count
        end = at + size
        if not at <= end <= len(data):
            raise Misfit(DecodeCause.MALFORMED, f"a block of {size} bytes in a message with {len(data) - at} more")
    if count > len(data) - at:  # a value takes at least a byte
        raise Misfit(DecodeCause.TRUNCATED, EARLY)
    return count, at, end


def _check_block_end(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise Misfit(DecodeCause.MALFORMED, f"a block is {at - end:+d} bytes longer than its size")


def _read_array(read_run: Run) -> Read:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        try:
            count, at, end = _read_block_start(data, at)
            while count:
                run, at = read_run(data, at, count)
                values.extend(run)
                _check_block_end(at, end)
                count, at, end = _read_block_start(data, at)
        except MISFITS as error:
            raise _place(error, "[...]") from None
        return values, at

    return read


def _read_map(read_value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        entries = 0
        try:
            count, at, end = _read_block_start(data, at)
            while count:
                entries += count
                for _ in range(count):
                    key, at = read_string(data, at)
                    values[key], at = read_value(data, at)
                _check_block_end(at, end)
                count, at, end = _read_block_start(data, at)
        except MISFITS as error:
            raise _place(error, "[...]") from None
        if len(values) != entries:
            raise Misfit(DecodeCause.MALFORMED, f"a map of {entries} entries has {len(values)} keys")
        return values, at

    return read


def _read_each(read_value: Read) -> Run:
    def read(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
        values: list[Any] = []
        for _ in range(count):
            value, at = read_value(data, at)
            values.append(value)
        return values, at

    return read


def _read_packed(code: str, size: int, data: bytes, at: int, count: int) -> tuple[list[float], int]:
    return list(struct.unpack_from(f"<{count}{code}", data, at)), at + size * count


VECTOR_MIN: Final = 32
"""Numbers from which on NumPy is faster."""


def _read_vector(data: bytes, at: int, count: int, bytes_max: int) -> tuple[list[int], int] | None:
    """Read many numbers at once; None if there are few, or one has more bytes than surely fit."""
    if count < VECTOR_MIN:
        return None
    import numpy as np  # declarations load without it

    window = np.frombuffer(data, np.uint8, offset=at, count=min(len(data) - at, count * bytes_max))
    ends = np.flatnonzero(window <= 0x7F)[:count] + 1  # noqa: PLR2004  # the last byte of a number has no high bit
    if len(ends) < count:
        return None
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    lengths = ends - starts
    if lengths.max() > bytes_max:
        return None
    size = int(ends[-1])
    shifts = 7 * (np.arange(size) - np.repeat(starts, lengths)).astype(np.uint64)
    unsigned = np.add.reduceat((window[:size] & 0x7F).astype(np.uint64) << shifts, starts)
    numbers = (unsigned >> np.uint64(1)).astype(np.int64) ^ -(unsigned & np.uint64(1)).astype(np.int64)
    return numbers.tolist(), at + size


def _read_numbers(read_number: Read, bytes_max: int, data: bytes, at: int, count: int) -> tuple[list[int], int]:
    """Read many numbers: those that NumPy does not read are read, or refused, one by one."""
    return _read_vector(data, at, count, bytes_max) or _read_each(read_number)(data, at, count)


def _read_number_records(names: Sequence[str], read_record: Read) -> Run:
    """The reader of many records of longs, such as the levels of a book."""
    width = len(names)

    def read(data: bytes, at: int, count: int) -> tuple[list[dict[str, int]], int]:
        vector = _read_vector(data, at, count * width, LONG_BYTES_SURE)
        if vector is None:
            return _read_each(read_record)(data, at, count)
        numbers, at = vector
        rows = zip(*(numbers[column::width] for column in range(width)), strict=True)
        return [dict(zip(names, row)) for row in rows], at  # noqa: B905  # `strict` would take a third of the time

    return read


LONG_BYTES_SURE: Final = 9
RUNS: Final[Mapping[Read, Run]] = {
    read_int: partial(_read_numbers, read_int, INT_BYTES_MAX - 1),
    read_long: partial(_read_numbers, read_long, LONG_BYTES_SURE),
    read_float: partial(_read_packed, "f", 4),
    read_double: partial(_read_packed, "d", 8),
}
"""By the reader of one value, that of many at once."""


@dataclass
class _Depth:
    """Levels of types inside of themselves, in the message that is being read."""

    levels: int = 0


@dataclass
class _UnderWay:
    """A record that is being compiled, for the fields in which it is inside of itself."""

    level: int
    read: Read


def _descend(record: _UnderWay, levels: int, depth: _Depth) -> Read:
    """The reader of a record inside of itself, which counts the levels: Python's own limit depends on the caller."""

    def read(data: bytes, at: int) -> tuple[Any, int]:
        depth.levels += levels
        try:
            if depth.levels > LEVELS_MAX:
                raise Misfit(DecodeCause.TOO_DEEP, "the message is nested too deeply")
            return record.read(data, at)
        finally:
            depth.levels -= levels

    return read


class Compiler:
    """Compiles the types of one schema to readers."""

    def __init__(self, tag_fields: Sequence[str] = ()) -> None:
        """See the class.

        Args:
            tag_fields: Names of the fields that take the name of a record, if a union has several of them.
        """
        self._tag_fields = tag_fields
        self._records: dict[tuple[int, int], Read] = {}
        self._under_way: dict[tuple[int, int], _UnderWay] = {}
        self._level = 0
        self._depth = _Depth()

    def compile(self, writer: Schema, reader: Schema | None, *, is_mixed: bool = False) -> Read:
        """The reader of values of a type.

        Args:
            writer: The writer's type.
            reader: The type to which the values are resolved; None to leave them as written.
            is_mixed: The type is in a union of several records.

        Raises:
            Unresolvable: No value of the writer's type resolves to the reader's.
        """
        if isinstance(writer, UnionType):
            is_mixed = reader is not None or len(list_records(writer)) > 1
            return read_union([self._compile_inner(one, reader, is_mixed=is_mixed) for one in writer.branches])
        if reader is not None:
            is_mixed = is_mixed or len(list_records(reader)) > 1
            reader = choose_branch(writer, reader)
        self._level += 1
        read = self._compile_chosen(writer, reader)
        self._level -= 1
        if not is_mixed or not isinstance(writer, RecordType):
            return read
        record = reader if isinstance(reader, RecordType) else writer
        return _tag(read, dict.fromkeys(self._tag_fields, find_short_name(record.name)))

    def _compile_inner(self, writer: Schema, reader: Schema | None, *, is_mixed: bool = False) -> Read:
        """The reader of branches or entries: a type that does not resolve refuses its own values alone."""
        level = self._level
        try:
            return self.compile(writer, reader, is_mixed=is_mixed)
        except Unresolvable as error:
            self._level = level
            return _refuse(str(error))

    def _compile_chosen(self, writer: Schema, reader: Any) -> Read:
        """The reader of a type that is not a union, resolved to the branch that matches it."""
        match writer:
            case RecordType():
                return self._compile_record(writer, reader)
            case ArrayType():
                return _read_array(self._compile_run(writer.items, reader and reader.items))
            case MapType():
                return _read_map(self._compile_inner(writer.values, reader and reader.values))
            case EnumType():
                return _read_enum(resolve_symbols(writer, reader), writer.name)
            case _:
                return _compile_plain(cast("PrimitiveType | FixedType", writer), reader)

    def _compile_run(self, writer: Schema, reader: Schema | None) -> Run:
        read = self._compile_inner(writer, reader)
        if reader is None and isinstance(writer, RecordType) and all(map(_is_plain_long, writer.fields)):
            return _read_number_records([one.name for one in writer.fields], read)
        return RUNS.get(read) or _read_each(read)

    def _compile_record(self, writer: RecordType, reader: RecordType | None) -> Read:
        key = (id(writer), id(reader))
        if key in self._records:
            return self._records[key]
        if key in self._under_way:
            record = self._under_way[key]
            return _descend(record, self._level - record.level, self._depth)
        record = self._under_way[key] = _UnderWay(self._level, _refuse("not compiled"))
        try:
            record.read = self._records[key] = self._compile_fields(writer, reader)
        except Unresolvable as error:
            record.read = self._records[key] = _refuse(str(error))
            raise
        finally:
            del self._under_way[key]
        return record.read

    def _compile_fields(self, writer: RecordType, reader: RecordType | None) -> Read:
        if reader is None:
            return _read_record([(one.name, self.compile(one.type, None)) for one in writer.fields])
        names, defaults = resolve_fields(writer, reader)
        fields = list[tuple[str, str | None, Read]]()
        for one in writer.fields:
            target = names.get(one.name)
            target_name = None
            target_type = None
            if target is not None:  # else the reader's schema lacks the field: it is read and left out
                target_name = target.name
                target_type = target.type
            fields.append((f".{one.name}", target_name, self.compile(one.type, target_type)))
        return _read_resolved_record(fields, [(one.name, one.default) for one in defaults])


def _is_plain_long(field: Field) -> bool:
    schema = field.type
    return isinstance(schema, PrimitiveType) and schema.kind == "long" and find_conversion(schema) is None


def _find_plain_reader(writer: PrimitiveType | FixedType) -> Read:
    if isinstance(writer, FixedType):
        return _read_fixed(writer.size)
    return PRIMITIVES[writer.kind]


def _compile_plain(writer: PrimitiveType | FixedType, reader: PrimitiveType | FixedType | None) -> Read:
    read = _find_plain_reader(writer)
    target = writer if reader is None else reader
    for convert in (PROMOTIONS.get((writer.kind, target.kind)), find_conversion(target)):
        if convert is not None:
            read = _convert(read, convert)
    return read
