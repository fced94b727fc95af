"""What an archive holds: `catalog.json`, written last, so everything that it names is there.

Its newest segments stand in it; the others in pages of a fixed number of segments, which never
change. So an upload writes one small file, and a reader fetches the pages of its range, once. What
of the log is not sealed yet, `tail.json` adds; from where on it is kept, `kept.json` says.

    catalog = read_catalog(store)
    segments_in(store, catalog, after, upto)

A catalog without pages has format 1, as an older binlogd writes and reads it; with pages it has
format 2, which that refuses. docs/FORMAT.md, decisions/0129-planning-by-the-catalog.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from binlogd.archive.store import ArchiveStore, Document
from binlogd.archive.task import CATALOG_NAME as CATALOG_NAME
from binlogd.errors import Behind, ConfigError, Corrupt
from binlogd.log.checked_text import checksummed_json, decoded_json
from binlogd.log.record import extend
from binlogd.log.segment_index import SegmentIndex
from binlogd.tso import MAX_TS, NO_TS, Tso

TAIL_NAME = "tail.json"


class TailPart(SegmentIndex, frozen=True, kw_only=True):
    """A stretch of a segment, from `begin` on, told as if it were one; it starts and ends between
    two records. `sync` counts from its begin; places of commits are those in the segment."""

    begin: int

    @property
    def end(self) -> int:
        """Where the next part of the segment begins."""
        return self.begin + self.size_bytes


class ArchiveTail(Document, frozen=True, kw_only=True):
    """The parts of segments that still grow, in their order: `tail.json`. With the catalog's
    segments they have all up to `resolved_ts`.

    A part never changes: its name has its place and its checksum. Parts are put together as they
    grow, and give way to the sealed segment; a record keeps its place in the segment all the while,
    so who looks for a part that is gone asks `tail.json` again.

    Invariant. A reader finds a prefix of every log, without a gap, and all up to `resolved_ts`.
    Why it holds. A part leaves `tail.json` when the catalog has its segment, and a reader takes the
    tail first and then the catalog, which is at least as new. The follower (follower.py) is the one
    writer of the tail, the archiver that of the catalog. decisions/0134-the-tail-of-an-archive.md.
    """

    resolved_ts: int = NO_TS
    parts: tuple[TailPart, ...] = ()


def parts_directory(shard: int) -> str:
    """Where the parts of a shard are."""
    return f"tail/shard-{shard}"


def part_stem(part: TailPart) -> str:
    """What the names of its two files begin with."""
    place = f"{part.fid:06d}-{part.begin:012d}-{part.end:012d}-{part.crc32c:08x}"
    return f"{parts_directory(part.shard)}/{place}"


def encode_tail(tail: ArchiveTail) -> bytes:
    """As it is stored."""
    return checksummed_json(msgspec.json.encode(tail))


def read_tail(store: ArchiveStore) -> ArchiveTail:
    """Of an archive of sealed segments alone, nothing. Raises Corrupt, ConfigError."""
    return store.document(TAIL_NAME, ArchiveTail)


BOUND_NAME = "kept.json"


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """A bound that was announced at `since_ms` of the wall clock."""

    gone_ts: int
    first: dict[int, int]
    since_ms: int


class Bound(Document, frozen=True, kw_only=True):
    """`kept.json`: behind `gone_ts` an archive is complete; `first` is by shard the first segment.

    Retention alone writes it (keep.py), and the archiver the catalog: neither overwrites what the
    other has just written, in a store without conditional writes as well. A bound moves twice.
    First it is announced: no new read begins before it, and everything is there. Then, when those
    reads are over that were planned before, it holds: the segments before it are no longer part of
    the archive, and are deleted. decisions/0131-retention-of-archives.md.
    """

    gone_ts: int = NO_TS
    first: dict[int, int] = msgspec.field(default_factory=dict)
    leaving: Leaving | None = None

    @property
    def announced_ts(self) -> int:
        """Before this no new read begins."""
        return self.leaving.gone_ts if self.leaving else self.gone_ts


def read_bound(store: ArchiveStore) -> Bound:
    """Of an archive that was never cut it is the beginning. Raises Corrupt, ConfigError."""
    return store.document(BOUND_NAME, Bound)


def put_bound(store: ArchiveStore, bound: Bound) -> None:
    """Writes it in one step."""
    store.put(BOUND_NAME, checksummed_json(msgspec.json.encode(bound)))


def behind(store: ArchiveStore, asked_ts: int, gone_ts: int) -> Behind:
    """A read from before what is kept."""
    return Behind(asked_ts, gone_ts, f"removed from the archive {store.url} (archive.keep)")


def removed(store: ArchiveStore, shard: int, fid: int, asked_ts: int = NO_TS) -> Behind | None:
    """Why a file of a segment is not there any more, if it was removed meanwhile."""
    bound = read_bound(store)
    is_removed = fid < bound.first.get(shard, 0)
    return behind(store, asked_ts, bound.gone_ts) if is_removed else None


HISTORY_NAME = "ddl_history.json"
CATALOG_FORMAT = 1
PAGED_FORMAT = 2
PAGES_CACHED_MAX = 32
"""Of this process: a page of segments of 100 tables takes about a megabyte."""

_Order = tuple[int, int, int]


class CatalogPage(msgspec.Struct, frozen=True, kw_only=True):
    """A file with descriptions of segments; `min_ts` and `max_ts` are of their commits, 0 where
    there are none. `fids`: of each shard, the first and the last segment."""

    name: str
    crc32c: int
    segments: int
    min_ts: int
    max_ts: int
    fids: tuple[_Order, ...]


class ArchiveCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The catalog itself; `segments` are those that stand in no page."""

    format: int = CATALOG_FORMAT
    cluster_id: int | None
    shards: int
    resolved_ts: int
    segments: tuple[SegmentIndex, ...]
    gone_ts: int = 0
    """Up to here binlogs may have been deleted, before they were archived or by retention."""
    leaving_ts: int = 0
    """Up to here they will be: no read begins before it any more."""
    kept_from: dict[int, int] = {}
    """By shard the first segment that retention has left."""
    history_crc32c: tuple[int, ...] = ()
    """Of the DDL history: while it is written anew, of both; none where nobody has told."""
    pages: tuple[CatalogPage, ...] = ()

    def first_fids(self) -> dict[int, int]:
        """Where the archive of each shard begins."""
        begins = [(shard, first) for page in self.pages for shard, first, _ in page.fids]
        begins += [(each.shard, each.fid) for each in self.segments]
        first: dict[int, int] = {}
        for shard, fid in begins:
            first[shard] = max(min(fid, first.get(shard, fid)), self.kept_from.get(shard, 0))
        return first

    def newest(self) -> dict[int, SegmentIndex]:
        """The last segment of each shard, which never stands in a page."""
        return {each.shard: each for each in sorted(self.segments, key=by_shard)}

    def keeps(self, each: SegmentIndex) -> bool:
        """Whether retention has left a segment."""
        return each.fid >= self.kept_from.get(each.shard, 0)


