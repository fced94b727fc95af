"""Retention: segments of an archive that are older than asked go, and never what is still needed.

    done = keep(url, Keep(keep_s=30 * 86_400))

Invariants. A read behind the bound finds all that it found before. Nothing is deleted that the
catalog names, or that a read needs that was planned in the last `grace_s`, or that an archiver is
about to name.
Why it holds. A shard is cut at a segment such that every commit behind the bound, there or later,
has its prewrite there or later. The bound is announced first; from then on no read begins before
it. When the grace is over it holds, by one write, and only then files are deleted: those of numbers
below the first that is kept, while an archiver names and makes higher ones only. Killed anywhere,
the next round goes on from what `kept.json` says. Two rounds at once do the same, or one announces
what the other did, later: a round that took longer than a part of the grace writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from binlogd.archive.bases import below, snapshot_at
from binlogd.archive.catalog import (
    CATALOG_NAME,
    ArchiveCatalog,
    Bound,
    Leaving,
    bounded,
    decode_catalog,
    put_bound,
    read_bound,
    read_sealed,
    segments_of_shard,
)
from binlogd.archive.places import ArchivedIndex
from binlogd.archive.store import ArchiveStore
from binlogd.archive.task import GRACE_S, Keep, Removed
from binlogd.archive.upload import Report, described
from binlogd.errors import ConfigError, Refused
from binlogd.host.clock import WallClock
from binlogd.settings.quantities import wall_clock
from binlogd.tso import NO_TS, Tso, plus_ms

SNAPSHOTS = "snapshots"
"""Where bases are looked for in an archive, if no other place is named."""
NEWEST_KEPT = 2
"""Of each shard: an upload goes on with the one that grows, and needs to know the one before."""
MISTAKEN_MS = 3_600_000
"""A Rollback may have been mistaken, with a Commit behind it: so long after the bound it is looked
for. No transaction of TiDB is alive after an hour (performance.max-txn-ttl)."""
ROUND_S_MAX = GRACE_S / 4
"""Between looking and writing: what another round announced meanwhile is not deleted by then."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """Where a shard is cut: the first segment that stays, and what goes."""

    first: int
    gone_ts: int
    segments: int
    size_bytes: int


def keep(url: str, asked: Keep, report: Report = lambda *_: None) -> Removed:
    """One round over an archive.

    Raises ConfigError without a snapshot that replaces what goes, Refused for one of another log,
    Corrupt, ArchiveUnavailable.
    """
    store, now_ms = ArchiveStore.open(url), WallClock().wall_ms()
    catalog, bound = read_sealed(store), read_bound(store)  # a tail is never too old
    if bound.leaving and now_ms - bound.leaving.since_ms >= asked.grace_s * 1000:
        bound = Bound(gone_ts=bound.leaving.gone_ts, first=bound.leaving.first)
        catalog = bounded(catalog, bound)
        _put(store, bound, asked, now_ms)
    cuts, held = list[_Cut](), ""
    if bound.leaving is None:
        cuts, held = _cuts(store, catalog, asked.keep_s, asked.base or below(url, SNAPSHOTS))
    if any(cut.segments for cut in cuts):
        leaving = Leaving(
            gone_ts=max(bound.gone_ts, *(cut.gone_ts for cut in cuts)),
            first={shard: cut.first for shard, cut in enumerate(cuts)},
            since_ms=now_ms,
        )
        bound = msgspec.structs.replace(bound, leaving=leaving)
        _put(store, bound, asked, now_ms)
    files, left = _swept(store, bound, asked, report)
    return Removed(
        files=files,
        files_left=left,
        leaving=sum(cut.segments for cut in cuts),
        leaving_bytes=sum(cut.size_bytes for cut in cuts),
        leaving_ms=int(bound.leaving.since_ms + asked.grace_s * 1000) if bound.leaving else 0,
        gone_ts=max(bound.gone_ts, catalog.gone_ts),
        leaving_ts=bound.announced_ts,
        held=held,
    )


def _put(store: ArchiveStore, bound: Bound, asked: Keep, began_ms: int) -> None:
    if asked.is_dry:
        return
    took_s = abs(WallClock().wall_ms() - began_ms) / 1000
    if took_s > ROUND_S_MAX:
        raise Refused(
            f"{store.url}: to find what goes took {took_s:.0f} s, and another round may have come"
            f" between in more than {ROUND_S_MAX:.0f} s: nothing was changed, run it again"
        )
    put_bound(store, bound)


def _swept(store: ArchiveStore, bound: Bound, asked: Keep, report: Report) -> tuple[int, int]:
    """Deletes files that no catalog names any more, of this round and of one that was killed. How
    many, and how many are left."""
    found = {
        f"shard-{shard}/{name}": size
        for shard, first in sorted(bound.first.items())
        for name, size in sorted(store.names(f"shard-{shard}").items())
        if (number := name.partition(".")[0]).isdigit() and int(number) < first
    }
    # as it is stored: a page may have nothing but what is gone, and still be named
    named = {page.name for page in decode_catalog(store.read(CATALOG_NAME), store.url).pages}
    newest = max(named, default="")  # what is above it, an archiver may have just written
    for name, size in store.names("pages").items():
        if f"pages/{name}" < newest and f"pages/{name}" not in named:
            found[f"pages/{name}"] = size
    going = list(found)[: asked.files_max or None]
    total, done = sum(found[name] for name in going), 0
    for name in going:
        if not asked.is_dry:
            store.remove(name)
        done += found[name]
        report(name, done, total)
    return len(going), len(found) - len(going)


# --- what goes -----------------------------------------------------------------------------------


def _cuts(
    store: ArchiveStore, catalog: ArchiveCatalog, keep_s: float, base: str
) -> tuple[list[_Cut], str]:
    """By shard, and why less goes than was asked for. Age is counted back from where the archive is
    complete: no wrong clock ends one, and one that nothing is added to keeps what it has."""
    limit_ts = plus_ms(Tso(catalog.resolved_ts), -int(keep_s * 1000))
    shards = [_Shard(store, catalog, shard) for shard in range(catalog.shards)]
    cuts = [each.cut(limit_ts) for each in shards]
    if not any(cut.segments for cut in cuts):
        return [], ""
    base_ts = _base_ts(catalog, base)
    if base_ts >= limit_ts:
        return cuts, ""
    return [each.cut(base_ts) for each in shards], (
        f"the snapshot that replaces what goes is of commit_ts {base_ts} ({wall_clock(base_ts)}),"
        " and nothing behind it goes: make a newer one by `binlogd export`"
    )


def _base_ts(catalog: ArchiveCatalog, base: str) -> Tso:
    """The moment of the snapshot that a reader begins with when the beginning is gone."""
    place, manifest = snapshot_at(base)
    if manifest.changes is not None:
        raise ConfigError(f"{place.url}: has the changes between two moments: name a snapshot")
    if len({catalog.cluster_id, manifest.cluster_id} - {None}) > 1:
        raise Refused(
            f"{place.url}: is of cluster {manifest.cluster_id}, the archive is of cluster"
            f" {catalog.cluster_id}: name a snapshot of this cluster"
        )
    there: dict[str, dict[str, int]] = {}
    for name in manifest.names():
        directory, _, file = name.rpartition("/")
        if directory not in there:
            there[directory] = place.names(directory)
        if file not in there[directory]:
            raise ConfigError(f"{place.url}: its manifest names {name}, which is not there")
    return Tso(manifest.commit_ts)


class _Shard:
    """One shard of an archive, and where it can be cut."""

    def __init__(self, store: ArchiveStore, catalog: ArchiveCatalog, number: int) -> None:
        self._store, self._catalog, self._number = store, catalog, number
        self._index = ArchivedIndex(store, catalog)
        newest = catalog.newest().get(number)
        self._newest = newest.fid if newest is not None else -1

    def cut(self, limit_ts: Tso) -> _Cut:
        """As late as can be, with nothing gone of a commit behind a moment."""
        going: list[tuple[int, int, int]] = []
        for each in segments_of_shard(self._store, self._catalog, self._number):
            if each.seen_ts > limit_ts or each.fid > self._newest - NEWEST_KEPT:
                break
            going.append((each.fid, each.seen_ts, each.size_bytes))
        while going:  # ends with nothing to go: what is needed stands in one that would
            first = going[-1][0] + 1
            needed, gone_ts = self._needed(first, limit_ts)
            if needed == first:
                gone_ts = max(gone_ts, going[-1][1])
                return _Cut(first, gone_ts, len(going), sum(size for *_, size in going))
            going = [each for each in going if each[0] < needed]
        return _Cut(self._catalog.first_fids().get(self._number, 0), NO_TS, 0, 0)

    def _needed(self, first: int, limit_ts: Tso) -> tuple[int, int]:
        """What must stay if the shard were cut before a segment: from where on (that segment, where
        all can go), and the last commit up to the limit that loses its prewrite. A prewrite stays
        as long as nobody knows its fate."""
        needed, gone_ts = first, int(NO_TS)
        left = described(self._store, self._number, first - 1).open
        fid, seen_ts, mistaken_ts = first, int(NO_TS), plus_ms(limit_ts, MISTAKEN_MS)
        while fid <= self._newest and any(
            not each.is_decided or seen_ts <= mistaken_ts for each in left
        ):
            segment = described(self._store, self._number, fid)
            for each in self._index.reaching_back(segment, first):
                if each.commit_ts > limit_ts:
                    needed = min(needed, each.prewrite_fid)
                else:
                    gone_ts = max(gone_ts, each.commit_ts)
            left = tuple(each for each in segment.open if each.fid < first)
            fid, seen_ts = fid + 1, segment.seen_ts
        return min([needed, *(each.fid for each in left if not each.is_decided)]), gone_ts
