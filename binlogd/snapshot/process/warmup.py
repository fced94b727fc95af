"""The archive of Spark's loaded classes: made once, it saves most of each start of the JVM.

Beside it stands what Spark's launcher starts the JVM with, so that jobs need not ask it again.

Java writes it when a JVM ends (AppCDS); later ones map it instead of reading, checking and linking
ten thousand classes. It fits one build of Java and one PySpark. Java itself ignores one that does
not fit, with a warning, so a stale one costs time, never an export.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from binlogd.errors import ConfigError, Unavailable
from binlogd.host.child import answered
from binlogd.host.disk import put_in_place
from binlogd.snapshot.process.launcher import JOB_LOG, ExportFailed, running
from binlogd.snapshot.process.preflight import Machine, check_memory, machine
from binlogd.snapshot.spec import SessionSpec

DUMP_GRACE_S = 300.0
"""Writing the archive takes seconds; on a busy machine, and at low priority, many."""
LAUNCHER_TIMEOUT_S = 60.0
MEMORY_MB = 1024
_COMMAND_BYTES_MAX = 1 << 16
_LAUNCHER = "org.apache.spark.launcher.Main"
_SUBMIT = "org.apache.spark.deploy.SparkSubmit"

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that is there; `is_new` if this call made it."""

    path: Path
    size_bytes: int
    is_new: bool
    java: str
    pyspark: str


async def warm_up(*, anew: bool = False) -> Archive:
    """Makes the archive for this machine's Java and PySpark, unless it is there already.

    Raises ConfigError (no Java, no PySpark, nowhere to write), ExportFailed.
    """
    found = await machine()
    path = found.class_archive()
    if path.exists() and found.launch_file().exists() and not anew:
        return _archive(path, found, is_new=False)
    check_memory(MEMORY_MB)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".warmup-", dir=path.parent) as name:
            await note_launch(found)
            made = await _made_in(Path(name), found)
            put_in_place(made, path)  # Java dies of an archive that is cut
    except OSError as error:
        raise ConfigError(
            f"{path.parent}: the class archive cannot be written there: {error.strerror}; set"
            " XDG_CACHE_HOME to a directory where it can"
        ) from error
    archive = _archive(path, found, is_new=True)
    log.info("class_archive_made", path=str(path), size_bytes=archive.size_bytes)
    return archive


async def note_launch(found: Machine) -> None:
    """Asks Spark's own launcher with which class path and options it would start a JVM, and writes
    that down for `Machine.launch`; nothing where its answer is not understood. Raises OSError."""
    found.launch_file().write_bytes(msgspec.json.encode(await _launch(found)))


async def _launch(found: Machine) -> tuple[str, ...]:
    home = found.spark_home
    command = (
        *("env", "-i", f"SPARK_HOME={home}", "SPARK_SCALA_VERSION=any"),
        *(found.java, "-cp", f"{home}/jars/*", _LAUNCHER, _SUBMIT, "pyspark-shell"),
    )
    try:
        said = await answered(
            command, b"", timeout_s=LAUNCHER_TIMEOUT_S, answer_bytes_max=_COMMAND_BYTES_MAX
        )
        words = said.decode().split("\0")
        options = words[words.index("-cp") : words.index(_SUBMIT)]
    except (Unavailable, ValueError) as error:
        log.warning("spark_launcher_not_understood", reason=str(error), hint="its scripts are used")
        return ()
    return tuple(each for each in options if not each.startswith("-Xmx"))


async def _made_in(directory: Path, found: Machine) -> Path:
    made, scratch = directory / "classes.jsa", directory / "scratch"
    scratch.mkdir()
    session = SessionSpec(
        scratch=str(scratch),
        cores=os.cpu_count() or 1,
        memory_mb=MEMORY_MB,
        archive_to=str(made),
        launch=found.launch(),
        spark_home=found.spark_home,
    )
    async with running(session, directory / JOB_LOG) as job:
        await job.finish(DUMP_GRACE_S)
        if not made.exists():
            raise ExportFailed(
                "this Java wrote no class archive; exports work without it, each start takes longer"
            )
    return made


def _archive(path: Path, found: Machine, *, is_new: bool) -> Archive:
    first = found.java_said.partition("\n")[0].strip()
    return Archive(path, path.stat().st_size, is_new, first, found.pyspark_version)
