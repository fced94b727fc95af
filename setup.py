"""The build of the package; everything but what is compiled stands in pyproject.toml.

BINLOGD_COMPILE=1 has mypyc compile the modules of `tool.binlogd.compiled` as well, from the sources
that run without it too. mypyc reads the types of the libraries, so mypy has to be where they are:

    BINLOGD_COMPILE=1 python setup.py build_ext --inplace           what `make compile` does
    BINLOGD_COMPILE=1 pip wheel --no-build-isolation --no-deps .    what the image is made of

BINLOGD_OPTIMIZE=0 has the C compiler do less, in half of the time: for the tests of a fresh
clone. Who asks for the whole is not content with it; who asks for less takes the whole.

See docs/decisions/0052-compiled.md.
"""

from __future__ import annotations

import ast
import json
import os
import runpy
import sys
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
PACKAGE = ROOT / "binlogd"
BUILD = "build/native"
GROUP = "binlogd.native"
NATIVE = runpy.run_path(str(PACKAGE / "native.py"))
IS_IN_PLACE = "--inplace" in sys.argv
WHOLE = "2"
OPTIMIZE = os.environ.get("BINLOGD_OPTIMIZE", WHOLE)


def listed() -> list[str]:
    """Paths of what is compiled, below the root."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules: list[str] = project["tool"]["binlogd"]["compiled"]
    return [module.replace(".", "/") + ".py" for module in modules]


def record(optimize: str) -> dict[str, Any]:
    """What is compiled, and from what; an installed package is not compared with its sources."""
    paths = listed()
    made: dict[str, Any] = NATIVE["record_of"](ROOT, paths, looked_at(paths) if IS_IN_PLACE else [])
    return made | {"optimize": optimize}


def looked_at(paths: Sequence[str]) -> list[str]:
    """These sources and those that they import: constants and the shapes of classes are taken over
    from there."""
    found = set(paths)
    for path in paths:
        for name in _imported(ast.parse((ROOT / path).read_text())):
            source = name.replace(".", "/") + ".py"
            found |= {source} if (ROOT / source).exists() else set()
    return sorted(found)


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def extensions(paths: Sequence[str]) -> list[Extension]:
    """What mypyc makes of them: a library, and a small module for each."""
    from mypyc.build import mypycify

    sys.stdout.write(f"compiling {len(paths)} modules, once for these sources\n")
    options = ["--config-file=pyproject.toml", "--cache-dir=build/mypy", "--follow-imports=silent"]
    with redirect_stdout(StringIO()) as said:
        try:
            made: list[Extension] = mypycify(
                [*options, *paths],
                opt_level=OPTIMIZE,
                debug_level="0",
                multi_file=True,
                target_dir=BUILD,
                group_name=GROUP,
            )
        except SystemExit:
            said_lines = said.getvalue().splitlines(keepends=True)
            sys.stderr.writelines(line for line in said_lines if ": warning: " not in line)
            raise
    for each in made:
        each.include_dirs.append(f"{BUILD}/binlogd")  # where a library inside a package has its own
        each.extra_compile_args.append("-Wno-error")  # of a compiler that mypyc does not know yet
    return made


class Build(build_ext):
    """Compiles several files at a time, only those that changed, and records of which sources."""

    def build_extensions(self) -> None:
        """Makes the extensions and then the record of their sources, which comes last."""
        self.build_temp += f"-O{OPTIMIZE}"
        one = self.compiler.compile

        def compile_one(source: str, output_dir: str | None, options: dict[str, Any]) -> list[str]:
            made = self.compiler.object_filenames([source], output_dir=output_dir or "")
            newest = max(map(os.path.getmtime, [source, *Path(BUILD).rglob("*.h")]))
            if all(os.path.exists(each) and os.path.getmtime(each) > newest for each in made):
                return made
            return one([source], output_dir=output_dir, **options)

        def compile_all(
            sources: Sequence[str], output_dir: str | None = None, **options: Any
        ) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                made = pool.map(lambda each: compile_one(each, output_dir, options), sources)
                return [name for names in made for name in names]

        self.compiler.compile = compile_all
        super().build_extensions()

    def run(self) -> None:
        """Leaves nothing of an earlier build behind, should this one fail."""
        for place in (Path(self.build_lib), *((ROOT,) if IS_IN_PLACE else ())):
            NATIVE["remove"](place / "binlogd")
        super().run()
        (place / "binlogd" / NATIVE["RECORD"]).write_text(
            json.dumps(record(OPTIMIZE), indent=1) + "\n"
        )


if os.environ.get("BINLOGD_COMPILE") == "1" and {"build_ext", "bdist_wheel"} & set(sys.argv):
    there = any(NATIVE["is_current"](ROOT, record(each)) for each in (OPTIMIZE, WHOLE))
    if not (IS_IN_PLACE and there):
        setup(ext_modules=extensions(listed()), cmdclass={"build_ext": Build})
else:
    setup()
