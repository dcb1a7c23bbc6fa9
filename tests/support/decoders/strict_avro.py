"""A second implementation of Avro's specification: slow, without a library, directly from the schema's JSON.

It shares no code with the decoder. It follows the specification of Avro 1.12: "Binary Encoding", "Logical Types" and
"Schema Resolution". If the specification is open, it follows docs/decoders.md.
"""

from __future__ import annotations

import string
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTED = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "float", "double"),
    "float": ("float", "double"),
    "string": ("string", "bytes"),
    "bytes": ("bytes", "string"),
}


class Refused(Exception):
    """The bytes are not a value of the schema, or the schema does not resolve to the reader's."""


def require(holds: object, problem: str) -> None:
    if not holds:
        raise Refused(problem)


@dataclass
class Names:
    """Named types by name; the schemas of these tests have no namespaces."""

    by_name: dict[str, Any] = field(default_factory=dict)

    def add(self, schema: Any) -> Names:
        for part in schema if isinstance(schema, list) else [schema]:
            if isinstance(part, dict):
                if "name" in part and "type" in part and part["type"] in {"record", "enum", "fixed"}:
                    self.by_name[part["name"]] = part
                for inner in (part.get("items"), part.get("values"), *(one["type"] for one in part.get("fields", ()))):
                    self.add(inner)
        return self

    def find(self, schema: Any) -> Any:
        return self.by_name[schema] if isinstance(schema, str) and schema not in PRIMITIVES else schema


def kind_of(schema: Any) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def logical_of(schema: Any) -> tuple[Any, ...] | None:
    """Return the logical type with its parameters, if the specification allows it for this type."""
    if not isinstance(schema, dict):
        return None
    name = schema.get("logicalType")
    kind = kind_of(schema)
    if name == "decimal" and kind in {"bytes", "fixed"}:
        precision = schema.get("precision", 0)
        scale = schema.get("scale", 0)
        fits = kind == "bytes" or 10**precision <= 2 ** (8 * schema["size"] - 1)
        return (name, precision, scale) if precision >= 1 and 0 <= scale <= precision and fits else None
    if name == "uuid":
        return (name,) if kind == "string" or (kind == "fixed" and schema["size"] == 16) else None
    bases = {"date": "int", "time-millis": "int", "time-micros": "long"}
    stamps = [f"{local}timestamp-{unit}" for local in ("", "local-") for unit in ("millis", "micros", "nanos")]
    return (name,) if kind == (bases | dict.fromkeys(stamps, "long")).get(str(name)) else None


