"""Transactions as messages of the original: file-sink records and the secondary protobuf."""
