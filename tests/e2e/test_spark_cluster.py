"""A standalone cluster out of pip's jars: the pipeline by spark-submit, a read by Spark Connect.

Long, because it starts four JVMs; the package itself is looked at in test_pipeline.py.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from binlogd.archive.task import Task
from binlogd.archive.upload import archive
from binlogd.spark.lake.moving import Lake
from binlogd.spark.lake.place import KINDS, place_of
from tests.support.appliance import run
from tests.support.logged import Logged, check_lake, read
from tests.support.ports import free_port
from tests.support.s3 import S3, s3_server
from tests.support.tried import library
from tests.workload.generator import Options

SPARK = Path(pyspark.__file__).parent
PATIENCE_S = 600.0

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]


def environment() -> dict[str, str]:
    """Nothing of this working copy is importable: workers have what --py-files brings."""
    library("pyspark")
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {
        **kept,
        "SPARK_HOME": str(SPARK),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@contextmanager
def daemon(log: Path, *words: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(SPARK / "bin" / "spark-class"), *words],
            env=environment(),
            cwd=log.parent,
            stdout=output,
            stderr=output,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=30)


def wait_for(log: Path, text: str) -> None:
    until = time.monotonic() + PATIENCE_S
    while text not in log.read_text(errors="replace"):
        assert time.monotonic() < until, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and one worker with one core."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    of_master, of_worker = tmp_path / "master.log", tmp_path / "worker.log"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as stack:
        words = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        stack.enter_context(daemon(of_master, f"{deploy}.master.Master", *words))
        wait_for(of_master, "New state: ALIVE")
        words = ["--cores", "1", "--memory", "1g", "--webui-port", "0", url]
        stack.enter_context(daemon(of_worker, f"{deploy}.worker.Worker", *words))
        wait_for(of_worker, "Successfully registered with master")
        yield url


@pytest.fixture
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_spark_submit_runs_the_pipeline_on_a_cluster_that_sees_an_object_store_alone(
    kind: str, master: str, s3: S3, tmp_path: Path
) -> None:
    logged = Logged.write(tmp_path, Options(seed=41, transactions=120, ddl_every=30))
    url, into = s3.url("binlogs"), f"{kind}:{s3.url('lake')}"
    data_dir, history = logged.data_dir, logged.history
    archive(Task(data_dir=str(data_dir), url=url, history=str(history), with_open=True))
    shutil.rmtree(data_dir)
    history.unlink()
    assert run(tmp_path, "pipeline", "--package", "job").returncode == 0
    job = tmp_path / "job"
    command = [str(SPARK / "bin" / "spark-submit"), "--master", master]
    command += ["--driver-memory", "600m", "--executor-memory", "600m"]
    command += ["--conf", "spark.sql.shuffle.partitions=4", "--conf", "spark.ui.enabled=false"]
    command += ["--py-files", str(job / "binlogd.zip"), str(job / "pipeline.py")]
    command += ["--source", url, "--into", into, "--batch", "150"]
    command += ["--partition-by", "bank.accounts:version", "--cluster-by", "bank.accounts:owner"]
    done = subprocess.run(
        [*command, "--checkpoint", str(tmp_path / "checkpoint")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    lake = Lake(place_of(into))
    check_lake(logged, lake, logged.workload.model.last_commit_ts)
    layouts = {str(each.layout) for each in lake.manifest().read().tables.values()}
    assert layouts == {"", "partitioned by version and clustered by owner"}


CONNECT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
spark.addArtifacts(sys.argv[2], pyfile=True)
sys.path.insert(0, sys.argv[2])
from binlogd.spark.source import BinlogdSource
assert BinlogdSource.__module__ == "binlogd.spark.source"
spark.dataSource.register(BinlogdSource)
frame = spark.read.format("binlogd").option("table", "bank.accounts").load(sys.argv[3])
print("rows:", frame.count())
"""


def test_spark_connect_reads_by_what_is_sent_along(tmp_path: Path) -> None:
    logged = Logged.write(tmp_path, Options(seed=41, transactions=120, ddl_every=30))
    url = str(tmp_path / "archive")
    data_dir, history = str(logged.data_dir), str(logged.history)
    archive(Task(data_dir=data_dir, url=url, history=history, with_open=True))
    assert run(tmp_path, "pipeline", "--package", "job").returncode == 0
    port, log = free_port(), tmp_path / "connect.log"
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    words = ["--master", "local[1]", "--driver-memory", "600m", "--class", server]
    words += [
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "--conf",
        "spark.ui.enabled=false",
    ]
    with daemon(log, "org.apache.spark.deploy.SparkSubmit", *words, "spark-internal"):
        wait_for(log, "Spark Connect server started")
        done = subprocess.run(
            [sys.executable, "-c", CONNECT, f"sc://127.0.0.1:{port}", "job/binlogd.zip", url],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    expected = read({"path": url, "table": "bank.accounts"}).num_rows
    assert f"rows: {expected}" in done.stdout
