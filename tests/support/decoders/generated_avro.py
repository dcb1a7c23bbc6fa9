"""Random Avro schemas and bytes: valid and invalid messages of a writer, and schemas of a reader.

The bytes follow the specification for the schema's JSON, with its options (blocks with sizes, padded numbers), and
sometimes violate its bounds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from random import Random
from typing import Any

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
BITS = {"int": 32, "long": 64}
LOGICAL: tuple[dict[str, Any], ...] = (
    *({"type": "int", "logicalType": name} for name in ("date", "time-millis", "time-micros", "no-such-type")),
    *(
        {"type": "long", "logicalType": name}
        for name in ("time-micros", "timestamp-millis", "timestamp-micros", "date")
    ),
    *({"type": "long", "logicalType": f"{kind}-nanos"} for kind in ("timestamp", "local-timestamp")),
    *({"type": "long", "logicalType": f"local-timestamp-{unit}"} for unit in ("millis", "micros")),
    *({"type": "bytes", "logicalType": "decimal", "precision": p, "scale": s} for p, s in ((1, 0), (4, 2), (30, 3))),
    {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
    {"type": "bytes", "logicalType": "decimal"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "uuid"},
)
EDGES = (
    *(0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63)),
    *(86_399_999, 86_400_000, 86_399_999_999, 86_400_000_000, 2_932_896, 2_932_897, -719_162, -719_163),
    *(253_402_300_799_999, 253_402_300_800_000, 253_402_300_799_999_999, 253_402_300_800_000_000),
    *(-62_135_596_800_000, -62_135_596_800_001, -62_135_596_800_000_000, -62_135_596_800_000_001),
)
TEXTS = ("", "a", "key", "\u00e9\U0001f600", "x" * 70, "6fa459ea-ee8a-3ca4-894e-db77e160355e")
NO_UUIDS = (
    *(
        "6fa459eaee8a3ca4894edb77e160355e",
        "{6fa459ea-ee8a-3ca4-894e-db77e160355e}",
        "6fa459ea-ee8a-3ca4-894e-db77e160355",
    ),
    *("urn:uuid:6fa459ea-ee8a-3ca4-894e-db77e160355e", "6fa459ea-ee8a-3ca4-894e-db77e16035_e"),
    *("6fa459ea-ee8a-3ca4-894e-db77e160355e\n", "6fa459ea-ee8a-3ca4-894e-db77e16035\u0665e"),
)
NO_TEXTS = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82")


@dataclass
class Schemas:
    """Makes schemas.

    Attributes:
        random: The random generator.
        named: Named types that are complete.
    """

    random: Random
    named: list[str] = field(default_factory=list)
    made: int = 0

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    def schema(self, depth: int, within: tuple[str, ...] = ()) -> Any:
        """Make a schema with at most this many levels; `within` are the enclosing records."""
        simple = (self.primitive, self.primitive, self.logical, self.fixed, self.enum)
        nested = (self.reference, self.array, self.map, self.union, self.union, self.record)
        if depth == 0 or self.random.random() < 0.4:
            return self.random.choice(simple)()
        return self.random.choice(nested)(depth, within)

    def primitive(self) -> Any:
        return self.random.choice(PRIMITIVES)

    def logical(self) -> Any:
        return dict(self.random.choice(LOGICAL))

    def enum(self) -> Any:
        name = self.name("Enum")
        self.named.append(name)
        symbols = [f"S{place}" for place in range(self.random.choice((1, 3, 3, 70)))]
        return {"type": "enum", "name": name, "symbols": symbols}

    def reference(self, depth: int, within: tuple[str, ...]) -> Any:
        return self.random.choice(self.named) if self.named else self.record(depth, within)

    def array(self, depth: int, within: tuple[str, ...]) -> Any:
        return {"type": "array", "items": self.inner(depth, within)}

    def map(self, depth: int, within: tuple[str, ...]) -> Any:
        return {"type": "map", "values": self.inner(depth, within)}

    def inner(self, depth: int, within: tuple[str, ...]) -> Any:
        """Make a schema whose values are not empty: an array of nothing is refused as a schema."""
        if within and self.random.random() < 0.1:
            return self.random.choice(within)
        inner = self.schema(depth - 1, within)
        return inner if isinstance(inner, list) or inner in PRIMITIVES[1:] else [inner]

    def fixed(self) -> Any:
        name = self.name("Fixed")
        size = self.random.choice((1, 2, 4, 12, 16))
        self.named.append(name)
        logical = self.random.choice(("decimal", "uuid", "duration", None))
        annotated = {"logicalType": logical, "precision": self.random.choice((2, 9)), "scale": 1} if logical else {}
        return {"type": "fixed", "name": name, "size": size, **annotated}

    def union(self, depth: int, within: tuple[str, ...]) -> Any:
        branches: list[Any] = ["null"]
        for _ in range(self.random.choice((1, 2, 3))):
            branches = flat(branches, self.schema(depth - 1, within))
        if within and self.random.random() < 0.3:
            return flat(branches, self.random.choice(within))
        is_endless = any(branch in within for branch in branches)
        return branches if is_endless or self.random.random() < 0.5 else branches[1:] or branches

    def record(self, depth: int, within: tuple[str, ...] = ()) -> Any:
        """Make a record; often a record of numbers, many of which are read together."""
        name = self.name("Record")
        if self.random.random() < 0.2:
            self.named.append(name)
            return {"type": "record", "name": name, "fields": [{"name": one, "type": "long"} for one in ("a", "b")]}
        count = self.random.choice((1, 2, 3))
        fields = [{"name": f"f{place}", "type": self.schema(depth - 1, (*within, name))} for place in range(count)]
        self.named.append(name)
        return {"type": "record", "name": name, "fields": fields}


def flat(branches: list[Any], added: Any) -> list[Any]:
    """Add a type, or the branches of another union, to a union."""
    return branches + [one for one in (added if isinstance(added, list) else [added]) if one not in branches]


def number(random: Random, value: int) -> bytes:
    """Encode a number as a varint, sometimes padded within the bytes that its bits need or beyond."""
    plain = 2 * value if value >= 0 else -2 * value - 1
    groups = [plain & 0x7F]
    while plain := plain >> 7:
        groups.append(plain & 0x7F)
    if random.random() < 0.02:
        groups.extend([0] * random.choice((1, 2, 8)))
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


@dataclass
class Bytes:
    """Makes the bytes of messages.

    Attributes:
        random: The random generator.
        named: Named types by name.
        odd: Probability of a value beyond its bounds.
    """

    random: Random
    named: dict[str, Any]
    odd: float = 0.01

    def is_odd(self) -> bool:
        return self.random.random() < self.odd

    def index(self, count: int) -> bytes:
        odd = (-1, count, count + 1, 2**31, -(2**31), 2**40)
        return number(self.random, self.random.choice(odd) if self.is_odd() else self.random.randrange(count))

    def prefixed(self, content: bytes) -> bytes:
        length = len(content)
        if self.is_odd():
            length = self.random.choice((-1, -length - 1, length + 1, 2**40, 2**62))
        return number(self.random, length) + content

    def value(self, schema: Any, depth: int = 0) -> bytes:
        """Make the bytes of a value."""
        schema = self.named.get(schema, schema) if isinstance(schema, str) else schema
        if isinstance(schema, list):
            place = self.random.randrange(len(schema)) if depth < 6 else 0
            return (self.index(len(schema)) if self.is_odd() else number(self.random, place)) + self.value(
                schema[place], depth + 1
            )
        kind = schema["type"] if isinstance(schema, dict) else schema
        match kind:
            case "record":
                return b"".join(self.value(one["type"], depth + 1) for one in schema["fields"])
            case "array" | "map":
                return self.blocks(schema, depth)
            case "enum":
                return self.index(len(schema["symbols"]))
            case "fixed":
                return self.unscaled(schema["size"])
            case _:
                return self.primitive(kind, schema)

    def blocks(self, schema: Any, depth: int) -> bytes:
        """Make the blocks of an array or map: without sizes, with correct sizes, or with wrong sizes."""
        blocks = b""
        sizes = (0, 1, 2, 3, 40) if depth < 3 else (0, 1)
        for _ in range(self.random.choice((0, 1, 1, 2)) if depth < 6 else 0):
            count = self.random.choice(sizes)
            content = b"".join(self.entry(schema, depth, place) for place in range(count))
            if count == 0:
                continue
            if self.is_odd():
                count = self.random.choice((count + 1, count - 1 or 2, -count, 2**40, -(2**63)))
            if self.random.random() < 0.3 and count > 0:
                size = len(content) + (self.random.choice((-1, 1, -len(content) - 1, 2**40)) if self.is_odd() else 0)
                blocks += number(self.random, -count) + number(self.random, size) + content
            else:
                blocks += number(self.random, count) + content
        return blocks + number(self.random, 0)

    def entry(self, schema: Any, depth: int, place: int) -> bytes:
        if schema["type"] == "array":
            return self.value(schema["items"], depth + 1)
        name = f"k{place}-{self.random.randrange(10**9)}" if not self.is_odd() else "again"
        return self.prefixed(name.encode()) + self.value(schema["values"], depth + 1)

    def unscaled(self, size: int) -> bytes:
        """Make bytes that often encode a small number."""
        if self.random.random() < 0.5:
            return bytes(self.random.randrange(256) for _ in range(size))
        return self.random.choice((-1, 0, 1, 9, 99, -99)).to_bytes(size, "big", signed=True) if size else b""

    def primitive(self, kind: str, schema: Any) -> bytes:
        """Make the bytes of a primitive value."""
        match kind:
            case "boolean":
                return bytes([self.random.choice((2, 3, 128, 255) if self.is_odd() else (0, 1))])
            case "int" | "long":
                return self.whole(kind, schema)
            case "float" | "double":
                values = (0.0, -0.0, 1.5, float("nan"), float("inf"), 1e-40, 5e-324)
                return struct.pack("<f" if kind == "float" else "<d", self.random.choice(values))
            case "bytes":
                return self.prefixed(self.unscaled(self.random.choice((0, 1, 2, 3, 13) if self.is_odd() else (1, 2))))
            case "string":
                return self.prefixed(self.text(schema))
        return b""

    def text(self, schema: Any) -> bytes:
        if self.is_odd():
            return self.random.choice(NO_TEXTS)
        if isinstance(schema, dict):
            return self.random.choice(NO_UUIDS if self.random.random() < 0.1 else TEXTS[-1:]).encode()
        return self.random.choice(TEXTS).encode()

    def whole(self, kind: str, schema: Any) -> bytes:
        if self.is_odd():
            return self.random.choice(
                (b"\xff" * 9 + b"\x01", b"\xff" * 9 + b"\x02", b"\xff" * 10, b"\x80" * 4 + b"\x10")
            )
        if isinstance(schema, dict) and self.random.random() < 0.2:
            return number(self.random, self.random.choice(EDGES))
        bits = self.random.choice((6, 13, 20, BITS[kind] - 1))
        limit = 2**16 if isinstance(schema, dict) else 2**bits
        return number(self.random, self.random.randrange(-limit, limit))


def corrupt(random: Random, data: bytes) -> bytes:
    """Return the bytes with one fault."""
    place = random.randrange(len(data) + 1)
    match random.randrange(5):
        case 0:
            return data[:place]
        case 1:
            return data + bytes([random.randrange(256)])
        case 2:
            return data[:place] + bytes([random.randrange(256)]) + data[place:]
        case 3:
            return data[:place] + data[place + 1 :]
        case _:
            return data[:place] + bytes([random.randrange(256)]) + data[place + 1 :]


PROMOTED = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",)}
PROMOTED |= {"string": ("bytes",), "bytes": ("string",)}
DEFAULTS: tuple[tuple[Any, Any], ...] = (
    ("int", 5),
    ("double", 2),
    ("bytes", "\u00ff"),
    ("string", "d"),
    (["null", "string"], None),
    ({"type": "array", "items": "int"}, []),
    ({"type": "long", "logicalType": "timestamp-millis"}, 1),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1"),
)


@dataclass
class Evolution:
    """Makes a reader's schema from a writer's: often resolvable, sometimes not.

    Attributes:
        random: The random generator.
        written: The writer's named types.
        defined: Named types of the reader, including incomplete types.
    """

    random: Random
    written: dict[str, Any]
    defined: set[str] = field(default_factory=set)

    def is_rare(self, share: float = 0.1) -> bool:
        return self.random.random() < share

    def schema(self, schema: Any) -> Any:
        """Make the reader's schema."""
        if isinstance(schema, list):
            return self.union(schema)
        if self.is_rare(0.05):
            return self.random.choice(PRIMITIVES)
        if schema != "null" and self.is_rare(0.07):
            inner = self.schema(schema)
            return inner if isinstance(inner, list) or inner == "null" else ["null", inner]
        if isinstance(schema, str) and schema in self.written and schema not in self.defined:
            schema = self.written[schema]
        if isinstance(schema, str):
            return self.random.choice(PROMOTED.get(schema, (schema,))) if self.is_rare(0.3) else schema
        if "name" in schema and schema["name"] in self.defined:
            return schema["name"]
        return self.complex(schema)

    def union(self, branches: list[Any]) -> Any:
        kept = [branch for branch in branches if not self.is_rare()] or ["null"]
        self.random.shuffle(kept)
        evolved: list[Any] = []
        for branch in kept:
            evolved = flat(evolved, self.schema(branch))
        return evolved[0] if len(evolved) == 1 and self.is_rare(0.3) else evolved

    def complex(self, schema: Any) -> Any:
        self.defined.add(schema.get("name", ""))
        match schema["type"]:
            case "array":
                items = self.schema(schema["items"])
                return {**schema, "items": items if isinstance(items, list) or items in PRIMITIVES[1:] else [items]}
            case "map":
                return {**schema, "values": self.schema(schema["values"])}
            case "enum":
                symbols = [symbol for symbol in schema["symbols"] if not self.is_rare()] or ["S0"]
                return {**schema, "symbols": symbols} | ({"default": symbols[0]} if self.is_rare(0.5) else {})
            case "record":
                return self.record(schema)
        return {name: part for name, part in schema.items() if name != "logicalType" or not self.is_rare()}

    def record(self, schema: Any) -> Any:
        """Make a record with fields removed, added, renamed and moved."""
        kept = [one for one in schema["fields"] if not self.is_rare()] or schema["fields"][:1]
        self.random.shuffle(kept)
        fields: list[Any] = []
        for one in kept:
            renamed = {"name": f"new_{one['name']}", "aliases": [one["name"]]} if self.is_rare(0.2) else {}
            fields.append({**one, **renamed, "type": self.schema(one["type"])})
        if self.is_rare(0.4):
            kind, default = self.random.choice(DEFAULTS)
            fields.append({"name": "added", "type": kind} | ({} if self.is_rare() else {"default": default}))
        return {**schema, "fields": fields}