def by_shard(each: SegmentIndex) -> tuple[int, int]:
    """The order of segments: shard by shard, and its number there."""
    return each.shard, each.fid


# --- reading -----------------------------------------------------------------------------------


def read_catalog(store: ArchiveStore) -> ArchiveCatalog:
    """With the parts of what is not sealed. Raises ConfigError where there is no archive,
    Corrupt."""
    tail = read_tail(store)  # first: what left it, stands in the catalog by then
    return with_tail(read_sealed(store), tail, store.url)


def read_sealed(store: ArchiveStore) -> ArchiveCatalog:
    """The archiver's own. Raises ConfigError where there is no archive, Corrupt."""
    try:
        content = store.read(CATALOG_NAME)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{store.url}: holds no {CATALOG_NAME}, so it is no archive; `binlogd archive` makes"
            " one, and `[archive] url` of `binlogd serve` keeps one up to date"
        ) from error
    return bounded(decode_catalog(content, store.url), read_bound(store))


def with_tail(catalog: ArchiveCatalog, tail: ArchiveTail, where: str) -> ArchiveCatalog:
    """A catalog with the parts that follow its segments. Raises Corrupt for a gap."""
    newest = catalog.newest()
    ends = {(each.shard, each.fid): each.end for each in tail.parts}

    def is_news(part: TailPart) -> bool:
        kept = newest.get(part.shard)
        if kept is None or part.fid != kept.fid:
            return kept is None or part.fid > kept.fid
        return not kept.is_sealed and ends[part.shard, part.fid] > kept.size_bytes

    parts = tuple(filter(is_news, tail.parts))
    replaced = {(part.shard, part.fid) for part in parts}
    whole = tuple(each for each in catalog.segments if (each.shard, each.fid) not in replaced)
    ended = {each.shard: (each.fid, each.size_bytes) for each in whole}  # the last one counts
    for part in parts:
        before = ended.get(part.shard, (part.fid - 1, 0))
        if (part.fid, part.begin) not in (before, (before[0] + 1, 0)):
            raise Corrupt(
                f"{where}/{TAIL_NAME}: shard {part.shard} goes on at offset {part.begin} of segment"
                f" {part.fid}, which does not follow what is there before"
            )
        ended[part.shard] = part.fid, part.end
    resolved_ts = max(catalog.resolved_ts, tail.resolved_ts)
    return msgspec.structs.replace(catalog, segments=(*whole, *parts), resolved_ts=resolved_ts)


