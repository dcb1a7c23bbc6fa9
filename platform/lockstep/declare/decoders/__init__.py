"""Decoders, from a record's value to a typed message: JSON, MessagePack, Avro, Protobuf, bytes, a function."""
