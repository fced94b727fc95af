"""What a Disk says that it made durable it has synced, names as well as bytes, and in that order.

A file system in memory shows nothing of this: what was synced is read off the system calls of a
real process.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import strace

_PROGRAM = """
import asyncio, sys
from pathlib import Path
from binlogd.host.disk import PosixDisk

async def main(home):
    disk = PosixDisk(threads=1)
    await disk.make_directory(home / "made")
    appended = await disk.open_append(home / "log", create=True)
    await appended.append([b"bytes"], sync=True)
    await disk.truncate(home / "log", 1)
    await disk.write_whole(home / "small", b"content")
    await disk.rename(home / "small", home / "renamed")
    await disk.copy(home / "renamed", home / "copied")
    await disk.remove([home / "copied"])
    await appended.close()
    disk.close()

asyncio.run(main(Path(sys.argv[1])))
"""
_CALLS = "mkdir,openat,write,ftruncate,fsync,fdatasync,rename,unlink"
_CALL = re.compile(r"(\w+)\(")


def _calls(trace: str, home: Path) -> list[str]:
    """Those about files below `home`: the call, and the names in it."""
    found = []
    for line in trace.splitlines():
        names = re.findall(rf'[<"]{re.escape(str(home))}/?([^>"]*)[>"]', line)
        call = _CALL.search(line)
        if names and call and (call[1] != "openat" or "O_CREAT" in line):
            name = " ".join(each or "." for each in dict.fromkeys(names))
            found.append(f"{call[1]} {name}")
    return found


def test_what_is_said_to_be_durable_was_synced_before(tmp_path: Path) -> None:
    strace.skip_without()
    home, trace = tmp_path.resolve() / "home", tmp_path / "trace"
    home.mkdir()
    under = [*strace.UNDER, "-y", "-s", "0", "--signal=none", "-o", str(trace)]
    program = [sys.executable, "-c", _PROGRAM, str(home)]
    subprocess.run([*under, "-e", f"trace={_CALLS}", *program], check=True)
    assert _calls(trace.read_text(), home) == [
        *("mkdir made", "fsync ."),
        *("openat log", "fsync ."),
        *("write log", "fdatasync log"),
        *("ftruncate log", "fsync log"),
        *("openat small.new", "write small.new", "fsync small.new"),
        *("rename small.new small", "fsync ."),
        *("rename small renamed", "fsync ."),
        *("openat copied", "write copied", "fsync copied", "fsync ."),
        *("unlink copied", "fsync ."),
    ]