def bounded(catalog: ArchiveCatalog, bound: Bound) -> ArchiveCatalog:
    """A catalog without what retention took away. It is read before the bound, which is so at least
    as new: the other way round a catalog might lack what the bound still had."""
    first = {shard: max(fid, catalog.kept_from.get(shard, 0)) for shard, fid in bound.first.items()}
    cut = msgspec.structs.replace(
        catalog,
        gone_ts=max(catalog.gone_ts, bound.gone_ts),
        leaving_ts=bound.announced_ts,
        kept_from={**catalog.kept_from, **first},
    )
    kept = [
        page
        for page in cut.pages
        if any(last >= cut.kept_from.get(shard, 0) for shard, _, last in page.fids)
    ]
    return msgspec.structs.replace(
        cut,
        segments=tuple(filter(cut.keeps, cut.segments)),
        pages=tuple(kept or cut.pages[-1:]),  # the next page is counted from the last
    )


def decode_catalog(content: bytes, where: str) -> ArchiveCatalog:
    """Raises Corrupt, ConfigError for a newer format."""
    try:
        catalog = decoded_json(content, ArchiveCatalog)
    except ValueError as error:
        raise Corrupt(f"{where}/{CATALOG_NAME}: is no catalog: {error}") from error
    if catalog.format not in (CATALOG_FORMAT, PAGED_FORMAT):
        raise ConfigError(f"{where}: an archive of format {catalog.format}, this is older")
    return catalog


def all_segments(store: ArchiveStore, catalog: ArchiveCatalog) -> Iterator[SegmentIndex]:
    """Every segment, a page at a time. Raises Corrupt."""
    for page in catalog.pages:
        yield from filter(catalog.keeps, _segments_of(store, page))
    yield from catalog.segments


def segments_of_shard(
    store: ArchiveStore, catalog: ArchiveCatalog, shard: int
) -> Iterator[SegmentIndex]:
    """Those of one shard in their order; a page is read when it is reached. Raises Corrupt."""
    firsts = {first: page for page in catalog.pages for of, first, _ in page.fids if of == shard}
    for _, page in sorted(firsts.items(), key=lambda each: each[0]):
        for each in _segments_of(store, page):
            if each.shard == shard and catalog.keeps(each):
                yield each
    yield from (each for each in catalog.segments if each.shard == shard)


def segments_in(
    store: ArchiveStore, catalog: ArchiveCatalog, after: Tso = NO_TS, upto: Tso = MAX_TS
) -> list[SegmentIndex]:
    """Those that may have a commit in (after, upto]; no other page is read. Raises Corrupt."""
    pages = [each for each in catalog.pages if each.max_ts > after and each.min_ts <= upto]
    found = [each for page in pages for each in _segments_of(store, page) if catalog.keeps(each)]
    found += catalog.segments
    return [
        each for each in found if each.transactions and each.max_ts > after and each.min_ts <= upto
    ]


