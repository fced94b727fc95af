"""A registry in a data directory, as a node that stands alone has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from binlogd.upstream.keyspace.store import KeyspaceStore
from binlogd.upstream.registry import NodeRegistry


@asynccontextmanager
async def own_registry(directory: Path) -> AsyncIterator[NodeRegistry]:
    """Opens it, beside a node that runs there if need be."""
    keyspace = await KeyspaceStore.open(directory / "upstream.db", Random(1))
    try:
        yield NodeRegistry(keyspace)
    finally:
        await keyspace.close()