class Reader:
    """Reads one message."""

    def __init__(self, data: bytes, writer: Any, reader: Any = None) -> None:
        self.left = list(data)
        self.writers = Names().add(writer)
        self.readers = Names().add(reader)

    def take(self, count: int) -> bytes:
        require(0 <= count <= len(self.left), "too short")
        taken = self.left[:count]
        self.left = self.left[count:]
        return bytes(taken)

    def number(self, bits: int) -> int:
        """Read a zig-zag varint with at most this many bits, in at most the bytes that they need."""
        groups: list[int] = []
        while not groups or groups[-1] >= 128:
            require(len(groups) < -(-bits // 7), "too many bytes")
            groups.append(self.take(1)[0])
        plain = sum((group % 128) << (7 * place) for place, group in enumerate(groups))
        require(plain < 2**bits, "too many bits")
        return plain // 2 if plain % 2 == 0 else -(plain + 1) // 2

    def blocks(self, read: Any) -> None:
        """Read the values of an array or a map, in blocks."""
        while count := self.number(64):
            size = self.number(64) if count < 0 else None
            before = len(self.left)
            require(abs(count) <= before and (size is None or 0 <= size <= before), "a block longer than the message")
            for _ in range(abs(count)):
                read()
            require(size is None or before - len(self.left) == size, "a block of another size")

    def value(self, schema: Any) -> Any:
        """Read a value by the writer's schema."""
        schema = self.writers.find(schema)
        match kind_of(schema):
            case "union":
                index = self.number(32)
                require(0 <= index < len(schema), "no such branch")
                return self.value(schema[index])
            case "record":
                return {one["name"]: self.value(one["type"]) for one in schema["fields"]}
            case "array":
                values: list[Any] = []
                self.blocks(lambda: values.append(self.value(schema["items"])))
                return values
            case "map":
                entries: list[tuple[str, Any]] = []
                self.blocks(lambda: entries.append((self.plain("string"), self.value(schema["values"]))))
                require(len(dict(entries)) == len(entries), "a key twice")
                return dict(entries)
            case "enum":
                return self.symbol(schema)
            case _:
                return convert(self.plain(schema), schema)

    def symbol(self, schema: Any) -> str:
        index = self.number(32)
        require(0 <= index < len(schema["symbols"]), "no such symbol")
        return str(schema["symbols"][index])

    def plain(self, schema: Any) -> Any:
        """Read a value without its logical type."""
        readers: dict[str, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": self.boolean,
            "int": lambda: self.number(32),
            "long": lambda: self.number(64),
            "float": lambda: struct.unpack("<f", self.take(4))[0],
            "double": lambda: struct.unpack("<d", self.take(8))[0],
            "fixed": lambda: self.take(schema["size"]),
            "bytes": lambda: self.take(self.number(64)),
            "string": lambda: utf8(self.take(self.number(64))),
        }
        return readers[kind_of(schema)]()

    def boolean(self) -> bool:
        byte = self.take(1)
        require(byte in {b"\0", b"\1"}, "no boolean")
        return byte == b"\1"

    def resolved(self, writer: Any, reader: Any) -> Any:
        """Read a value resolved to the reader's schema."""
        writer = self.writers.find(writer)
        reader = self.readers.find(reader)
        if kind_of(writer) == "union":
            index = self.number(32)
            require(0 <= index < len(writer), "no such branch")
            return self.resolved(writer[index], reader)
        branches = reader if kind_of(reader) == "union" else [reader]
        matching = [branch for branch in branches if self.matches(writer, branch)]
        require(matching, "another type")
        return self.resolved_to(writer, self.readers.find(matching[0]))

    def resolved_to(self, writer: Any, reader: Any) -> Any:
        """Read a value resolved to a matching type of the reader."""
        match kind_of(writer):
            case "record":
                return self.fields(writer, reader)
            case "array":
                values: list[Any] = []
                self.blocks(lambda: values.append(self.resolved(writer["items"], reader["items"])))
                return values
            case "map":
                entries: list[tuple[str, Any]] = []
                read = self.resolved
                self.blocks(lambda: entries.append((self.plain("string"), read(writer["values"], reader["values"]))))
                require(len(dict(entries)) == len(entries), "a key twice")
                return dict(entries)
            case "enum":
                symbol = self.symbol(writer)
                if symbol not in reader["symbols"]:
                    require("default" in reader, "a symbol that the reader lacks")
                return symbol if symbol in reader["symbols"] else reader["default"]
            case _:
                return convert(promote(self.plain(writer), kind_of(writer), kind_of(reader)), reader)

    def fields(self, writer: Any, reader: Any) -> dict[str, Any]:
        written = [one["name"] for one in writer["fields"]]
        by_written = {one["name"]: one for one in reader["fields"] if one["name"] in written}
        result: dict[str, Any] = {}
        for one in reader["fields"]:
            names = [name for name in one.get("aliases", ()) if name in written and name not in by_written]
            if one["name"] in written:
                continue
            if names:
                by_written[names[0]] = one
            else:
                require("default" in one, "a field without a default")
                result[one["name"]] = self.default(one["type"], one["default"])
        for one in writer["fields"]:
            target = by_written.get(one["name"])
            if target is None:
                self.value(one["type"])
            else:
                result[target["name"]] = self.resolved(one["type"], target["type"])
        return result

    def default(self, schema: Any, given: Any) -> Any:
        """Return the value of a default: of a primitive type, or an empty container."""
        schema = self.readers.find(schema[0] if isinstance(schema, list) else schema)
        if kind_of(schema) in {"bytes", "fixed"}:
            given = bytes(map(ord, given))
        if kind_of(schema) in {"float", "double"}:
            given = float(given)
        return convert(given, schema)

    def matches(self, writer: Any, reader: Any) -> bool:
        writer = self.writers.find(writer)
        reader = self.readers.find(reader)
        kinds = kind_of(writer), kind_of(reader)
        if "union" in kinds:
            return True
        if kinds[0] in {"array", "map"}:
            inner = "items" if kinds[0] == "array" else "values"
            return kinds[0] == kinds[1] and self.matches(writer[inner], reader[inner])
        if kinds[0] in {"record", "enum", "fixed"}:
            is_named = kinds[0] == kinds[1] and writer["name"] in {reader["name"], *reader.get("aliases", ())}
            if not is_named or kinds[0] != "fixed":
                return is_named
            return bool(writer["size"] == reader["size"]) and self.means_the_same(writer, reader)
        return kinds[1] in PROMOTED.get(kinds[0], (kinds[0],)) and self.means_the_same(writer, reader)

    def means_the_same(self, writer: Any, reader: Any) -> bool:
        logical = [logical_of(writer), logical_of(reader)]
        return None in logical or logical[0] == logical[1]


def utf8(data: bytes) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        raise Refused("no UTF-8") from None


def promote(value: Any, written: str, wanted: str) -> Any:
    if wanted in {"float", "double"}:
        return float(value)
    if written == "bytes" and wanted == "string":
        return utf8(value)
    return value.encode() if written == "string" and wanted == "bytes" else value


def convert(value: Any, schema: Any) -> Any:
    """Convert a value to its logical type."""
    name, *parameters = logical_of(schema) or ("",)
    if name == "decimal":
        return decimal(value, *parameters)
    if name == "uuid":
        return UUID(value.hex()) if isinstance(value, bytes) else uuid(value)
    if name == "date":
        return moment(datetime(1970, 1, 1), value * 86_400_000_000).date()  # noqa: DTZ001  # a date has no zone
    if name.startswith("time-"):
        return time_of_day(value, 1_000 if name == "time-millis" else 1_000_000)
    if name.endswith(("-millis", "-micros")):
        epoch = datetime(1970, 1, 1, tzinfo=None if name.startswith("local") else UTC)
        return moment(epoch, value * (1_000 if name.endswith("millis") else 1))
    return value


def decimal(data: bytes, precision: int, scale: int) -> Decimal:
    require(data, "no bytes")
    unscaled = int.from_bytes(data, "big") - (256 ** len(data) if data[0] >= 128 else 0)
    require(abs(unscaled) < 10**precision, "too many digits")
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def uuid(text: str) -> UUID:
    parts = text.split("-")
    require([len(part) for part in parts] == [8, 4, 4, 4, 12], "no UUID")
    require(set("".join(parts)) <= set(string.hexdigits), "no UUID")
    return UUID(int=int("".join(parts), 16))


def time_of_day(units: int, units_a_second: int) -> time:
    seconds, rest = divmod(units, units_a_second)
    require(0 <= seconds < 86_400, "no time of day")
    return time(seconds // 3_600, seconds // 60 % 60, seconds % 60, rest * 1_000_000 // units_a_second)


def moment(epoch: datetime, micros: int) -> datetime:
    """Return the time at this many microseconds after an epoch."""
    days, rest = divmod(micros, 86_400_000_000)
    try:
        day = date.fromordinal(epoch.toordinal() + days)
    except (ValueError, OverflowError):
        raise Refused("outside of the years 1 to 9999") from None
    return datetime.combine(day, time(), epoch.tzinfo) + timedelta(microseconds=rest)


def decode(data: bytes, writer: Any, reader: Any = None) -> Any:
    """Decode bytes, resolved to a reader's schema if given.

    Raises:
        Refused: The bytes are not a value of the schema.
    """
    one = Reader(data, writer, reader)
    value = one.value(writer) if reader is None else one.resolved(writer, reader)
    require(not one.left, "trailing bytes")
    return value