@lru_cache(PAGES_CACHED_MAX)
def _segments_of(store: ArchiveStore, page: CatalogPage) -> tuple[SegmentIndex, ...]:
    """What a page says; it never changes."""
    where = f"{store.url}/{page.name}"
    try:
        content = store.read(page.name)
        if extend(0, content) != page.crc32c:
            raise ValueError("its checksum is not the one in the catalog")
        return msgspec.json.decode(content, type=tuple[SegmentIndex, ...])
    except (ValueError, FileNotFoundError) as error:
        is_gone = isinstance(error, FileNotFoundError)
        why = removed(store, page.fids[0][0], page.fids[0][2]) if is_gone else None
        raise why or Corrupt(f"{where}: {error}; `binlogd archive --check` tells more") from error


def history_of(store: ArchiveStore, known: tuple[int, ...]) -> bytes:
    """The DDL history, which has one of these checksums, or is newer. Raises Corrupt."""
    content = store.read(HISTORY_NAME)
    found = extend(0, content)
    if known and found not in known and found not in read_catalog(store).history_crc32c:
        raise Corrupt(f"{store.url}/{HISTORY_NAME}: its checksum is not the one in the catalog")
    return content


# --- writing -----------------------------------------------------------------------------------


def put_catalog(store: ArchiveStore, catalog: ArchiveCatalog, page_segments: int) -> ArchiveCatalog:
    """Writes it, and before it the pages that are full; what was written."""
    while page := _full(catalog.segments, page_segments):
        catalog = _with_page(store, catalog, page)
    form = PAGED_FORMAT if catalog.pages else CATALOG_FORMAT
    catalog = msgspec.structs.replace(catalog, format=form)
    document = msgspec.json.format(msgspec.json.encode(catalog), indent=1)
    store.put(CATALOG_NAME, checksummed_json(document))
    return catalog


def _with_page(
    store: ArchiveStore, catalog: ArchiveCatalog, segments: list[SegmentIndex]
) -> ArchiveCatalog:
    content = msgspec.json.encode(segments)
    crc32c, committed = extend(0, content), [each for each in segments if each.transactions]
    number = 1 + max((int(each.name[6:12]) for each in catalog.pages), default=-1)
    fids: dict[int, list[int]] = {}
    for each in segments:
        fids.setdefault(each.shard, []).append(each.fid)
    page = CatalogPage(
        name=f"pages/{number:06d}-{crc32c:08x}.json",  # another content, another name
        crc32c=crc32c,
        segments=len(segments),
        min_ts=min((each.min_ts for each in committed), default=0),
        max_ts=max((each.max_ts for each in committed), default=0),
        fids=tuple((shard, min(of), max(of)) for shard, of in sorted(fids.items())),
    )
    store.put(page.name, content)
    paged = {(each.shard, each.fid) for each in segments}
    left = tuple(each for each in catalog.segments if (each.shard, each.fid) not in paged)
    return msgspec.structs.replace(catalog, segments=left, pages=(*catalog.pages, page))


def _full(segments: tuple[SegmentIndex, ...], page_segments: int) -> list[SegmentIndex]:
    """The oldest segments that nothing is added to, of each shard the first ones; [] while there is
    no page of them. The newest of a shard stays: the next upload begins with it."""
    shards: dict[int, list[SegmentIndex]] = {}
    for each in sorted(segments, key=by_shard):
        shards.setdefault(each.shard, []).append(each)
    whole: list[SegmentIndex] = []
    for of in shards.values():
        growing = next((at for at, each in enumerate(of) if not each.is_sealed), len(of))
        whole += of[: min(growing, len(of) - 1)]
    if len(whole) < page_segments:
        return []
    whole.sort(key=lambda each: (each.seen_ts, each.shard, each.fid))  # which grows in a shard
    return whole[:page_segments]
