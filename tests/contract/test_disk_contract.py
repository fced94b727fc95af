"""What `ports.Disk` promises, on the real disk and on the simulated one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlogd.errors import ConfigError
from binlogd.host.disk import PosixDisk
from binlogd.ports import Disk
from tests.sim.disk import SimDisk


@pytest.fixture(params=["posix", "simulated"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    if request.param == "simulated":
        yield SimDisk(random.Random(1))
        return
    posix = PosixDisk(threads=2)
    yield posix
    posix.close()


@pytest.fixture
async def home(disk: Disk, tmp_path: Path) -> Path:
    directory = tmp_path / "a" / "b"
    await disk.make_directory(directory)
    await disk.make_directory(directory)
    return directory


async def test_appends_stand_behind_each_other(disk: Disk, home: Path) -> None:
    file = await disk.open_append(home / "x", create=True)
    assert file.size == 0
    await file.append([b"one", b"", b"two"], sync=True)
    await file.append([b"three"], sync=False)
    assert file.size == 11
    await file.close()
    assert await disk.read(home / "x", [(0, 100)]) == [b"onetwothree"]


async def test_a_reopened_file_goes_on_at_its_end(disk: Disk, home: Path) -> None:
    for word in (b"one", b"two"):
        file = await disk.open_append(home / "x", create=word == b"one")
        await file.append([word], sync=True)
        await file.close()
    assert await disk.sizes(home) == {"x": 6}


async def test_creating_what_is_there_is_an_error(disk: Disk, home: Path) -> None:
    await (await disk.open_append(home / "x", create=True)).close()
    with pytest.raises(FileExistsError):
        await disk.open_append(home / "x", create=True)


async def test_opening_what_is_not_there_is_an_error(disk: Disk, home: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await disk.open_append(home / "x", create=False)
    with pytest.raises(FileNotFoundError):
        await disk.read(home / "x", [(0, 1)])
    with pytest.raises(FileNotFoundError):
        await disk.sizes(home / "nowhere")


async def test_a_closed_file_takes_nothing(disk: Disk, home: Path) -> None:
    file = await disk.open_append(home / "x", create=True)
    await file.close()
    await file.close()
    with pytest.raises(OSError, match="closed"):
        await file.append([b"late"], sync=True)


@pytest.mark.parametrize("parts", [[], [b"more"]])
async def test_a_file_that_is_not_found_whole_by_its_name_takes_nothing(
    parts: list[bytes], disk: Disk, home: Path
) -> None:
    """The system goes on writing to it, and nobody would read that."""

    async def moved(path: Path) -> None:
        await disk.rename(path, home / "elsewhere")

    async def replaced(path: Path) -> None:
        await disk.write_whole(path, b"0123456789 and more than there was before")

    async def cut(path: Path) -> None:
        await disk.truncate(path, 4)

    async def removed(path: Path) -> None:
        await disk.remove([path])

    for each in (moved, replaced, cut, removed):
        path = home / each.__name__
        file = await disk.open_append(path, create=True)
        await file.append([b"0123456789"], sync=True)
        await each(path)
        with pytest.raises(OSError, match=r"No such file|under this process"):
            await file.append(parts, sync=True)
        assert file.size == 10
        await file.close()


async def test_who_renames_a_file_goes_on_in_it(disk: Disk, home: Path) -> None:
    file = await disk.open_append(home / "x", create=True)
    await file.append([b"0123"], sync=True)
    await disk.rename(home / "x", home / "y")
    file.path = home / "y"
    await file.append([b"45"], sync=True)
    assert await disk.read(home / "y", [(0, 100)]) == [b"012345"]


async def test_ranges_are_read_in_any_order_and_end_with_the_file(disk: Disk, home: Path) -> None:
    content = bytes(range(256)) * 1000
    await disk.write_whole(home / "x", content)
    ranges = [(200_000, 300), (5, 3), (0, 10), (5, 3), (255_990, 50), (300_000, 4), (100_000, 1)]
    expected = [content[offset : offset + length] for offset, length in ranges]
    assert await disk.read(home / "x", ranges) == expected
    assert await disk.read(home / "x", []) == []


async def test_a_truncated_file_is_cut(disk: Disk, home: Path) -> None:
    await disk.write_whole(home / "x", b"0123456789")
    await disk.truncate(home / "x", 4)
    assert await disk.read(home / "x", [(0, 100)]) == [b"0123"]
    with pytest.raises(OSError, match="has 4 bytes, not 5"):
        await disk.truncate(home / "x", 5)
    assert await disk.sizes(home) == {"x": 4}


async def test_the_checksum_is_that_of_the_first_bytes(disk: Disk, home: Path) -> None:
    await disk.write_whole(home / "x", b"123456789 and more")
    assert await disk.checksum(home / "x", 9) == 0xE3069283
    with pytest.raises(OSError, match=r"short|missing"):
        await disk.checksum(home / "x", 100)


async def test_removing_passes_over_what_is_gone(disk: Disk, home: Path) -> None:
    await disk.write_whole(home / "x", b"1")
    await disk.write_whole(home / "y", b"2")
    await disk.remove([home / "x", home / "z"])
    await disk.remove([])
    assert await disk.sizes(home) == {"y": 1}


async def test_a_small_file_is_replaced_whole(disk: Disk, home: Path) -> None:
    await disk.write_whole(home / "x", b"a longer text")
    await disk.write_whole(home / "x", b"short")
    assert await disk.read(home / "x", [(0, 100)]) == [b"short"]
    assert await disk.sizes(home) == {"x": 5}


async def test_a_lock_has_one_holder_who_is_named(disk: Disk, home: Path) -> None:
    lock = await disk.lock(home / ".lock")
    with pytest.raises(ConfigError, match=r"is in use by process \d+"):
        await disk.lock(home / ".lock")
    await lock.release()
    await (await disk.lock(home / ".lock")).release()


async def test_directories_sync_and_space_is_counted(disk: Disk, home: Path) -> None:
    await disk.sync_directory(home)
    space = await disk.space(home)
    assert space.capacity_bytes >= space.free_bytes > 0
    assert disk.boot_id() == disk.boot_id() != ""


async def test_an_open_file_is_read_after_its_name_has_gone(disk: Disk, home: Path) -> None:
    file = await disk.open_append(home / "x", create=True)
    await file.append([b"0123456789"], sync=True)
    await file.close()
    opened = await disk.open_read(home / "x")
    await disk.remove([home / "x"])
    assert (opened.read(2, 3), opened.read(8, 5), opened.read(20, 5)) == (b"234", b"89", b"")
    with pytest.raises(FileNotFoundError):
        await disk.open_read(home / "x")
