"""Where a workspace leads: interpreters that its links, scripts and environments name, and versions that it asks for.

A workspace is a stranger's. No link in it is followed to a folder, no file that is a link is read, nothing outside of
it is looked at, and everything is bounded. What is read here is text: a path that a link names, a version that a file
asks for. Whoever uses the text decides which of its own places that means: what is swapped afterwards changes nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.errors import LimitExceeded
from weft.kernel.foreign_input import ReadLimits, check_json
from weft.runtime.sandbox.mounts import is_beneath
from weft.runtime.sandbox.toolchain_places import mise_tools, parsed_toml, tool_lines, tool_name, volta_versions

ENVIRONMENTS = (".venv", "venv", "env", ".env", "virtualenv")
_ENVIRONMENT_FOLDERS = (".tox", ".nox")
"""Folders that hold environments."""
_CONFIGURATION = "pyvenv.cfg"
_CONFIGURATION_KEYS = ("home", "executable", "base-executable")
_SYSTEM_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
"""What every sandbox shows."""
_MOST_ENTRIES = 4000
_MOST_LINKS = 200
_MOST_SCRIPTS = 16
_MOST_HOPS = 40
_MOST_ENVIRONMENTS = 20
_MOST_VERSIONS_NAMED = 20
_MOST_FOLDERS = 16
_LONGEST_PATH = 1024
_LARGEST_FILE_BYTES = 16 * 1024
_FIRST_LINE_BYTES = 256
_PACKAGE_LIMITS = ReadLimits(held_bytes=_LARGEST_FILE_BYTES, values=10_000, nesting=50)


class PathLead(Struct, frozen=True):
    """A path outside of the workspace, and what in the workspace names it."""

    source: str
    """From the workspace."""
    target: str


class VersionRequest(Struct, frozen=True):
    """A version of a tool, and the file of the workspace that asks for it."""

    source: str
    tool: str
    version: str


@contextmanager
def _opened_folder(name: str, folder: int | None = None) -> Iterator[int | None]:
    """A folder that is no link; None where there is none."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:  # no folder, a link, or not ours to read
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _file_beginning(name: str, folder: int, most: int = _LARGEST_FILE_BYTES) -> bytes:
    """Of a plain file: nothing waits for a pipe, and no link is followed."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:  # missing, a link, or not ours to read
        return b""
    try:
        return os.read(descriptor, most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _some_entries(folder: int) -> list[os.DirEntry[str]]:
    """By their names. Of a folder with very many, some."""
    with os.scandir(folder) as entries:
        return sorted(islice(entries, _MOST_ENTRIES), key=lambda entry: entry.name)


class _FolderReader:
    """What the links, scripts and files of one folder lead to. `place` is the folder's path, `source` what it is called
    from the workspace."""

    def __init__(self, folder: int, place: str, source: str, workspace: str) -> None:
        self._folder, self._place, self._source, self._workspace = folder, place, source, workspace
        self._inside = os.path.join(workspace, "")

    def link(self, name: str) -> Iterator[PathLead]:
        """Links to another name in the same folder are followed, and the first that leads elsewhere is the answer."""
        current = name
        for _ in range(_MOST_HOPS):
            try:
                text = os.readlink(current, dir_fd=self._folder)
            except OSError:  # no link: what it names lies in the workspace
                return
            if "/" in text or text in (".", ".."):
                yield from self.lead(name, text)
                return
            current = text

    def lead(self, name: str, text: str) -> Iterator[PathLead]:
        """Where a path of the workspace leads out of it."""
        if "\0" in text or len(text) > _LONGEST_PATH:
            return
        if text.startswith(self._inside) and ".." not in text:  # most of them: the rest takes longer
            return
        target = os.path.normpath(os.path.join(self._place, text))
        target = f"/{target.lstrip('/')}"  # two slashes at the beginning stay two otherwise
        with suppress(UnicodeEncodeError):  # a path that is no text is none of ours
            target.encode()
            if not is_beneath(target, self._workspace) and not is_of_the_system(target):
                yield PathLead(os.path.join(self._source, name), target)

    def links_and_scripts(self, has_scripts: bool) -> Iterator[PathLead]:
        """Of its entries by their names; so many of them are looked at."""
        links = scripts = 0
        for entry in _some_entries(self._folder):
            if entry.is_symlink() and links < _MOST_LINKS:
                links += 1
                yield from self.link(entry.name)
            elif has_scripts and scripts < _MOST_SCRIPTS and entry.is_file(follow_symlinks=False):
                scripts += 1
                yield from self.script(entry.name)

    def script(self, name: str) -> Iterator[PathLead]:
        """The interpreter that the first line of a script names."""
        beginning = _file_beginning(name, self._folder, _FIRST_LINE_BYTES)
        words = beginning.partition(b"\n")[0].removeprefix(b"#!").split() if beginning.startswith(b"#!") else []
        if words and words[0].startswith(b"/"):
            yield from self.lead(name, os.fsdecode(words[0]))

    def configuration(self) -> Iterator[PathLead]:
        """The interpreter that an environment of Python was made from."""
        for line in _file_beginning(_CONFIGURATION, self._folder).decode(errors="replace").splitlines()[:100]:
            key, _, value = (part.strip() for part in line.partition("="))
            if key in _CONFIGURATION_KEYS and value.startswith("/"):
                yield from self.lead(_CONFIGURATION, value)


def is_of_the_system(path: str) -> bool:
    return any(is_beneath(path, folder) for folder in _SYSTEM_FOLDERS)


def workspace_leads(workspace: str, folder: str) -> list[PathLead]:
    """Out of the workspace, from what lies in one folder of it and in those above."""
    leads: dict[tuple[str, str], PathLead] = {}
    for part in folder_chain(workspace, folder):
        with _folder_of(workspace, part) as opened:
            if opened is not None:
                for lead in _folder_leads(opened, workspace, part):
                    leads.setdefault((lead.source, lead.target), lead)
    return list(leads.values())


def folder_chain(workspace: str, folder: str) -> list[str]:
    """A folder of the workspace and those above, the innermost first, as paths from the workspace."""
    inner = os.path.relpath(folder, workspace)
    parts = [] if inner == "." or inner.startswith("..") else inner.split("/")[:_MOST_FOLDERS]
    return ["/".join(parts[:length]) for length in range(len(parts), -1, -1)]


@contextmanager
def _folder_of(workspace: str, inner: str) -> Iterator[int | None]:
    """A folder by its path from the workspace, none of whose parts is a link."""
    with _opened_folder(workspace) as top:
        descriptors: list[int] = []
        current = top
        try:
            for name in filter(None, inner.split("/")):
                if current is None:
                    break
                try:
                    current = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
                except OSError:  # it was replaced
                    current = None
                    break
                descriptors.append(current)
            yield current
        finally:
            for descriptor in descriptors:
                os.close(descriptor)


def _folder_leads(folder: int, workspace: str, inner: str) -> Iterator[PathLead]:
    place = os.path.join(workspace, inner)
    reader = _FolderReader(folder, os.path.normpath(place), inner, workspace)
    for name in ENVIRONMENTS:
        yield from reader.link(name)  # an environment that lies elsewhere as a whole
        yield from environment_leads(folder, name, os.path.join(place, name), os.path.join(inner, name), workspace)
    for name in _ENVIRONMENT_FOLDERS:
        with _opened_folder(name, folder) as holder:
            if holder is None:
                continue
            for entry in _some_entries(holder)[:_MOST_ENVIRONMENTS]:
                path = os.path.join(name, entry.name)
                yield from environment_leads(
                    holder, entry.name, os.path.join(place, path), os.path.join(inner, path), workspace
                )
    with _opened_folder("node_modules", folder) as modules:
        if modules is not None:
            path = os.path.join("node_modules", ".bin")
            yield from _bin_leads(modules, ".bin", os.path.join(place, path), os.path.join(inner, path), workspace)


def environment_leads(folder: int | None, name: str, place: str, source: str, workspace: str) -> Iterator[PathLead]:
    """What an environment of Python leads to: its interpreter, and those of its scripts."""
    with _opened_folder(name, folder) as environment:
        if environment is None:
            return
        with _opened_folder("bin", environment) as programs:
            if programs is not None:
                reader = _FolderReader(programs, os.path.join(place, "bin"), os.path.join(source, "bin"), workspace)
                yield from reader.links_and_scripts(has_scripts=True)
        yield from _FolderReader(environment, place, source, workspace).configuration()


def _bin_leads(folder: int, name: str, place: str, source: str, workspace: str) -> Iterator[PathLead]:
    with _opened_folder(name, folder) as programs:
        if programs is not None:
            yield from _FolderReader(programs, place, source, workspace).links_and_scripts(has_scripts=False)


def version_requests(workspace: str, folder: str) -> list[VersionRequest]:
    """The versions that files of a folder and of those above ask for, of each tool in the innermost file that does."""
    requests: list[VersionRequest] = []
    for inner in folder_chain(workspace, folder):
        asked = {request.tool for request in requests}
        with _folder_of(workspace, inner) as opened:
            if opened is None:
                continue
            for source, versions in _requests_in(opened):
                fresh = {tool: names for tool, names in versions.items() if tool not in asked}
                asked |= fresh.keys()
                requests += [
                    VersionRequest(os.path.join(inner, source), tool, version)
                    for tool, names in list(fresh.items())[:_MOST_VERSIONS_NAMED]
                    for version in names[:_MOST_VERSIONS_NAMED]
                    if version and len(version) <= 100
                ]
    return requests


def _requests_in(folder: int) -> Iterator[tuple[str, Mapping[str, tuple[str, ...]]]]:
    for source, tool in ((".python-version", "python"), (".nvmrc", "node"), (".node-version", "node")):
        lines = _text_lines(source, folder)
        yield source, {tool: tuple(lines)} if lines else {}
    yield ".tool-versions", tool_lines(_text_lines(".tool-versions", folder))
    for source in ("mise.toml", ".mise.toml"):
        yield source, mise_tools(_text(source, folder))
    yield "rust-toolchain.toml", _rust_channel(parsed_toml(_text("rust-toolchain.toml", folder)))
    yield "rust-toolchain", _old_rust_channel(_text("rust-toolchain", folder))
    yield (
        ".sdkmanrc",
        {
            tool_name(tool.strip()): (version.strip(),)
            for tool, _, version in (line.partition("=") for line in _text_lines(".sdkmanrc", folder))
        },
    )
    yield "go.mod", _go_versions(_text_lines("go.mod", folder))
    yield "package.json", _volta_versions(_file_beginning("package.json", folder))
    for source in ("environment.yml", "environment.yaml"):
        pairs = (line.partition(":") for line in _text_lines(source, folder))
        names = tuple(value.strip() for key, _, value in pairs if key == "name")
        yield source, {"environment": names[:1]} if names else {}


def _text(name: str, folder: int) -> str:
    return _file_beginning(name, folder).decode(errors="replace")


def _text_lines(name: str, folder: int) -> list[str]:
    """Without comments and empty lines."""
    lines = (line.partition("#")[0].strip() for line in _text(name, folder).splitlines()[:200])
    return [line for line in lines if line]


def _rust_channel(document: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    toolchain = document.get("toolchain")
    channel = toolchain.get("channel") if isinstance(toolchain, dict) else None
    return {"rust": (channel,)} if isinstance(channel, str) else {}


def _old_rust_channel(text: str) -> dict[str, tuple[str, ...]]:
    """The older file is one word, or what the newer one is."""
    lines = text.split()
    return {"rust": (lines[0],)} if len(lines) == 1 else _rust_channel(parsed_toml(text))


def _go_versions(lines: list[str]) -> dict[str, tuple[str, ...]]:
    """The line `toolchain go1.22.3`, or else `go 1.22`."""
    words = dict(line.split() for line in lines if len(line.split()) == 2)
    versions = tuple(words[key] for key in ("toolchain", "go") if key in words)
    return {"go": versions[:1]} if versions else {}


def _volta_versions(data: bytes) -> dict[str, tuple[str, ...]]:
    """What `package.json` says to Volta, where it says so and can be read."""
    if b'"volta"' not in data:
        return {}
    try:
        check_json(data, _PACKAGE_LIMITS)
        package = msgspec.json.decode(data)
    except (msgspec.DecodeError, LimitExceeded):
        return {}
    return volta_versions(package.get("volta")) if isinstance(package, dict) else {}
