"""Protocols that two packages need: the outside world as the core sees it.

A Protocol stands here only when it has two implementations; those used by one package stand beside
their use.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec

from binlogd.binlog import Pulled
from binlogd.tso import NO_TS, Tso


class Clock(Protocol):
    """Wall time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""


class TsoSource(Protocol):
    """Where timestamps come from: PD, a local oracle, or what the binlogs themselves carried."""

    async def next(self) -> Tso:
        """A timestamp that is not ahead of any writer. Raises UpstreamUnavailable."""

    def observe(self, ts: Tso) -> None:
        """Takes note of a start_ts or commit_ts that a binlog carried."""


class Committed(msgspec.Struct, frozen=True):
    """The transaction committed at commit_ts, although its Commit binlog never arrived."""

    commit_ts: Tso


class RolledBack(msgspec.Struct, frozen=True):
    """The transaction never committed and never will."""


class Pending(msgspec.Struct, frozen=True):
    """Nobody knows yet; ask again later. `reason` is shown to the operator.

    `is_traceless`: there is neither a lock nor a record where a commit would leave one. It may
    still come, unless the writer has said that it gave up.
    """

    reason: str
    is_traceless: bool = False


TxnStatus = Committed | RolledBack | Pending


class OpenPrewrite(msgspec.Struct, frozen=True):
    """A prewrite whose outcome has not arrived."""

    start_ts: Tso
    prewrite_key: bytes


class TxnStatusSource(Protocol):
    """Who knows the fate of a transaction."""

    @property
    def verifies_rollbacks(self) -> bool:
        """Whether it knows more than the binlogs say. Then a Rollback binlog is only a claim, as a
        writer that lost sight of its commit sends one too, and it is asked."""

    async def statuses(self, prewrites: Sequence[OpenPrewrite]) -> Sequence[TxnStatus]:
        """One answer for each prewrite, in order. Raises UpstreamUnavailable."""


class ClusterIdentity(Protocol):
    """Whose binlogs these are."""

    @property
    def cluster_id(self) -> int | None:
        """None until somebody has said it."""

    async def adopt(self, cluster_id: int) -> int:
        """Keeps it durably if none is known yet; returns the one that is kept."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One pump or drainer, as the registry knows it."""

    kind: str
    node_id: str
    host: str
    state: str
    max_commit_ts: Tso
    update_ts: Tso
    score: int = 0
    """How gladly it takes more binlogs, 0 to 100."""
    is_alive: bool | None = None
    """Whether its claim to be alive holds; None for a node that claims nothing, as the original's
    do. A list knows; who asks for one node is told what its entry says."""
    labels: Mapping[str, str] | None = None
    """Of the original, which does nothing with them."""


class Registry(Protocol):
    """Pumps and drainers that belong together. Methods raise UpstreamUnavailable."""

    async def register(self, node: NodeStatus) -> None:
        """Adds or updates a node. Raises ConfigError for a node id that nobody could list."""

    async def keep(self, nodes: Sequence[NodeStatus]) -> None:
        """As `register`, for the nodes of this process: they claim to be alive by that, and the
        claim ends by itself when it is not made again."""

    async def leave(self, nodes: Sequence[NodeStatus]) -> None:
        """The last words of this process: the entries stay, the claims end."""

    async def pause_the_vanished(self) -> Sequence[NodeStatus]:
        """Sets to paused the Pumps that were online and whose claim has ended; returns them."""

    async def nodes(self, kind: str) -> Sequence[NodeStatus]:
        """All of a kind, by id; those that are offline as well."""

    async def node(self, kind: str, node_id: str) -> NodeStatus | None:
        """One node; None if it was never here."""

    def watch(self, kind: str) -> AsyncGenerator[Sequence[NodeStatus], None]:
        """All of a kind now, and all of them again soon after something of them has changed.

        Never ends by itself; changes that follow each other closely may come as one.
        """


class BinlogSource(Protocol):
    """Something that can be pulled: a shard in this process, or a remote Pump."""

    @property
    def name(self) -> str:
        """For logs and status, unique among the sources of one merge."""

    def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """Binlogs with commit_ts > after, strictly increasing; never ends by itself.

        Who stops reading closes it. Wakes on the watermark, without polling. Raises Unavailable or
        Corrupt.
        """


class SourceState(StrEnum):
    """What is known of a source beside its stream."""

    ONLINE = "online"
    PAUSED = "paused"
    """It will come back: nothing passes it until then."""
    OFFLINE = "offline"
    """It is gone for good; it leaves the merge when it has delivered what it had."""


