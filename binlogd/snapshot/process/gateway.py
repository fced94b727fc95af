"""Spark's JVM without the scripts around it, begun before PySpark is even imported.

`bin/spark-submit` starts a shell, and a JVM that thinks out the command of the real one. What that
one said once is said again here, and PySpark is told where the gateway listens in the way in which
spark-submit tells it to Python programs.

The scripts set SPARK_HOME as well. With it each Python worker imports PySpark from a zip there, and
compiles it each time: a second of a core. Without it a worker imports the one that is installed.

Source: Spark, PythonGatewayServer.scala, PythonRunner.scala, PythonUtils.scala (sparkPythonPath),
python/pyspark/java_gateway.py.
"""

from __future__ import annotations

import os
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from binlogd.host.privacy import environment_of_children
from binlogd.snapshot.spec import SessionSpec

START_S_MAX = 300.0
"""A machine that has much else to do takes half a minute."""
_MAIN_CLASS = "org.apache.spark.api.python.PythonGatewayServer"
_TOLD_FILE = "gateway"
_POLL_S = 0.01


def java_options(spec: SessionSpec) -> list[str]:
    """The rows are decoded in Python; what is left for the JVM is not worth its second compiler."""
    options = [
        "-Xss1m",
        "-XX:+UseParallelGC",
        "-XX:TieredStopAtLevel=1",
        "-XX:+ExitOnOutOfMemoryError",
        f"-Djava.io.tmpdir={spec.scratch}",
    ]
    if spec.archive_to:
        options += [f"-XX:ArchiveClassesAtExit={spec.archive_to}", "-Xlog:cds=off"]
    elif spec.class_archive:
        options += [f"-XX:SharedArchiveFile={spec.class_archive}", "-Xshare:auto"]
    return options


def begun(spec: SessionSpec) -> subprocess.Popen[bytes] | None:
    """The JVM, on its way; it ends when its stdin does. None where it is left to PySpark."""
    if not spec.launch:
        return None
    file = _address_file(spec)
    file.unlink(missing_ok=True)
    environment = {
        **environment_of_children(os.environ),
        "SPARK_CONNECT_MODE": "0",
        "PYTHONHASHSEED": "0",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(file),
    }
    environment.pop("SPARK_HOME", None)
    command = [*spec.launch, f"-Xmx{spec.memory_mb}m", *java_options(spec), _MAIN_CLASS]
    # Ctrl-C is for whoever asks Spark, who ends it when that is due
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, process_group=0)


def connect(jvm: subprocess.Popen[bytes], spec: SessionSpec) -> None:
    """Waits until it listens; PySpark then finds it by the environment.

    Raises ChildProcessError.
    """
    file = _address_file(spec)  # it gets its name when it is whole
    for _ in range(round(START_S_MAX / _POLL_S)):
        if file.exists():
            break
        with suppress(subprocess.TimeoutExpired):
            raise ChildProcessError(f"the JVM ended with code {jvm.wait(_POLL_S)}")
    else:
        raise ChildProcessError(f"the JVM has not come up within {START_S_MAX:g} s")
    port, length = struct.unpack_from(">ii", content := file.read_bytes())
    file.unlink()
    os.environ["PYSPARK_GATEWAY_PORT"] = str(port)
    os.environ["PYSPARK_GATEWAY_SECRET"] = content[8 : 8 + length].decode()


def _address_file(spec: SessionSpec) -> Path:
    return Path(spec.scratch, _TOLD_FILE)
