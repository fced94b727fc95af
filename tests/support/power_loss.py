"""What a disk may hold after the power failed: states that POSIX allows, made of a recording.

The model. A call that has returned from fsync or fdatasync has made durable, of its file, what was
written before it began; of its directory, the names that were changed before it began. Of
everything else:

* A file has the bytes of its last sync, and of each sector of 512 bytes that was written since
  either the former content or that of any later write, one sector independently of another. It is
  as long as after any one of the later writes; what was never written in between reads as zeros.
* A file that was cut or reserved since has a prefix of what was done since, whole up to a sector.
* Names that were changed since are changed or not; those of one name in their order. A rename is
  one change. Where `is_ordered`, as file systems with a journal have it, no later change is there
  without all earlier ones of all directories.
* A name may be durable before the bytes of its file, and a file without its name is gone.

Beyond that nothing is asked of a file system: fsync of a file does not make its name durable.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.support.traced_files import Change, Naming, Node, Recording

SECTOR_BYTES = 512
SHARES = (0.0, 0.02, 0.2, 0.5, 0.8, 0.98, 1.0)


@dataclass(frozen=True, slots=True)
class Crash:
    """One state. `said` is what the processes had told on their standard outputs by then."""

    moment: int
    seed: int
    said: bytes

    def __str__(self) -> str:
        return f"power lost at moment {self.moment}, state {self.seed}"


class PowerLoss:
    """The states of one recording, which is over."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._durable: dict[tuple[int, int], bytes] = {}
        moments = {moment for moment, _ in recording.said}
        for node in recording.nodes:
            moments.update(change.begin for change in node.changes)
            moments.update(change.end for change in node.changes)
            moments.update(each for sync in node.syncs for each in sync)
        for naming in recording.namings:
            moments.update((naming.begin, naming.end))
        self.moments = sorted(each for each in moments if 0 <= each < recording.moments)
        """All at which something changes."""

    def crashed(self, into: Path, *, moment: int, seed: int) -> Crash:
        """Makes the directory as it may be when the power fails right behind a moment."""
        rng = Random(seed)
        names = self._names(moment, rng)
        self._write(into, self._recording.top, names, moment, rng)
        return Crash(moment, seed, self.said_before(moment))

    def said_before(self, moment: int) -> bytes:
        """What the process had told up to a moment."""
        return b"".join(text for at, text in self._recording.said if at <= moment)

    # --- names -------------------------------------------------------------------------------

    def _names(self, moment: int, rng: Random) -> dict[Node, dict[str, Node]]:
        is_ordered, share = rng.random() < 0.5, rng.choice(SHARES)
        namings = [each for each in self._recording.namings if each.begin <= moment]
        durable = [each.is_durable(moment) for each in namings]
        if is_ordered:
            last = max((at for at, each in enumerate(durable) if each), default=-1)
            until = rng.randrange(last + 1, len(namings) + 1)
            kept = namings[:until]
        else:
            kept = _some(namings, durable, share, rng)
        found: dict[Node, dict[str, Node]] = {}
        for naming in kept:
            for directory, name, node in naming.names:
                if node is None:
                    found.get(directory, {}).pop(name, None)
                else:
                    found.setdefault(directory, {})[name] = node
        return found

    def _write(
        self,
        path: Path,
        directory: Node,
        names: dict[Node, dict[str, Node]],
        moment: int,
        rng: Random,
    ) -> None:
        path.mkdir()
        for name, node in names.get(directory, {}).items():
            if node.is_directory:
                self._write(path / name, node, names, moment, rng)
            elif node.target is not None:
                (path / name).symlink_to(node.target.decode())
            else:
                (path / name).write_bytes(self._content(node, moment, rng))

    # --- bytes -------------------------------------------------------------------------------

    def _content(self, node: Node, moment: int, rng: Random) -> bytes:
        begun = [each for each in node.changes if each.begin <= moment]
        durable = [each for each in begun if node.is_durable(each.end, moment)]
        pending = [each for each in begun if not node.is_durable(each.end, moment)]
        content = bytearray(self._synced(node, durable))
        if any(each.content is None for each in pending):
            for change in pending[: rng.randrange(len(pending) + 1)]:
                change.apply(content)
            return bytes(content)
        match rng.randrange(4):
            case 0:
                pending = []
            case 1:
                pass
            case 2:
                _prefix(content, pending, rng)
                return bytes(content)
            case 3:
                _sectors(content, pending, rng)
                return bytes(content)
        for change in pending:
            change.apply(content)
        return bytes(content)

    def _synced(self, node: Node, durable: list[Change]) -> bytes:
        key = id(node), len(durable)
        if key not in self._durable:
            content = bytearray()
            for change in durable:
                change.apply(content)
            self._durable[key] = bytes(content)
        return self._durable[key]


def _some(namings: list[Naming], durable: list[bool], share: float, rng: Random) -> list[Naming]:
    """Those that are durable and some others; of one name, none without the ones before it."""
    kept: list[Naming] = []
    missing: set[tuple[Node, str]] = set()
    for naming, is_durable in zip(namings, durable, strict=True):
        places = {(directory, name) for directory, name, _ in naming.names}
        if is_durable or (not places & missing and rng.random() < share):
            kept.append(naming)
        else:
            missing |= places
    return kept


def _prefix(content: bytearray, pending: list[Change], rng: Random) -> None:
    """Some of the first changes whole, and one up to a sector."""
    whole = rng.randrange(len(pending) + 1)
    for change in pending[:whole]:
        change.apply(content)
    for change in pending[whole : whole + 1]:
        assert change.content is not None
        end = change.offset + rng.randrange(len(change.content) + 1)
        cut = max(0, end - end % SECTOR_BYTES - change.offset)
        change._replace(content=change.content[:cut]).apply(content)


def _sectors(content: bytearray, pending: list[Change], rng: Random) -> None:
    """Each sector as one of the changes left it, or as it was before all of them."""
    share, size = rng.choice(SHARES), len(content)
    ends = [size]
    upto: dict[int, int] = {}
    touched: dict[int, list[int]] = {}
    for number, change in enumerate(pending):
        assert change.content is not None
        end = change.offset + len(change.content)
        ends.append(max(ends[-1], end))
        for sector in range(change.offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            touched.setdefault(sector, []).append(number)
    for sector, numbers in touched.items():
        is_newest, is_any = rng.random() < share, rng.random() < 0.3
        upto[sector] = numbers[-1] if is_newest else rng.choice([-1, *numbers]) if is_any else -1
    for number, change in enumerate(pending):
        assert change.content is not None
        end = change.offset + len(change.content)
        for sector in range(change.offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)):
            if upto[sector] >= number:
                begin = max(change.offset, sector * SECTOR_BYTES)
                stop = min(end, (sector + 1) * SECTOR_BYTES)
                part = change.content[begin - change.offset : stop - change.offset]
                Change(0, 0, begin, part).apply(content)
    length = rng.choice(ends)
    Change(0, 0, length, None).apply(content)
