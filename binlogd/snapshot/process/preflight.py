"""What an export needs of its machine and of the log, looked for before anything starts; what is
missing is named.

Everything here takes milliseconds and imports neither PySpark nor pyarrow, but two: `warm_up` makes
the archive of Spark's loaded classes, which saves most of each start of the JVM, and `know_launch`
asks once what Spark's launcher starts a JVM with. Java writes the archive when a JVM ends (AppCDS);
later ones map it instead of reading, checking and linking ten thousand classes. It fits one build
of Java and one PySpark; Java ignores one that does not fit, which costs time, never an export.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import structlog

from binlogd.errors import ConfigError, MalformedBinlog, Refused, Unavailable
from binlogd.extras import require
from binlogd.host.child import answered
from binlogd.host.disk import put_in_place
from binlogd.log.drive import segment_batches
from binlogd.settings.quantities import wall_clock
from binlogd.snapshot.process.launcher import JOB_LOG, ExportFailed, running
from binlogd.snapshot.spec import PinnedSegment, SessionSpec, before_the_log
from binlogd.tso import MAX_TS, Tso, compose, plus_ms
from binlogd.wire.peek import peek

JAVA_MIN = 17
MEMORY_MB_MIN = 512
"""Spark refuses a heap much below."""
WORKERS_MB = 512
"""What Python workers and the JVM take beside the heap. Source: measured, docs/PERFORMANCE.md."""
SPILL_PART = 2
"""Row changes lie in the shuffle compressed: about so much less than in the log."""
FAR_MS = 3_600_000
"""An hour: longer than a clock is wrong, or a transaction of before a log began is open."""
_FOR_SCRIPTS = re.compile(r"SPARK_(?!HOME$|LOCAL_IP$)|PYSPARK_SUBMIT_ARGS$|(HADOOP|YARN)_CONF_DIR$")
"""Environment variables that Spark's scripts and launcher look at, and nobody after them."""
_MODULES = ("pyspark", "pyarrow", "pandas")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_BYTES_MAX, _ANSWER_S_MAX = 1 << 16, 60.0
_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")


@dataclass(frozen=True, slots=True)
class Machine:
    """The Java and the PySpark that a job would use. `java_said` identifies its build."""

    java: str
    java_said: str
    pyspark: str
    pyspark_version: str

    @property
    def spark_home(self) -> str:
        """Where Spark lies."""
        return str(Path(self.pyspark).resolve().parent)

    def class_archive(self) -> Path:
        """The archive of loaded classes for just these two, whether it is there or not, below
        `$XDG_CACHE_HOME` or `~/.cache`: it can be made again at any time."""
        identity = "\n".join((self.java_said, self.pyspark, self.pyspark_version))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(home, "binlogd", f"spark-{self.pyspark_version}-{digest}.jsa")

    def launch_file(self) -> Path:
        """Beside the archive: what Spark's launcher starts a JVM with, as JSON."""
        return self.class_archive().with_suffix(".json")

    def launch(self) -> tuple[str, ...]:
        """How a job may start its JVM by itself; () where Spark's scripts are to do it: the
        launcher was not asked, or settings are there that only they read."""
        if Path(self.spark_home, "conf").exists() or any(map(_FOR_SCRIPTS.match, os.environ)):
            return ()
        options = self.noted_options()
        return (self.java, *options) if options else ()

    def noted_options(self) -> tuple[str, ...] | None:
        """What the launcher said; None where it was not asked, or nobody here can read it."""
        try:
            return msgspec.json.decode(self.launch_file().read_bytes(), type=tuple[str, ...])
        except (OSError, ValueError):
            return None

    def session(self, scratch: Path, *, cores: int, memory_mb: int) -> SessionSpec:
        """One on it, with the class archive, if there is one."""
        archive = self.class_archive()
        return SessionSpec(
            scratch=str(scratch.absolute()),
            cores=cores,
            memory_mb=memory_mb,
            class_archive=str(archive) if os.access(archive, os.R_OK) else "",
            launch=self.launch(),
        )


async def machine() -> Machine:
    """What a job would run on. Raises ConfigError."""
    require("spark", *_MODULES)
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        reason = f"the user {os.getuid()} has no name here, without which Spark does not start"
        remedy = "run binlogd as one who has (in its image 8250), or give a name in /etc/passwd"
        raise ConfigError(reason, todo=remedy) from None
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    java = _java()
    return Machine(java, await _said_by(java), found.origin, importlib.metadata.version("pyspark"))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "none is on the PATH"
        raise ConfigError(
            f"no Java found ({where}): install a JRE 17 or 21 (`apt-get install"
            " default-jre-headless`) and put `java` on the PATH, or set JAVA_HOME"
        )
    return java


async def _said_by(java: str) -> str:
    """What `java -version` says. Raises ConfigError where that is too old, or nothing."""
    try:
        said = await _asked("sh", "-c", 'exec "$0" -version 2>&1', java)
    except Unavailable as error:
        raise ConfigError(f"{java} does not tell its version: {error}") from error
    text = said.decode(errors="replace")
    version = _VERSION.search(text)
    if version is None or int(version[1]) < JAVA_MIN:
        first = text.partition("\n")[0].strip()
        raise ConfigError(
            f"{java} is too old for Spark ({first}): {JAVA_MIN} or newer is needed; install one"
            " and set JAVA_HOME to it"
        )
    return text


