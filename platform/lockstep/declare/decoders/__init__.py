"""How a record's value becomes a typed message: JSON, MessagePack, Avro, Protobuf, bytes, a function."""
