"""Whether a transaction that one source has too late came by another one.

A writer that hears nothing from a Pump writes the same prewrite to another one, and commits there.
The first Pump may get that prewrite when it has promised everything beyond the commit_ts: it knows
of nothing but a commit that came too late.

Invariant. What is found here is downstream, or will be: a source that has a transaction in its
place delivers it before it promises anything above. One that has it too late itself says nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import aclosing

from binlogd.binlog import Late
from binlogd.errors import BinlogdError
from binlogd.ports import BinlogSource, Sources
from binlogd.tso import Tso
from binlogd.wire import peek

ASK_S = 15.0
"""For one answer; that of a source which stands at the commit is there at once."""


async def members(sources: Sources | Sequence[BinlogSource]) -> Sequence[BinlogSource]:
    """Who is in the merge now; nobody else may watch meanwhile."""
    if isinstance(sources, Sequence):
        return sources
    async with aclosing(sources.watch()) as lists:
        async for listed in lists:
            return [member.source for member in listed]
    return ()


async def has_come(
    late: Late, others: Sequence[BinlogSource], own: BinlogSource | None, silent: dict[str, str]
) -> bool:
    """Whether one of the others has it: of the same start_ts and commit_ts, and with the same rows
    or DDL. `silent`: sources that give no answer, and why; each is waited for once."""
    for other in others:
        found = await _digest(other, late, silent)
        if found and own is not None and found == await _digest(own, late, silent):
            return True
    return False


async def _digest(source: BinlogSource, late: Late, silent: dict[str, str]) -> bytes:
    """Of rows and DDL, since they may be large; empty where there is no such transaction."""
    if source.name in silent:
        return b""
    try:
        async with (
            asyncio.timeout(ASK_S),
            aclosing(source.pull(Tso(late.commit_ts - 1))) as batches,
        ):
            async for pulled in batches:
                for each in pulled.binlogs:
                    if (each.start_ts, each.commit_ts) == (late.start_ts, late.commit_ts):
                        value, *ddl = peek.body(each.payload)
                        digest = hashlib.sha256(value)
                        digest.update(repr(ddl).encode())
                        return digest.digest()
                if pulled.resolved_ts >= late.commit_ts:
                    break
    except (BinlogdError, TimeoutError) as error:
        silent[source.name] = str(error) or f"{source.name} gave no answer in {ASK_S:g} s"
    return b""
