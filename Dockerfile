# docker build -t binlogd .                        the appliance
# docker build -t binlogd:spark --target spark .   with a Java runtime: `binlogd export`, driver and executors on Kubernetes
# docker build --target check .                    lint, types, import contracts and the quick tests
# docker run -v data:/var/lib/binlogd -p 127.0.0.1:8250:8250 binlogd
#
# BASE is any Debian with python3 (3.11 or newer) and its venv module. The tag below moves: `make release-image`
# wants a digest. An index of your own:
# --build-arg PIP_INDEX_URL=..., which stays behind in the first stage.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS deps
WORKDIR /src
# pip stays in an environment of its own, and in this stage.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/binlogd
# Every file is one of the locks, by its hash, those that build packages too.
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# The compiler stays in this stage too.
RUN { command -v cc && python3 -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")'; } >/dev/null 2>&1 \
 || { apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev \
      $(python3 -c 'import sysconfig; print("python3-dev" if sysconfig.get_path("include").startswith("/usr/include") else "")') \
      && rm -rf /var/lib/apt/lists/*; }
# README.md is part of the package's metadata: without it nothing is built.
COPY locks ./locks
COPY pyproject.toml README.md LICENSE setup.py ./
COPY binlogd ./binlogd
ARG PIP_INDEX_URL
ARG PIP_CONFIG_FILE
# The libraries come first, since mypyc reads their types; then the package, compiled. A copy of it that
# pip leaves beside it would be checked below as well.
RUN /opt/pip/bin/pip install --require-hashes --requirement locks/build.txt \
 && /opt/pip/bin/pip --python /opt/binlogd/bin/python install --require-hashes --requirement locks/run.txt \
 && PYTHONPATH=$(echo /opt/pip/lib/python3*/site-packages) BINLOGD_COMPILE=1 \
      /opt/binlogd/bin/python -m pip wheel --no-deps --no-build-isolation --wheel-dir /opt/wheel . \
 && /opt/pip/bin/pip --python /opt/binlogd/bin/python install --no-deps /opt/wheel/*.whl \
 && rm -rf build

FROM deps AS deps-spark
ARG PIP_INDEX_URL
ARG PIP_CONFIG_FILE
# PySpark is built from its sources, by the setuptools of the lock.
RUN PYTHONPATH=$(echo /opt/pip/lib/python3*/site-packages) \
      /opt/pip/bin/pip --python /opt/binlogd/bin/python install --no-build-isolation --use-pep517 \
        --require-hashes --requirement locks/extras.txt

# Beside the images, not below them: `docker build --target check .` succeeds, or says what is wrong.
FROM deps-spark AS check
ARG PIP_INDEX_URL
ARG PIP_CONFIG_FILE
RUN /opt/pip/bin/pip --python /opt/binlogd/bin/python install --no-build-isolation --use-pep517 \
      --require-hashes --requirement locks/test.txt
# What is checked is /src, not the copy that was installed.
ENV PATH=/opt/binlogd/bin:$PATH PYTHONPATH=/src
COPY . .
RUN ruff check . && ruff format --check . && mypy && lint-imports
RUN pytest tests/unit tests/test_tidy.py -m "not soak" --numprocesses 2 --dist worksteal

FROM ${BASE} AS base
# tini is process 1: it reaps what a health check leaves and hands SIGTERM on.
RUN command -v tini >/dev/null \
 || { apt-get update && apt-get install -y --no-install-recommends tini && rm -rf /var/lib/apt/lists/*; }
# The data directory exists, empty and owned, before it is a volume: a new volume begins as its copy.
RUN groupadd --gid 8250 binlogd \
 && useradd --uid 8250 --gid binlogd --home-dir /var/lib/binlogd --no-create-home \
      --shell /usr/sbin/nologin binlogd \
 && install --directory --owner binlogd --group binlogd --mode 0750 /var/lib/binlogd
ENV PATH=/opt/binlogd/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /var/lib/binlogd
EXPOSE 8250
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "binlogd"]
# Inside a container the built-in 127.0.0.1 would be heard by nobody.
CMD ["serve", "--addr", "0.0.0.0:8250"]
# Unhealthy is a process that does not answer; one whose replication waits or is stuck is well.
HEALTHCHECK --interval=30s --timeout=30s --start-period=60s --retries=3 CMD ["binlogd", "health"]
ARG BASE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="binlogd" \
      org.opencontainers.image.description="A TiDB cluster's changes, somewhere else" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE}"

FROM base AS spark
RUN apt-get update \
 && apt-get install -y --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/*
COPY --from=deps-spark /opt/binlogd /opt/binlogd
# The archive of classes with which Spark starts in half of the time or less.
ENV XDG_CACHE_HOME=/var/cache
# What binlogd makes is for its own user; here that is root, and another one runs it.
RUN binlogd spark warmup && chmod -R a+rX /var/cache/binlogd
# Where Spark on Kubernetes looks: its scripts and classes, the configuration that it mounts, and the programs to submit.
COPY deploy/spark-entrypoint.sh /opt/spark/entrypoint.sh
RUN install --directory --owner binlogd --group binlogd /opt/spark/conf \
 && ln -s $(echo /opt/binlogd/lib/python3*/site-packages/pyspark)/bin /opt/spark/bin \
 && ln -s $(echo /opt/binlogd/lib/python3*/site-packages/pyspark)/jars /opt/spark/jars \
 && binlogd pipeline --package /opt/job \
 && chmod -R a+rX /opt/job
ENV PYSPARK_PYTHON=/opt/binlogd/bin/python3
ENTRYPOINT ["tini", "--", "/opt/spark/entrypoint.sh"]
USER 8250:8250
VOLUME /var/lib/binlogd

FROM base AS run
COPY --from=deps /opt/binlogd /opt/binlogd
USER 8250:8250
VOLUME /var/lib/binlogd
