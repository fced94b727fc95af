"""A pipeline in a Spark of this machine, or as the program that spark-submit runs.

    binlogd pipeline --package job/
    spark-submit --py-files job/binlogd.zip job/pipeline.py --source s3://… --into delta:/lake …
    spark-submit --py-files job/binlogd.zip job/export.py --archive s3://… --out s3://…

The same words mean the same in both. What needs PySpark is imported when it is known to be there.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog

from binlogd.errors import ConfigError
from binlogd.extras import require
from binlogd.host.privacy import environment_of_children
from binlogd.settings.setup import Setup
from binlogd.snapshot.publishing.file_systems import without_secrets
from binlogd.spark.lake.place import LIBRARIES, place_of
from binlogd.telemetry.logs import Lines, set_up_logging

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from binlogd.snapshot.spec import SessionSpec

_ROOT = Path(__file__).parents[2]
_PROGRAM = '''"""Run by spark-submit: see `binlogd {command} --help` for the words that follow."""

import sys

from binlogd.cli import submitted

submitted("{command}", sys.argv[1:])
'''
PROGRAMS = ("pipeline", "export")
"""The commands that spark-submit runs."""
SYNCER = "syncer"
POLL_S = 1
"""Between two looks at whether somebody asked to stop."""
ATTEMPTS_MAX = 5
"""Of a query whose Python did not start in time."""
_LINES_SHOWN = 3
_CHATTER = re.compile(r"^\t| WARN |^Setting |^Using |^To adjust |^WARNING: Using incubator")
"""Lines of Spark that every start has, and the steps of a stack."""

log = structlog.get_logger(__name__)
_OURS = re.compile(r"binlogd\.[\w.]+\.(\w+): (.+)")
_SAID_BY = {
    "path": "--source",
    "from": "--from",
    "tables": "--tables",
    "except": "--except",
    "maxtransactionspertrigger": "--batch",
    "form": "--into and --mode",
}
"""Options of the data source, in small letters, that the words of a pipeline say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a pipeline is told; `interval_s` None ends it with what is there."""

    source: str
    into: str
    checkpoint: str
    begin: str = ""
    interval_s: float | None = None
    batch: int = 100_000
    tables: str = ""
    excluded: str = ""
    options: Sequence[str] = ()
    takes_over: bool = False
    base: str = ""
    base_time_zone: str = ""
    mode: str = "upsert"
    metrics_addr: str = ""
    catalog: str = ""
    partition_by: Sequence[str] = ()
    cluster_by: Sequence[str] = ()

    @property
    def is_lake(self) -> bool:
        """Whether it goes into a lake; else into what [syncer] names."""
        return self.into != SYNCER

    def source_options(self) -> dict[str, str]:
        """For the data source. Raises ConfigError."""
        pairs = dict(each.partition("=")[::2] for each in self.options)
        if any(not value for value in pairs.values()):
            raise ConfigError("binlogd pipeline: --option takes NAME=VALUE")
        for name in pairs:
            if name.lower() in _SAID_BY:
                raise ConfigError(f"--option {name}: say it by {_SAID_BY[name.lower()]}")
        own = {
            "path": self.source,
            "from": self.begin,
            "tables": self.tables,
            "except": self.excluded,
            "maxTransactionsPerTrigger": str(self.batch),
        }
        return {**pairs, **{name: value for name, value in own.items() if value}}


def run_here(arguments: Arguments, setup: Setup, *, cores: int, memory_mb: int) -> None:
    """A Spark on this machine, for this pipeline. What cannot be is said before it is started.
    Raises ConfigError, PipelineStopped."""
    _check_installed(arguments)
    set_up_logging(setup.config.log_level, Lines(sys.stderr))
    from binlogd.snapshot.process.preflight import check_memory, know_launch, machine

    found = asyncio.run(machine())
    check_memory(memory_mb)
    into = claimed(arguments, setup)
    roots = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    os.environ |= {"PYTHONPATH": roots, "PYSPARK_PYTHON": sys.executable}
    os.environ.pop("SPARK_HOME", None)
    for name in os.environ.keys() - environment_of_children(os.environ).keys():
        del os.environ[name]  # what it said is in `setup`
    asyncio.run(know_launch(found))
    with tempfile.TemporaryDirectory(prefix="binlogd-pipeline-") as scratch:
        spec = found.session(Path(scratch), cores=cores, memory_mb=memory_mb)
        with _spark(spec, is_heard=setup.config.log_level == "debug") as spark:
            run(spark, arguments, into)


@contextmanager
def _spark(spec: SessionSpec, *, is_heard: bool) -> Iterator[SparkSession]:
    """A Spark of this process. What its JVM writes is shown where it `is_heard`; otherwise the last
    of it is told when Spark fails. Raises PipelineStopped for what is Spark's own."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # ships no types
    from pyspark.errors import PySparkException

    from binlogd.snapshot.process.gateway import begun, connect
    from binlogd.snapshot.process.session import PIPELINE_SETTINGS, session
    from binlogd.spark.lake.manifest import PipelineStopped

    said: deque[str] = deque(maxlen=_LINES_SHOWN)
    try:
        with nullcontext() if is_heard else kept_aside(said):
            if jvm := begun(spec):
                connect(jvm, spec)
            spark = session(spec, PIPELINE_SETTINGS)
        with spark:
            yield spark
    except (PySparkException, Py4JError, ConnectionError, ChildProcessError) as error:
        first = str(error).partition("\n")[0]
        last_lines = " | ".join(said) or "nothing"
        raise PipelineStopped(
            f"Spark failed: {type(error).__name__}: {first}; its last lines: {last_lines}",
            todo="run it with --log-level debug to see all that Spark writes",
        ) from error


