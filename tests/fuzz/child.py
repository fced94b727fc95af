"""One search, in a process of its own: `python -m tests.fuzz.child TARGET libFuzzer-options`.

The sources run as they are, also where they were compiled: coverage is seen in bytecode alone.
"""

from __future__ import annotations

import sys
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path

import binlogd

INSTRUMENTED = ["binlogd", "aiomysql", "pymysql", "betterproto", "h2", "hpack", "hyperframe"]
PACKAGE = str(Path(binlogd.__file__).parent)


def _from_sources(path: str) -> FileFinder:
    if not path.startswith(PACKAGE):
        raise ImportError(path)
    return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))


def main() -> None:
    """Until the options say so, or an input fails."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # of `make setup-soak`

    sys.path_hooks.insert(0, _from_sources)
    sys.path_importer_cache.clear()
    name, *options = sys.argv[1:]
    with atheris.instrument_imports(include=INSTRUMENTED, enable_loader_override=False):
        from tests.fuzz.inputs import target

        run = target(name).run
    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
