# syntax=docker/dockerfile:1
# docker build -t binlogd .            the appliance
# docker build -t binlogd:spark --target spark .   with a Java runtime for `binlogd export`
# docker run -v data:/var/lib/binlogd -p 8250:8250 binlogd
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS deps
WORKDIR /src
RUN python3 -m venv /opt/binlogd
COPY constraints.txt pyproject.toml README.md ./
COPY binlogd ./binlogd
RUN /opt/binlogd/bin/pip install --no-cache-dir --constraint constraints.txt .

FROM ${BASE} AS base
RUN useradd --system --uid 8250 --home-dir /var/lib/binlogd --create-home binlogd
VOLUME /var/lib/binlogd
EXPOSE 8250
ENV PATH=/opt/binlogd/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
STOPSIGNAL SIGTERM
ENTRYPOINT ["binlogd"]
CMD ["serve", "--addr", "0.0.0.0:8250"]
LABEL org.opencontainers.image.title="binlogd" \
      org.opencontainers.image.description="A TiDB cluster's changes, somewhere else" \
      org.opencontainers.image.licenses="Apache-2.0"

FROM deps AS deps-spark
RUN /opt/binlogd/bin/pip install --no-cache-dir --constraint constraints.txt '.[spark]'

FROM base AS spark
RUN apt-get update && apt-get install -y --no-install-recommends default-jre-headless \
 && rm -rf /var/lib/apt/lists/*
COPY --from=deps-spark /opt/binlogd /opt/binlogd
USER binlogd

FROM base AS run
COPY --from=deps /opt/binlogd /opt/binlogd
USER binlogd