async def _asked(*command: str) -> bytes:
    return await answered(command, b"", timeout_s=_ANSWER_S_MAX, answer_bytes_max=_ANSWER_BYTES_MAX)


def check_memory(memory_mb: int) -> None:
    """Refuses, by ConfigError, a heap that this machine or container has no room for."""
    if memory_mb < MEMORY_MB_MIN:
        raise ConfigError(f"{memory_mb} MB of heap are too few for Spark: {MEMORY_MB_MIN} or more")
    needed = memory_mb + WORKERS_MB
    available = min(_available_mb(), _limit_mb())
    if available < needed:
        raise ConfigError(
            f"Spark needs {needed} MB of memory, {available} MB are available: stop something,"
            " or give it less (`binlogd pipeline --memory-mb`, export.memory of a service), which"
            " spills to disk and is slower"
        )


def _available_mb() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) >> 10
    return 1 << 40


def _limit_mb() -> int:
    with suppress(OSError):
        if (limit := _MEMORY_LIMIT.read_text().strip()).isdigit():
            return int(limit) >> 20
    return 1 << 40


def check_disk(out: Path, log_bytes: int) -> None:
    """Refuses, by ConfigError, a disk that could not even hold the row changes on their way."""
    free, needed = shutil.disk_usage(out).free, log_bytes // SPILL_PART
    if free < needed:
        raise ConfigError(
            f"{out} has {free >> 20} MiB free; {log_bytes >> 20} MiB of log need about"
            f" {needed >> 20} MiB for the rows on their way, and the snapshot comes on top: free"
            " some, or choose another --out"
        )


def check_moment(
    as_of: Tso, segments: Sequence[PinnedSegment], *, now_ms: int, has_base: bool
) -> None:
    """A moment far outside the log is refused before a JVM starts; the job itself draws the exact
    line, out of all heads. What is looked at here is cheap: the clock, and the first record of each
    shard's log. Raises Refused."""
    if as_of > compose(now_ms + FAR_MS):
        raise Refused(
            f"{as_of} ({wall_clock(as_of)}) lies in the future; name a moment that has passed, or"
            " `latest`"
        )
    begins = Tso(min(_first_ts(segments), default=MAX_TS))
    if not has_base and begins < MAX_TS and as_of < plus_ms(begins, -FAR_MS):
        raise before_the_log(as_of, begins)


def _first_ts(segments: Sequence[PinnedSegment]) -> Iterator[Tso]:
    """The start_ts of the first binlog of each shard; what cannot be read is the job's to say."""
    first: dict[int, PinnedSegment] = {}
    for each in segments:
        if each.shard not in first or each.fid < first[each.shard].fid:
            first[each.shard] = each
    for segment in first.values():
        for batch in segment_batches(Path(segment.path), is_last=True):
            try:
                yield Tso(peek(batch[0][1]).start_ts)
            except MalformedBinlog:
                return
            break


DUMP_GRACE_S = 300.0
"""Writing the archive takes seconds; on a busy machine, and at low priority, many."""
MEMORY_MB = 1024
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
    if path.exists() and found.noted_options() is not None and not anew:
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


async def know_launch(found: Machine) -> None:
    """Has `Machine.launch` know its answer: who is the first asks Spark's launcher, as its scripts
    would each time. Where the answer cannot be kept, the scripts go on."""
    try:
        if found.noted_options() is None:
            found.launch_file().parent.mkdir(parents=True, exist_ok=True)
            await note_launch(found)
    except OSError as error:
        log.debug("spark_launcher_not_noted", reason=str(error), hint="its scripts are used")


async def note_launch(found: Machine) -> None:
    """Asks Spark's own launcher with which class path and options it would start a JVM, and writes
    that down for `Machine.launch`; nothing where its answer is not understood. Raises OSError."""
    options, file = await _launch(found), found.launch_file()
    made = file.with_suffix(f".{os.getpid()}")  # others may read it meanwhile
    made.write_bytes(msgspec.json.encode(options))
    put_in_place(made, file)


async def _launch(found: Machine) -> tuple[str, ...]:
    home = found.spark_home
    command = (
        *("env", "-i", f"SPARK_HOME={home}", "SPARK_SCALA_VERSION=any"),
        *(found.java, "-cp", f"{home}/jars/*", _LAUNCHER, _SUBMIT, "pyspark-shell"),
    )
    try:
        words = (await _asked(*command)).decode().split("\0")
        options = words[words.index("-cp") : words.index(_SUBMIT)]
    except (Unavailable, ValueError) as error:
        log.warning("spark_launcher_not_understood", reason=str(error), hint="its scripts are used")
        return ()
    return tuple(each for each in options if not each.startswith("-Xmx"))


async def _made_in(directory: Path, found: Machine) -> Path:
    made, scratch = directory / "classes.jsa", directory / "scratch"
    scratch.mkdir()
    session = found.session(scratch, cores=os.cpu_count() or 1, memory_mb=MEMORY_MB)
    session = msgspec.structs.replace(session, class_archive="", archive_to=str(made))
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