@dataclass(frozen=True, slots=True)
class Member:
    """A source of a merge. `last_ts` of an offline one: what it must have delivered to leave."""

    source: BinlogSource
    state: SourceState = SourceState.ONLINE
    last_ts: Tso = NO_TS


class Sources(Protocol):
    """Who is in a merge: a list that is fixed, or one that changes while the merge runs."""

    def watch(self) -> AsyncGenerator[Sequence[Member], None]:
        """All members now, and all of them again whenever something of them changes.

        A source must be told before it acknowledges its first binlog. Who vanishes from the list
        is still waited for: only OFFLINE lets go. A source whose object is another one than before
        (it has moved) is pulled anew from where it was. Raises Unavailable or ConfigError.
        """


@dataclass(frozen=True, slots=True)
class Space:
    """Of a file system: all of it, and what an ordinary user may still write."""

    capacity_bytes: int
    free_bytes: int


class AppendFile(Protocol):
    """A file that only grows at its end, and of which nothing is promised before a sync."""

    path: Path
    """Where it is found; whoever renames it says so."""

    @property
    def size(self) -> int:
        """Bytes up to the end of the last append that succeeded."""

    @property
    def last_sync_s(self) -> float:
        """How long the last append waited for its sync, in seconds."""

    async def append(self, parts: Sequence[bytes], *, sync: bool) -> None:
        """Writes the parts behind each other; with `sync` they are durable on return.

        Raises OSError, also where the file is not at its path any more, or was cut. Do not use it
        again then: what lies behind `size` is unknown, and whether an append would be durable.
        """

    async def close(self) -> None:
        """Closes the descriptor; never raises."""


class ReadFile(Protocol):
    """An open file. It can be read after its name has gone, and is closed when nobody has it."""

    def read(self, begin: int, size: int) -> bytes:
        """The bytes at an offset, fewer only at the end; waits for the disk. Raises OSError."""


class DiskLock(Protocol):
    """A lock that this process holds."""

    async def release(self) -> None:
        """Gives it up."""


class Disk(Protocol):
    """Files. Every method raises OSError as the system gives it."""

    async def make_directory(self, directory: Path) -> None:
        """Makes it and its parents durably; nothing happens if it is there."""

    async def sync_directory(self, directory: Path) -> None:
        """Makes the names in a directory durable."""

    async def sizes(self, directory: Path) -> dict[str, int]:
        """The plain files of a directory by name, with their sizes in bytes."""

    async def open_append(self, path: Path, *, create: bool) -> AppendFile:
        """Opens a file to append. With `create` it must be new, and its name is durable."""

    async def read(self, path: Path, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (offset, length); shorter where the file ends."""

    async def open_read(self, path: Path) -> ReadFile:
        """Opens a file to read."""

    async def checksum(self, path: Path, length: int) -> int:
        """CRC-32C of the first `length` bytes."""

    async def truncate(self, path: Path, size: int) -> None:
        """Cuts a file to `size` bytes, durably."""

    async def remove(self, paths: Sequence[Path]) -> None:
        """Removes files of one directory, durably; those that are gone already are passed over."""

    async def rename(self, source: Path, target: Path) -> None:
        """Gives a file another name in the same directory, durably; nothing has that name."""

    async def overwrite(self, path: Path, begin: int, content: bytes) -> None:
        """Replaces bytes of a file, and makes all of it durable."""

    async def write_whole(self, path: Path, content: bytes) -> None:
        """Puts a small file in place durably: afterwards it is the old or the new one, whole."""

    async def reserve(self, path: Path, size_bytes: int) -> None:
        """Makes a file that takes that much room, durably, or leaves none. What is in it counts for
        nothing; whoever is killed leaves a shorter one."""

    async def compress(self, source: Path, target: Path) -> None:
        """Puts a gzip of a finished file in its place, under another name of the same directory.

        Durable: a crash leaves the one or the other, or both whole. The time of the last change
        is kept. Cancelled, it stops soon, and leaves the source.
        """

    async def modified_ms(self, directory: Path) -> dict[str, int]:
        """When the plain files of a directory were last changed, in milliseconds since 1970."""

    async def space(self, directory: Path) -> Space:
        """How full its file system is."""

    async def lock(self, path: Path) -> DiskLock:
        """Takes an exclusive lock or raises ConfigError naming the holder."""

    def boot_id(self) -> str:
        """Names this run of the machine: equal as long as no unsynced byte can have been lost."""
