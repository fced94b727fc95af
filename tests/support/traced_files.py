"""What a real process does to files, recorded by strace with every byte that it writes.

    recording = Recording(directory)
    subprocess.run([*under(trace), sys.executable, ...])
    recording.take(trace)

A line of the trace is a moment: a call begins at one and ends at the same or a later one. SQLite's
and Python's own writes are in it, and what the process says on its standard output, so that what it
acknowledged stands in one order with what it wrote. A call that changes files in a way that is not
understood here fails the recording: what is overlooked would make every state look legal.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.support.strace import UNDER

_UNDERSTOOD = (
    "open,openat,creat,close,dup,dup2,dup3,fcntl,lseek,write,pwrite64,writev,fsync,fdatasync,"
    "ftruncate,truncate,fallocate,rename,renameat,renameat2,link,linkat,unlink,unlinkat,mkdir,"
    "mkdirat,rmdir,symlink,symlinkat,clone,clone3,fork,vfork"
)
_REFUSED = "pwritev,pwritev2,sendfile,copy_file_range,splice,io_uring_setup,openat2,msync"
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*)\Z", re.DOTALL)
_RESUMED = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)\Z", re.DOTALL)
_RESULT = re.compile(r"(.*)\) += (-?\d+|0x[0-9a-f]+|\?)(?: .*)?\Z", re.DOTALL)
_PATH = re.compile(r'(?:(AT_FDCWD|\d+), )?"((?:\\x[0-9a-f]{2})*)"')
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_UNFINISHED = " <unfinished ...>"
_OPENING = ("open", "openat", "creat", "dup", "dup2", "dup3", "fcntl")
_MAKING = ("clone", "clone3", "fork", "vfork")
NEVER = 1 << 60
"""The end of a call that was under way when the process was killed."""


def under(trace: Path) -> list[str]:
    """The command that runs another and writes down what it does."""
    calls = f"{_UNDERSTOOD},{_REFUSED},mmap"
    words = [*UNDER, "-xx", "-s", "16777216", "--signal=none"]
    return [*words, "-o", str(trace), "-e", f"trace={calls}"]


class Call(NamedTuple):
    """A system call. `result` is None where the process was killed in it; a file that it opened,
    and how many bytes it wrote, are its results."""

    begin: int
    end: int
    thread: int
    name: str
    words: str
    result: int | None

    def texts(self) -> list[bytes]:
        """The strings among its arguments."""
        found = []
        for text, cut in _TEXT.findall(self.words):
            assert not cut, "strace was to write down all of it"
            found.append(bytes.fromhex(text.replace("\\x", "")))
        return found

    def paths(self) -> list[tuple[int | None, str]]:
        """The paths among its arguments, each with the descriptor that it begins at."""
        found = []
        for begin, text in _PATH.findall(self.words):
            path = os.path.normpath(os.fsdecode(bytes.fromhex(text.replace("\\x", ""))))
            found.append((int(begin) if begin.isdigit() else None, path))
        return found

    def numbers(self) -> list[str]:
        """The arguments that are no strings."""
        return [each.strip() for each in _TEXT.sub("", self.words).split(",")]


def calls_of(lines: Sequence[str], first: int) -> list[Call]:
    """The calls of a trace that succeeded or were cut off, by their begin; those that give a
    descriptor by their end, since a call that begins meanwhile may have closed it before."""
    begun: dict[int, tuple[int, str, str]] = {}
    calls: list[Call] = []
    for moment, line in enumerate(lines, first):
        if (resumed := _RESUMED.fullmatch(line)) is not None:
            thread = int(resumed[1])
            begin, name, words = begun.pop(thread)
            words += resumed[3]
        elif (call := _BEGUN.fullmatch(line)) is not None:
            thread, begin, name, words = int(call[1]), moment, call[2], call[3]
        else:
            continue  # an exit
        if words.endswith(_UNFINISHED):
            begun[thread] = begin, name, words.removesuffix(_UNFINISHED)
            continue
        done = _RESULT.fullmatch(words)
        assert done is not None, line[:200]
        words, result = done[1].removesuffix(_UNFINISHED), done[2]
        if result == "?":
            calls.append(Call(begin, NEVER, thread, name, words, None))
        elif not result.startswith("-"):
            calls.append(Call(begin, moment, thread, name, words, int(result, 0)))
    for thread, (begin, name, words) in begun.items():
        calls.append(Call(begin, NEVER, thread, name, words, None))
    return sorted(calls, key=lambda call: call.end if call.name in _OPENING else call.begin)


@dataclass(eq=False, slots=True)
class Node:
    """A file, a directory or a symbolic link of the recorded directory."""

    path: str
    """Where it was made; for people."""
    is_directory: bool = False
    target: bytes | None = None
    changes: list[Change] = field(default_factory=list)
    syncs: list[tuple[int, int]] = field(default_factory=list)
    """When calls that sync it began and ended."""
    names: dict[str, Node] = field(default_factory=dict)
    """Of a directory, as the process sees them now."""
    size: int = 0

    def is_durable(self, end: int, moment: int) -> bool:
        """Whether what ended then was synced afterwards, before a moment."""
        return any(end < begin and done <= moment for begin, done in self.syncs)


class Change(NamedTuple):
    """Of one file: bytes that were written at an offset, or another size (`content` None)."""

    begin: int
    end: int
    offset: int
    content: bytes | None

    def apply(self, content: bytearray) -> None:
        """Does it to what the file has."""
        if self.content is None:
            del content[self.offset :]
            content.extend(bytes(self.offset - len(content)))
            return
        content.extend(bytes(max(0, self.offset - len(content))))
        content[self.offset : self.offset + len(self.content)] = self.content

    def as_far_as(self, real: bytes) -> Change | None:
        """What was done of it, where the process was killed in it: perhaps nothing, and then the
        file may have other bytes there, or the size that it had."""
        if self.content is None:
            return self if len(real) == self.offset else None
        there = real[self.offset : self.offset + len(self.content)]
        pairs = zip(self.content, there, strict=False)
        done = next((at for at, (ours, its) in enumerate(pairs) if ours != its), len(there))
        return self._replace(content=self.content[:done])


class Naming(NamedTuple):
    """Names that changed at once: what stands there afterwards, None for nothing."""

    begin: int
    end: int
    names: tuple[tuple[Node, str, Node | None], ...]

    def is_durable(self, moment: int) -> bool:
        """Whether a directory of it was synced before a moment."""
        return any(each.is_durable(self.end, moment) for each, _, _ in self.names)


@dataclass(slots=True)
class _Open:
    node: Node
    appends: bool
    at: int = 0


class Recording:
    """What processes did to a directory, one after the other."""

    def __init__(self, root: Path) -> None:
        """The directory and what is in it counts as durable."""
        self.root = root
        self.top = _found(root)
        self.nodes: list[Node] = list(_all_of(self.top))
        self.namings: list[Naming] = [
            Naming(-2, -2, ((each, name, node),))
            for each in self.nodes
            for name, node in each.names.items()
        ]
        self.said: list[tuple[int, bytes]] = []
        """What went to the standard output, and when."""
        self.moments = 0
        self.unmade: list[Call] = []
        """Calls in which a process was killed."""
        self._tables: dict[int, dict[int, _Open]] = {}
        self._making: list[Call] = []
        self._first_thread = 0
        self._takes: dict[str, Callable[[Call, dict[int, _Open]], None]] = {
            **dict.fromkeys(("open", "openat", "creat"), self._opened),
            **dict.fromkeys(("dup", "dup2", "dup3", "fcntl"), self._copied),
            **dict.fromkeys(("write", "pwrite64", "writev"), self._wrote),
            **dict.fromkeys(("ftruncate", "truncate", "fallocate"), self._sized),
            **dict.fromkeys(("fsync", "fdatasync"), self._synced),
            "close": self._closed,
            "lseek": self._sought,
            "mmap": self._mapped,
        }

    def take(self, trace: Path) -> None:
        """Adds a trace, of a process that has ended."""
        lines = trace.read_text(encoding="ascii").split("\n")
        calls = calls_of(lines, self.moments)
        self.moments += len(lines)
        self._tables, self._first_thread = {}, 0
        self._making = [each for each in calls if each.name in _MAKING]
        for call in calls:
            self._first_thread = self._first_thread or call.thread
            if call.result is None:
                self.unmade.append(call)
            self._take(call)

    def _take(self, call: Call) -> None:
        table = self._table(call.thread)
        take = self._takes.get(call.name)
        if take is not None:
            take(call, table)
        elif call.name in _REFUSED.split(","):
            descriptors = {int(each) for each in call.numbers() if each.isdigit()}
            assert not descriptors & table.keys(), f"not understood: {call}"
        elif call.name not in _MAKING:
            self._named(call, table)

    def forget_syncs(self, of: Callable[[Node], bool]) -> None:
        """As if these had never been synced by what was recorded."""
        for node in self.nodes:
            if of(node):
                node.syncs = [each for each in node.syncs if each[1] < 0]

    def settle(self) -> None:
        """Compares with the directory as it is, when a process has ended: they must be equal. Of
        what it was killed in, nothing stays that was not done."""
        for naming in [each for each in self.namings if each.end == NEVER]:
            self._settle_names(naming)
        self._settle_directory(self.top, self.root)

    def _settle_names(self, naming: Naming) -> None:
        directory, name, node = naming.names[0]
        is_there = name in {each.name for each in self._real(directory).iterdir()}
        if is_there != (node is not None):
            self.namings.remove(naming)
            for of, each, made in naming.names:
                if made is not None:
                    of.names.pop(each)
        else:
            self.namings[self.namings.index(naming)] = naming._replace(end=self.moments)

    def _real(self, directory: Node) -> Path:
        places = [(self.top, self.root)]
        for node, path in places:
            if node is directory:
                return path
            places += [(each, path / name) for name, each in node.names.items()]
        raise AssertionError(f"{directory.path} is nowhere")

    def _settle_directory(self, directory: Node, path: Path) -> None:
        assert sorted(directory.names) == sorted(each.name for each in path.iterdir()), path
        for name, node in directory.names.items():
            if node.is_directory:
                self._settle_directory(node, path / name)
            elif node.target is None and not name.endswith("-shm"):
                settle_file(node, (path / name).read_bytes(), self.moments)

    # --- descriptors -------------------------------------------------------------------------

    def _table(self, thread: int) -> dict[int, _Open]:
        """The descriptors of a thread: those of its process."""
        if thread not in self._tables:
            made = next((each for each in self._making if each.result == thread), None)
            if made is None:
                assert thread == self._first_thread, f"nobody has made thread {thread}"
                self._tables[thread] = {}
            else:
                former = self._table(made.thread)
                is_shared = "CLONE_FILES" in made.words
                self._tables[thread] = former if is_shared else dict(former)
        return self._tables[thread]

    def _opened(self, call: Call, table: dict[int, _Open]) -> None:
        ((begin, path),) = call.paths()
        place = self._place(begin, path, table)
        if place is None:
            return
        directory, name = place
        node = directory.names.get(name) if name else directory
        if node is None:
            if "O_CREAT" not in call.words and call.name != "creat":
                return  # cut off before it told that nothing is there
            node = self._made(Node(path))
            self._name(call, (directory, name, node))
        if ("O_TRUNC" in call.words or call.name == "creat") and node.size:
            self._change(call, node, 0, None)
        if call.result is not None:
            table[call.result] = _Open(node, appends="O_APPEND" in call.words)

    def _closed(self, call: Call, table: dict[int, _Open]) -> None:
        table.pop(int(call.words), None)

    def _synced(self, call: Call, table: dict[int, _Open]) -> None:
        opened = table.get(int(call.words))
        if opened is not None and call.result is not None:
            opened.node.syncs.append((call.begin, call.end))

    def _copied(self, call: Call, table: dict[int, _Open]) -> None:
        if call.name == "fcntl" and "F_DUPFD" not in call.words:
            return
        old = int(call.numbers()[0])
        if call.result is not None:
            table.pop(call.result, None)
            if old in table:
                table[call.result] = table[old]

    def _sought(self, call: Call, table: dict[int, _Open]) -> None:
        opened = table.get(int(call.numbers()[0]))
        if opened is not None and call.result is not None:
            opened.at = call.result

    def _wrote(self, call: Call, table: dict[int, _Open]) -> None:
        numbers = call.numbers()
        descriptor, content = int(numbers[0]), b"".join(call.texts())
        opened = table.get(descriptor)
        if opened is None:
            if descriptor == 1 and call.thread == self._first_thread:
                self.said.append((call.begin, content))
            return
        content = content if call.result is None else content[: call.result]
        if call.name == "pwrite64":
            offset = int(numbers[-1])
        else:
            offset = opened.node.size if opened.appends else opened.at
            opened.at = offset + len(content)
        self._change(call, opened.node, offset, content)

    def _sized(self, call: Call, table: dict[int, _Open]) -> None:
        numbers = call.numbers()
        if call.name == "truncate":
            place = self._place(*call.paths()[0], table)
            assert place is None, f"not understood: {call}"
            return
        opened = table.get(int(numbers[0]))
        if opened is None:
            return
        size = int(numbers[-1])
        if call.name == "fallocate":
            assert numbers[1] == "0", f"not understood: {call}"
            size = max(opened.node.size, int(numbers[2]) + size)
        self._change(call, opened.node, size, None)

    def _mapped(self, call: Call, table: dict[int, _Open]) -> None:
        numbers = call.numbers()
        opened = table.get(int(numbers[4]))
        if opened is not None and "MAP_SHARED" in numbers[3] and "PROT_WRITE" in numbers[2]:
            assert opened.node.path.endswith("-shm"), f"not understood: {call}"

    def _change(self, call: Call, node: Node, offset: int, content: bytes | None) -> None:
        node.changes.append(Change(call.begin, call.end, offset, content))
        node.size = offset if content is None else max(node.size, offset + len(content))

    # --- names ---------------------------------------------------------------------------------

    def _place(
        self, begin: int | None, path: str, table: dict[int, _Open]
    ) -> tuple[Node, str] | None:
        """The directory and the name there; the root's name is "". None for what is elsewhere: a
        recorded process has its working directory elsewhere."""
        directory = self.top
        if path.startswith("/"):
            if path == str(self.root):
                return directory, ""
            if not path.startswith(f"{self.root}/"):
                return None
            path = path.removeprefix(f"{self.root}/")
        elif begin is None or begin not in table:
            return None
        else:
            directory = table[begin].node
        *parents, name = path.split("/")
        for each in parents:
            found = directory.names.get(each)
            if found is None:
                return None  # cut off before it told that nothing is there
            directory = found
        return directory, name

    def _named(self, call: Call, table: dict[int, _Open]) -> None:
        paths = call.paths()
        places = [self._place(*each, table) for each in paths]
        last = places[-1]
        if not any(places) or last is None:
            assert not any(places), f"not understood: {call}"
            return
        name = call.name.removesuffix("at").removesuffix("at2")
        if name == "symlink":
            self._name(call, (*last, self._made(Node(paths[1][1], target=call.texts()[0]))))
        elif name == "mkdir":
            self._name(call, (*last, self._made(Node(paths[0][1], is_directory=True))))
        elif name in ("rmdir", "unlink"):
            self._name(call, (*last, None))
        else:
            first = places[0]
            assert first is not None, f"not understood: {call}"
            node = first[0].names.get(first[1])
            if name == "link":
                self._name(call, (*last, node))
            else:
                assert name == "rename", f"not understood: {call}"
                assert "RENAME_EXCHANGE" not in call.words, f"not understood: {call}"
                self._name(call, (*last, node), (*first, None))

    def _name(self, call: Call, *names: tuple[Node, str, Node | None]) -> None:
        self.namings.append(Naming(call.begin, call.end, names))
        for directory, name, node in names:
            if node is None:
                directory.names.pop(name, None)
            else:
                directory.names[name] = node

    def _made(self, node: Node) -> Node:
        self.nodes.append(node)
        return node


def settle_file(node: Node, real: bytes, moments: int) -> None:
    """Takes what a killed process did not end as far as the file has it."""
    node.changes = [
        done._replace(end=moments) if done.end == NEVER else done
        for change in node.changes
        if (done := change if change.end != NEVER else change.as_far_as(real)) is not None
    ]
    content = bytearray()
    for change in node.changes:
        change.apply(content)
    assert content == real, f"{node.path}: what it has was not recorded"
    node.size = len(real)


def _found(path: Path) -> Node:
    if path.is_symlink():
        return Node(str(path), target=os.fsencode(path.readlink()))
    node = Node(str(path), is_directory=path.is_dir())
    if path.is_dir():
        node.names = {each.name: _found(each) for each in sorted(path.iterdir())}
    else:
        node.changes.append(Change(-2, -2, 0, path.read_bytes()))
        node.size = path.stat().st_size
    node.syncs.append((-1, -1))
    return node


def _all_of(node: Node) -> list[Node]:
    return [node, *(below for each in node.names.values() for below in _all_of(each))]