@contextmanager
def kept_aside(said: deque[str]) -> Iterator[None]:
    """What processes that begin inside write goes to `said`, also later; stacks are left out."""
    reading, writing = os.pipe()

    def listen() -> None:
        with os.fdopen(reading, errors="replace") as lines:
            said.extend(line.rstrip() for line in lines if not _CHATTER.search(line))

    threading.Thread(target=listen, name="spark-says", daemon=True).start()
    ours = {fd: os.dup(fd) for fd in (sys.stdout.fileno(), sys.stderr.fileno())}
    try:
        for fd in ours:
            os.dup2(writing, fd)
        yield
    finally:
        for fd, copy in ours.items():
            os.dup2(copy, fd)
            os.close(copy)
        os.close(writing)


def with_history(arguments: Arguments, setup: Setup) -> Arguments:
    """With the file that `upstream.schema-history` names, unless an option names another one."""
    file = setup.history_file
    if file is None or "schemahistory" in map(str.lower, arguments.source_options()):
        return arguments
    return replace(arguments, options=(*arguments.options, f"schemaHistory={file}"))


def run_submitted(arguments: Arguments, setup: Setup) -> None:
    """Under spark-submit, which has made the session what it is. Raises as `run_here`."""
    set_up_logging(setup.config.log_level, Lines(sys.stderr))
    _check_installed(arguments)
    from pyspark.sql import SparkSession

    from binlogd.snapshot.process.session import settle

    with SparkSession.builder.appName("binlogd-pipeline").getOrCreate() as spark:
        settle(spark)
        run(spark, arguments, claimed(arguments, setup))


def write_package(directory: Path) -> list[Path]:
    """What spark-submit needs of this installation. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    archive, programs = directory / "binlogd.zip", []
    for command in PROGRAMS:
        programs.append(directory / f"{command}.py")
        programs[-1].write_text(_PROGRAM.format(command=command))
    package = _ROOT / "binlogd"
    source = package / "spark" / "pyspark_binlogd"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(package.rglob("*")):
            if path.suffix in (".py", ".proto", ".typed") and source not in path.parents:
                file.write(path, path.relative_to(_ROOT))
        registering = importlib.util.find_spec("pyspark_binlogd")
        origin = Path(registering.origin) if registering and registering.origin else None
        file.write(origin or source / "__init__.py", "pyspark_binlogd/__init__.py")
    return [archive, *programs]


def run(spark: Any, arguments: Arguments, into: Any) -> None:
    """To its end, in a session that is there; `into` is `claimed`. Raises ConfigError, Refused,
    PipelineStopped."""
    from binlogd.spark.metrics import PipelineFigures, served
    from binlogd.spark.pipeline import DatabaseTarget, LakeTarget, PipelineOptions, seed
    from binlogd.spark.request import request

    if arguments.is_lake:
        check_speculation(spark.sparkContext.getConf())
    source = arguments.source_options()
    asked = request({**source, "form": "changes"})
    checkpoint, takes_over = _named(arguments.checkpoint), arguments.takes_over
    if arguments.is_lake:
        if arguments.base and not into.manifest().read().commit_ts:
            with tempfile.TemporaryDirectory(prefix="binlogd-base-") as scratch:
                seed(spark, into, _beginning(arguments, asked, Path(scratch), asked.wants))
        source = _behind(source, into.manifest().read().commit_ts)
        asked = request({**source, "form": "changes"})
        target: Any = LakeTarget(into, asked, checkpoint, takes_over)
    else:
        if arguments.base:
            with tempfile.TemporaryDirectory(prefix="binlogd-base-") as scratch:
                begin = _beginning(arguments, asked, Path(scratch), into.wants)
                into.begin(begin)
            source = _behind(source, begin.commit_ts)
        target = DatabaseTarget(into, checkpoint, takes_over)
    options = PipelineOptions(source, arguments.checkpoint, arguments.interval_s)
    figures = PipelineFigures(asked)
    with served(arguments.metrics_addr, figures) if arguments.metrics_addr else nullcontext():
        _run_to_end(spark, options, target, figures)


def check_speculation(conf: SparkConf | Mapping[str, str]) -> None:
    """Raises ConfigError where Spark would run one task twice at a time."""
    if conf.get("spark.speculation", "false").lower() == "true":
        raise ConfigError(
            "spark.speculation is on: two attempts of one MERGE undo each other's work, one commit"
            " after the other. Submit with --conf spark.speculation=false"
        )


def claimed(arguments: Arguments, setup: Setup) -> Any:
    """The lake, or the sink of a database: this pipeline's from now on. Raises ConfigError,
    PipelineStopped where it is another's."""
    from binlogd.spark.database import DatabaseSink
    from binlogd.spark.inputs import open_input
    from binlogd.spark.lake.layout import layouts_of
    from binlogd.spark.lake.manifest import Claim, mode_of
    from binlogd.spark.lake.moving import Lake, show
    from binlogd.spark.pipeline import Offsets
    from binlogd.spark.request import request

    asked = request({**arguments.source_options(), "form": "changes"})
    open_input(asked).jobs()  # a source without a schema history is named before anything begins
    checkpoint = _named(arguments.checkpoint)
    mine = Claim(Offsets(arguments.checkpoint, asked).pipeline(), checkpoint)
    if arguments.is_lake:
        place, mode = place_of(arguments.into), mode_of(arguments.mode)
        layouts = layouts_of(arguments.partition_by, arguments.cluster_by)
        lake = Lake(place, mode, arguments.catalog, layouts)
        now = lake.manifest().read()  # which refuses a lake of another kind
        lake.manifest().claim(mine, takes_over=arguments.takes_over)
        show(lake, now, checks_all=True)  # a run may have been killed before all had their names
        return lake
    sink = DatabaseSink(setup, asked)
    sink.claim(mine, takes_over=arguments.takes_over)
    return sink


