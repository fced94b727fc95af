"""An S3 in a process of its own: some clients hold Python's lock while they wait for an answer."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow.fs as fs

from tests.support.tried import library

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_NUMBERS = itertools.count()


class S3:
    """Buckets at a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, path: str) -> str:
        """A prefix in a bucket of its own, with all that reaches it."""
        library("moto")
        options = f"endpoint_override=127.0.0.1:{self.port}&scheme=http&region=us-east-1"
        url = f"s3://testing:testing@bucket-{next(_NUMBERS)}/{path}?{options}"
        system, root = fs.FileSystem.from_uri(url + "&allow_bucket_creation=true")
        system.create_dir(root.split("/")[0])
        return url

    def objects(self, url: str) -> dict[str, bytes]:
        """What is there."""
        system, root = fs.FileSystem.from_uri(url)
        selector = fs.FileSelector(root, recursive=True, allow_not_found=True)
        return {
            info.path.removeprefix(root + "/"): system.open_input_stream(info.path).read()
            for info in system.get_file_info(selector)
            if info.type == fs.FileType.File
        }


@contextmanager
def s3_server() -> Iterator[S3]:
    """Runs as long as the context."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield S3(int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(timeout=120)
        process.stdout.close()