def _run_to_end(spark: Any, options: Any, target: Any, figures: Any) -> None:
    """Raises KeyboardInterrupt when it was stopped by Ctrl-C."""
    from pyspark.errors import StreamingQueryException

    from binlogd.spark.lake.manifest import PipelineStopped
    from binlogd.spark.pipeline import start

    # each batch that fails, with its stack: what there is to say of it is said below
    logging.getLogger("py4j.clientserver").setLevel(logging.CRITICAL)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        query = start(spark, options, target, figures)
        try:
            with _asked_to_stop() as asked_to_stop:
                while not query.awaitTermination(POLL_S):  # ends with the query
                    if asked_to_stop:
                        query.stop()
        except StreamingQueryException as error:
            if is_worker_late(str(error)) and attempt < ATTEMPTS_MAX:
                log.warning("python_worker_was_late", attempt=attempt)
                continue
            ours = _OURS.findall(str(error))
            raise PipelineStopped(ours[-1][1] if ours else str(error)) from error
        if signal.SIGINT in asked_to_stop:
            raise KeyboardInterrupt
        return


def is_worker_late(text: str) -> bool:
    """Whether a query ended because a Python process took longer to start than the ten seconds
    that Spark waits (a busy machine): what was at work is done again by a new query. Of the begin
    of a query Spark tells no cause. Source: org.apache.spark.api.python.PythonWorkerFactory
    (createSimpleWorker)."""
    return (
        "Timed out while waiting for the Python worker to connect back" in text
        or "Python worker failed to connect back" in text
    )


def _named(checkpoint: str) -> str:
    """A checkpoint as people may read it, and find it."""
    return without_secrets(checkpoint) if "://" in checkpoint else str(Path(checkpoint).absolute())


def _beginning(arguments: Arguments, asked: Any, scratch: Path, wants: Any) -> Any:
    from binlogd.spark.base_loader import load_base

    zone, needs_keys = arguments.base_time_zone, arguments.is_lake
    return load_base(arguments.base, zone, asked, scratch, wants, needs_keys=needs_keys)


def _behind(source: dict[str, str], commit_ts: int) -> dict[str, str]:
    """What a lake has need not be read; matters for the first batch of a checkpoint alone."""
    return source if source.get("from") or not commit_ts else {**source, "from": str(commit_ts)}


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Of SIGTERM and SIGINT those that came. A batch that does not end is done again the next time.

    The handler does no more than that: what it interrupts may be a call to Spark, which bears no
    other one inside.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        del frame
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _check_installed(arguments: Arguments) -> None:
    arguments.source_options()
    kind = place_of(arguments.into).kind if arguments.is_lake else ""
    if arguments.catalog and kind != "iceberg":
        raise ConfigError(f"--catalog {arguments.catalog}: only --into iceberg:... has a catalog")
    if not arguments.is_lake and (arguments.partition_by or arguments.cluster_by):
        raise ConfigError("--partition-by and --cluster-by go with a lake")
    if not arguments.is_lake and (arguments.tables or arguments.excluded):
        raise ConfigError("--tables and --except go with a lake; for syncer, [syncer] chooses")
    if arguments.mode != "upsert" and (arguments.base or not arguments.is_lake):
        raise ConfigError(
            f"--mode {arguments.mode} goes with a lake, and without --base: a changelog may begin"
            " anywhere (--from)"
        )
    require("spark", "pyspark", "pyarrow", "pandas")
    if kind:
        require(kind, LIBRARIES[kind])
