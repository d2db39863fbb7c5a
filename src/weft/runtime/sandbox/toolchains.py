"""The toolchains of a person's home folder that a command in the sandbox is shown, read-only.

A workspace leads to them: by its links, scripts and environments, and by the versions that it asks
for. Only what lies in the places of a version manager is ever shown because a workspace leads
there. These places come from the person's home folder and environment, never from the workspace. Of
a manager only the folders of versions are shown and the parts that its programs need. What else
lies there, such as configuration and credentials, is not.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.kernel.errors import LimitExceeded, quoted
from weft.kernel.foreign_input import ReadLimits, check_json
from weft.runtime.sandbox.profiles import Mount, MountKind, cover, is_beneath, read_only

Variable = Callable[[str], str | None]
VersionNames = Mapping[str, tuple[str, ...]]
"""By tool, the versions that somebody named, as they named them."""

_MOST_VERSIONS = 500
"""Of one folder that are looked at."""
_MOST_ALIASES = 8
_LARGEST_VERSION_FILE_BYTES = 64 * 1024
_VERSION, _TOOL = "{version}", "{tool}"
_BREW_PARTS = (
    "bin", "sbin", "lib", "libexec", "include", "share", "opt", "Cellar", "Frameworks", "etc/openssl@3/cert.pem",
    "etc/openssl@3/certs", "etc/openssl@3/openssl.cnf", "etc/ca-certificates",
)  # fmt: skip
_CONDA_PARTS = ("bin", "condabin", "lib", "libexec", "include", "share", "ssl", "compiler_compat")
_CONDA_PLACES = (
    "miniconda3", "miniconda", "anaconda3", "anaconda", "miniforge3", "mambaforge", "micromamba", "opt/miniconda3",
)  # fmt: skip


class PersonalHome(Struct, frozen=True, kw_only=True):
    """A person's home folder, and the variables of theirs that say where version managers keep what they installed."""

    folder: str
    variables: Mapping[str, str] = {}

    @classmethod
    def of(cls, variable: Variable) -> PersonalHome | None:
        """From a person's environment; None where it names no home folder."""
        folder = variable("HOME") or ""
        if not folder.startswith("/"):
            return None
        return cls(folder=os.path.normpath(folder), variables=manager_variables(variable))


def manager_variables(variable: Variable) -> dict[str, str]:
    """Of a person's environment, what says where version managers keep what they installed."""
    names = (manager.variable for manager in MANAGERS if manager.variable is not None)
    return {name: value for name in names if (value := variable(name))}


class ToolchainRoot(Struct, frozen=True, kw_only=True):
    """The folder of one version manager on this machine."""

    manager: VersionManager
    place: str
    """As the person names it."""
    real: str
    """With its links resolved."""


class VersionManager(Struct, frozen=True, kw_only=True, eq=False):
    """What is known of one version manager."""

    name: str
    places: tuple[str, ...]
    """Where its folder usually is: from the home folder, or from the root."""
    variable: str | None = None
    """The variable that names another folder."""
    variable_part: str = ""
    """The folder beneath what the variable names."""
    versions: str | None = None
    """Where in its folder versions lie, with `{version}`, and `{tool}` where it has several tools."""
    tool: str = ""
    """Its tool, where it has one."""
    programs: tuple[str, ...] = ("bin",)
    """The folders of a version that hold programs."""
    shared: tuple[str, ...] = ()
    """What is shown beside the versions."""
    shared_programs: tuple[str, ...] = ()
    sets: Mapping[str, str] = {}
    """Variables that its programs need, each with the folder beneath its own that it names."""
    usual: Callable[[ToolchainRoot, PersonalHome], VersionNames] = lambda root, home: {}
    """The versions that the person uses where nothing else says."""
    has_newest: bool = True
    """Whether its newest version is used where nothing says which."""
    is_last: bool = False
    """Whether the system's own programs are preferred to its."""


class Installation(Struct, frozen=True, kw_only=True):
    """One version of one tool that a manager installed."""

    manager: str
    tool: str
    version: str
    place: str
    """As its manager names it."""
    real: str
    """With links resolved: a folder in one of the managers' own."""
    programs: tuple[str, ...]
    is_link: bool = False
    """Whether a link leads to it."""
    is_last: bool = False

    @property
    def name(self) -> str:
        return " ".join(dict.fromkeys(filter(None, (self.manager, self.tool, self.version))))


def find_roots(home: PersonalHome, workspace: str | None) -> list[ToolchainRoot]:
    """The managers' folders on this machine. One that lies in the workspace is none: an agent may have written it. One
    that holds the home folder would show too much."""
    real_home = os.path.realpath(home.folder)
    real_workspace = None if workspace is None else os.path.realpath(workspace)
    roots: dict[tuple[str, str], ToolchainRoot] = {}
    for manager in MANAGERS:
        for place in _places(manager, home):
            if not os.path.isdir(place):
                continue
            real = os.path.realpath(place)
            is_in_workspace = real_workspace is not None and any(
                is_beneath(path, real_workspace) for path in (place, real)
            )
            is_too_wide = is_beneath(real_home, real) or is_beneath(home.folder, place)
            if not is_in_workspace and not is_too_wide and not real.startswith(("/proc/", "/dev/", "/sys/")):
                roots.setdefault((manager.name, real), ToolchainRoot(manager=manager, place=place, real=real))
    return list(roots.values())


def _places(manager: VersionManager, home: PersonalHome) -> Iterator[str]:
    named = home.variables.get(manager.variable or "", "")
    if named.startswith("/"):
        yield os.path.normpath(os.path.join(named, manager.variable_part))
    for place in manager.places:
        yield os.path.normpath(os.path.join(home.folder, place))


def installations(root: ToolchainRoot) -> Iterator[Installation]:
    """The versions in a manager's folder, links included. A link that leads out of every manager's folder is dropped by
    whoever knows all of them."""
    pattern = root.manager.versions
    if pattern is None:
        return
    waiting = [_VersionFolder("", root.manager.tool)]
    for part in pattern.split("/"):
        if part not in (_VERSION, _TOOL):
            waiting = [
                folder.beneath(part, is_link=os.path.islink(os.path.join(root.real, folder.path, part)))
                for folder in waiting
            ]
            continue
        waiting = [
            folder.beneath(name, part, is_link)
            for folder in waiting
            for name, is_link in _folder_names(os.path.join(root.real, folder.path))
        ][:_MOST_VERSIONS]
    for folder in waiting:
        place = os.path.join(root.place, folder.path)
        yield Installation(
            manager=root.manager.name,
            tool=tool_name(folder.tool),
            version=folder.version,
            place=place,
            real=os.path.realpath(place) if folder.is_link else os.path.join(root.real, folder.path),
            programs=root.manager.programs,
            is_link=folder.is_link,
            is_last=root.manager.is_last,
        )


class _VersionFolder(Struct, frozen=True):
    """A folder on the way to that of a version, from its manager's."""

    path: str
    tool: str
    version: str = ""
    is_link: bool = False

    def beneath(self, name: str, part: str = "", is_link: bool = False) -> _VersionFolder:
        return _VersionFolder(
            f"{self.path}/{name}" if self.path else name,
            name if part == _TOOL else self.tool,
            name if part == _VERSION else self.version,
            self.is_link or is_link,
        )


def _folder_names(folder: str) -> list[tuple[str, bool]]:
    """The names of folders in it, each with whether it is a link to one."""
    try:
        with os.scandir(folder) as entries:
            names = [(entry.name, entry.is_symlink()) for entry in entries if entry.is_dir()]
    except OSError:  # there is none, or it is not ours to read
        return []
    return sorted(names)[:_MOST_VERSIONS]


def tool_name(name: str) -> str:
    """Managers name two tools differently."""
    return {"nodejs": "node", "golang": "go"}.get(name, name)


def chosen_versions(installed: list[Installation], names: tuple[str, ...]) -> list[Installation]:
    """Those that the names mean, each the newest that fits, in the order of the names."""
    newest_first = sorted(installed, key=lambda toolchain: _version_key(toolchain.version), reverse=True)
    chosen: dict[str, Installation] = {}
    for name in names:
        fitting = next((toolchain for toolchain in newest_first if _is_meant(toolchain.version, name)), None)
        if fitting is not None:
            chosen.setdefault(fitting.place, fitting)
    return list(chosen.values())


def newest_version(installed: list[Installation]) -> Installation:
    return max(installed, key=lambda toolchain: _version_key(toolchain.version))


def _version_key(version: str) -> tuple[bool, tuple[int, ...]]:
    """Released versions come after others. `cpython-3.12.1-linux-x86_64-gnu` is 3.12.1."""
    numbers = re.search(r"\d{1,9}(?:\.\d{1,9})*", version)
    is_release = not re.search(r"\d(?:a|b|rc|-dev|-alpha|-beta)\d*", version)
    return is_release, tuple(map(int, numbers[0].split("."))) if numbers else ()


def _is_meant(version: str, name: str) -> bool:
    """`3.12` means 3.12.4, and `20` means v20.11.0; `latest` and the like mean any."""
    if name in ("latest", "node", "lts", "lts/*"):
        return True
    plain = _without_prefix(version)
    return version == name or any(
        plain == wanted or plain.startswith((f"{wanted}.", f"{wanted}-")) for wanted in (_without_prefix(name),)
    )


def _without_prefix(version: str) -> str:
    return re.sub(r"^(?:cpython[-@]|go|v)(?=\d)", "", version)


def _lines_of(path: str) -> list[str]:
    """Of a file of the person's own, without comments; none where it is missing."""
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_VERSION_FILE_BYTES).decode(errors="replace")
    except OSError:
        return []
    return [line for line in (line.partition("#")[0].strip() for line in text.splitlines()) if line]


def parsed_toml(text: str) -> dict[str, Any]:
    """Nothing where it is no TOML: what a version manager cannot read names no version either."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def tool_lines(lines: list[str]) -> dict[str, tuple[str, ...]]:
    """What a file `.tool-versions` says."""
    words = (line.split() for line in lines)
    return {tool_name(tool): tuple(versions) for tool, *versions in words if versions}


def mise_tools(text: str) -> dict[str, tuple[str, ...]]:
    """What a file of mise says: a version, a list of versions, or a table that names one."""
    tools = parsed_toml(text).get("tools")
    names: dict[str, tuple[str, ...]] = {}
    for tool, value in tools.items() if isinstance(tools, dict) else ():
        values = value if isinstance(value, list) else [value]
        versions = [value.get("version") if isinstance(value, dict) else value for value in values]
        names[tool_name(tool)] = tuple(version for version in versions if isinstance(version, str))
    return names


def _usual_pyenv(root: ToolchainRoot, _: PersonalHome) -> VersionNames:
    return {"python": tuple(_lines_of(f"{root.real}/version"))}


def _usual_nvm(root: ToolchainRoot, _: PersonalHome) -> VersionNames:
    """`default` names a version or another alias, as `lts/*` does."""
    return {"node": nvm_versions(root, "default")}


def nvm_versions(root: ToolchainRoot, name: str) -> tuple[str, ...]:
    for _ in range(_MOST_ALIASES):
        if not re.fullmatch(r"[\w.*-]+(?:/[\w.*-]+)?", name) or ".." in name:
            return ()
        lines = _lines_of(f"{root.real}/alias/{name}")
        if not lines:
            break
        name = lines[0]
    return (name,)


def _usual_fnm(root: ToolchainRoot, _: PersonalHome) -> VersionNames:
    """The alias is a link to `node-versions/VERSION/installation`."""
    real = os.path.realpath(f"{root.real}/aliases/default")
    return {"node": (os.path.basename(os.path.dirname(real)),)}


def _usual_volta(root: ToolchainRoot, _: PersonalHome) -> VersionNames:
    try:
        platform = msgspec.json.decode(Path(root.real, "tools/user/platform.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    return volta_versions(platform)


def volta_versions(platform: Any) -> dict[str, tuple[str, ...]]:
    """Of the tools, as Volta's own file and `package.json` name them."""
    if not isinstance(platform, dict):
        return {}
    node = platform.get("node")
    versions = {**platform, "node": node.get("runtime") if isinstance(node, dict) else node}
    if isinstance(node, dict):
        versions["npm"] = node.get("npm")
    return {tool: (version,) for tool, version in versions.items() if isinstance(version, str)}


def _usual_rustup(root: ToolchainRoot, _: PersonalHome) -> VersionNames:
    default = parsed_toml("\n".join(_lines_of(f"{root.real}/settings.toml"))).get("default_toolchain")
    return {"rust": (default,)} if isinstance(default, str) else {}


def _usual_asdf(_: ToolchainRoot, home: PersonalHome) -> VersionNames:
    return tool_lines(_lines_of(f"{home.folder}/.tool-versions"))


def _usual_mise(_: ToolchainRoot, home: PersonalHome) -> VersionNames:
    return mise_tools("\n".join(_lines_of(f"{home.folder}/.config/mise/config.toml")))


def _usual_sdkman(root: ToolchainRoot, _: PersonalHome) -> VersionNames:
    links = {tool: f"{root.real}/candidates/{tool}/current" for tool, _ in _folder_names(f"{root.real}/candidates")}
    return {tool: (os.path.basename(os.path.realpath(link)),) for tool, link in links.items() if os.path.islink(link)}


LAUNCHERS = "launchers"
MANAGERS = (
    VersionManager(
        name="pyenv", places=(".pyenv",), variable="PYENV_ROOT", versions="versions/{version}", tool="python",
        usual=_usual_pyenv,
    ),
    VersionManager(
        name="mise", places=(".local/share/mise",), variable="MISE_DATA_DIR", versions="installs/{tool}/{version}",
        usual=_usual_mise,
    ),
    VersionManager(
        name="asdf", places=(".asdf",), variable="ASDF_DATA_DIR", versions="installs/{tool}/{version}",
        programs=("bin", "go/bin"), usual=_usual_asdf,
    ),
    VersionManager(
        name="nvm", places=(".nvm", ".config/nvm"), variable="NVM_DIR", versions="versions/node/{version}",
        tool="node", shared=("nvm.sh", "alias"), sets={"NVM_DIR": ""}, usual=_usual_nvm,
    ),
    VersionManager(
        name="fnm", places=(".local/share/fnm", ".fnm"), variable="FNM_DIR", versions="node-versions/{version}",
        tool="node", programs=("installation/bin",), usual=_usual_fnm,
    ),
    VersionManager(
        name="volta", places=(".volta",), variable="VOLTA_HOME", versions="tools/image/{tool}/{version}",
        usual=_usual_volta,
    ),
    VersionManager(
        name="rustup", places=(".rustup",), variable="RUSTUP_HOME", versions="toolchains/{version}", tool="rust",
        shared=("settings.toml", "update-hashes"), sets={"RUSTUP_HOME": ""}, usual=_usual_rustup,
    ),
    VersionManager(name="cargo", places=(".cargo",), variable="CARGO_HOME", shared=("bin",), shared_programs=("bin",)),
    VersionManager(name="go", places=("sdk",), versions="{version}", tool="go"),
    VersionManager(
        name="go", places=("go",), variable="GOPATH", shared=("bin",), shared_programs=("bin",),
    ),
    VersionManager(name="go", places=("/usr/local/go",), shared=("bin",), shared_programs=("bin",)),
    VersionManager(
        name="sdkman", places=(".sdkman",), variable="SDKMAN_DIR", versions="candidates/{tool}/{version}",
        usual=_usual_sdkman,
    ),
    VersionManager(
        name="uv", places=(".local/share/uv/python",), variable="UV_PYTHON_INSTALL_DIR", versions="{version}",
        tool="python", sets={"UV_PYTHON_INSTALL_DIR": ""},
    ),
    VersionManager(
        name="uv tool", places=(".local/share/uv/tools",), variable="UV_TOOL_DIR", versions="{version}",
        has_newest=False,
    ),
    VersionManager(
        name="pipx", places=(".local/share/pipx/venvs", ".local/pipx/venvs"), variable="PIPX_HOME",
        variable_part="venvs", versions="{version}", has_newest=False,
    ),
    VersionManager(
        name=LAUNCHERS, places=(".local/bin",), shared=("uv", "uvx", "uvw", "mise"), shared_programs=("",),
    ),
    VersionManager(
        name="conda", places=(*_CONDA_PLACES, ".conda", "/opt/conda"), versions="envs/{version}", tool="environment",
        shared=_CONDA_PARTS, shared_programs=("bin",), has_newest=False, is_last=True,
    ),
    VersionManager(
        name="Homebrew", places=("/home/linuxbrew/.linuxbrew", "/opt/homebrew", ".linuxbrew"),
        variable="HOMEBREW_PREFIX", shared=_BREW_PARTS, shared_programs=("bin", "sbin"), is_last=True,
    ),
)  # fmt: skip
"""In the order in which their programs are looked for."""


# --- Where a workspace leads: interpreters that its links, scripts and environments name, and versions that it asks
# for.

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


# --- The toolchains of a person's home folder that a command in the sandbox is shown, read-only, and how it finds
# them.

_MOST_SHOWN = 64
"""Versions of tools that one workspace is shown."""
_MOST_HIDDEN = 20
_MOST_LAUNCHERS = 100
_SECRET_FOLDERS = ("", "etc", "etc/conda", "etc/jupyter", "conf", "lib/node_modules/npm")
"""Where in a version's folder package managers and servers keep their settings."""
_STATE_FOLDERS = ("data", "logs", "var")
"""Where servers that are a version keep what is stored in them: asdf makes a database of PostgreSQL so."""
SECRET_NAMES = frozenset(
    ".aws .azure .condarc .config .credentials .docker .env .envrc .gem .git-credentials .gnupg .kube .netrc .npmrc "
    ".pypirc .ssh .yarnrc .yarnrc.yml activate.d auth.json auth.toml conda-meta condarc condarc.d credentials "
    "credentials.json credentials.toml deactivate.d gemrc gradle.properties init.d jupyter_notebook_config.json "
    "jupyter_notebook_config.py jupyter_server_config.json jupyter_server_config.py npmrc pip.conf pip.ini "
    "pipx_metadata.json settings-security.xml settings.xml tomcat-users.xml uv-receipt.toml".split()
)
"""Settings that may hold keys, and notes of how something was installed, which may name them; in small letters. A
command finds an empty file or folder in their place."""
_INSTALL_ADVICE = "is not installed: install that version, or make the environment again with another"
READABLE_ADVICE = "a person shows the folder that it lies in by --readable, or by `readable` in resources.toml"


class ToolchainRow(Struct, frozen=True, kw_only=True):
    """Something that is shown: what it is, where it lies, and why it is shown."""

    name: str
    place: str
    why: str


class HiddenProgram(Struct, frozen=True, kw_only=True):
    """Something outside of the workspace to which it leads, and that stays hidden."""

    source: str
    """From the workspace."""
    target: str
    is_installed: bool = True
    """False: it would be a version of a manager, which has no such version."""

    @property
    def sentence(self) -> str:
        state = f"which the sandbox hides: {READABLE_ADVICE}" if self.is_installed else f"which {_INSTALL_ADVICE}"
        return f"{_shown_path(self.source)} leads to {_shown_path(self.target)}, {state}"


class Toolchains(Struct, frozen=True, kw_only=True):
    """What one workspace is shown of toolchains."""

    mounts: tuple[Mount, ...] = ()
    first_folders: tuple[str, ...] = ()
    """In which programs are looked for before the system's."""
    last_folders: tuple[str, ...] = ()
    """And after them."""
    variables: Mapping[str, str] = {}
    rows: tuple[ToolchainRow, ...] = ()
    hidden: tuple[HiddenProgram, ...] = ()

    def path(self, system: str) -> str:
        """The value of PATH, around the system's folders."""
        return ":".join((*self.first_folders, system, *self.last_folders))

    def shows(self, path: str) -> bool:
        """Whether a path lies in what is shown."""
        return any(mount.kind is MountKind.READ_ONLY and is_beneath(path, mount.place) for mount in self.mounts)

    def explain(self, words: Sequence[str], message: str) -> str | None:
        """Why a command may have failed: where its words or what it said name a program that is hidden, or the folder
        of the link that leads to it."""
        text = "\0".join((*words, message))
        named = (
            hidden_program
            for hidden_program in self.hidden
            if (os.path.dirname(hidden_program.source) or hidden_program.source) in text
            or hidden_program.target in text
        )
        return next((program.sentence for program in named), None)


NO_TOOLCHAINS = Toolchains()


def find_toolchains(
    home: PersonalHome | None, workspace: str | None, folder: str | None = None, shown: Sequence[str] = ()
) -> Toolchains:
    """What a command in a folder of the workspace is shown. Without a workspace, what the person uses. `shown` are the
    paths that the person has shown to it beside; where one is an environment, what that leads to counts, too. Reads
    folders, and changes nothing."""
    if home is None:
        return NO_TOOLCHAINS
    real = None if workspace is None else os.path.realpath(workspace)
    search = _ToolchainSearch(home, real, shown)
    for path in shown:
        if os.path.isfile(os.path.join(path, "pyvenv.cfg")):
            search.follow(environment_leads(None, path, path, path, path))
    if real is not None:
        inner = real if folder is None else folder
        search.follow(workspace_leads(real, inner))
        search.choose(version_requests(real, inner))
    else:
        search.choose(())
    return search.toolchains()


class _ToolchainSearch:
    """Gathers what one workspace is shown."""

    def __init__(self, home: PersonalHome, workspace: str | None, shown: Sequence[str]) -> None:
        self._home, self._workspace, self._shown = home, workspace, shown
        self._roots = find_roots(home, workspace)
        self._versions = _firm_versions({root: list(installations(root)) for root in self._roots})
        self._installed = {version.place: version for versions in self._versions.values() for version in versions}
        self._whys: dict[str, tuple[Installation, str]] = {}
        self._first: dict[str, None] = {}
        self._usual: dict[str, None] = {}
        self._last: dict[str, None] = {}
        self._hidden: dict[str, HiddenProgram] = {}

    def follow(self, leads: Iterable[PathLead]) -> None:
        """Show the versions that paths lead to, and those that these lead to."""
        for lead in leads:
            self._follow_path(lead.source, lead.target, f"{_shown_path(lead.source)} leads there")

    def _follow_path(self, source: str, target: str, why: str) -> None:
        path = target
        for _ in range(_MOST_HOPS):
            version = self._version_at(path)
            if version is not None:
                self._show(version, why)
            elif not self._is_visible(path):
                self._note_hidden(source, path)
                return
            try:
                text = os.readlink(path)  # in a manager's own folder, which no workspace writes
            except OSError:
                return
            path = os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(path)), text))

    def _version_at(self, path: str) -> Installation | None:
        """The version in whose folder a path lies."""
        for root in self._roots:
            if root.manager.versions is None:
                continue
            depth = len(root.manager.versions.split("/"))
            for top in dict.fromkeys((root.place, root.real)):
                if is_beneath(path, top):
                    parts = os.path.relpath(path, top).split("/")
                    version = self._installed.get(os.path.join(root.place, *parts[:depth]))
                    if version is not None:
                        return version
        return None

    def _is_visible(self, path: str) -> bool:
        """Whether the sandbox shows it without a version: the system, or a part of a manager that is always shown."""
        shared = (
            os.path.join(top, part) for root in self._roots for top in (root.place, root.real)
            for part in root.manager.shared
        )  # fmt: skip
        return is_of_the_system(path) or any(is_beneath(path, part) for part in (*shared, *self._shown))

    def _note_hidden(self, source: str, target: str) -> None:
        """A folder that holds the home folder is no program, and nobody is told to show it."""
        if len(self._hidden) < _MOST_HIDDEN and not is_beneath(self._home.folder, target):
            is_version = any(
                is_beneath(target, os.path.join(top, root.manager.versions.partition("{")[0].rstrip("/")))
                for root in self._roots
                if root.manager.versions is not None
                for top in (root.place, root.real)
            )
            self._hidden.setdefault(source, HiddenProgram(source=source, target=target, is_installed=not is_version))

    def _show(self, version: Installation, why: str) -> None:
        if version.place in self._whys or len(self._whys) >= _MOST_SHOWN:
            return
        self._whys[version.place] = version, why
        # what a link leads to may be a version of its own: `3.11 -> 3.11.4`, or an environment inside one
        inner = self._version_at(version.real)
        if inner is not None and inner.place != version.place:
            self._show(inner, f"{version.name} leads there")
        if os.path.isfile(os.path.join(version.real, "pyvenv.cfg")):
            for lead in environment_leads(None, version.real, version.real, version.real, version.real):
                self._follow_path(lead.source, lead.target, f"{version.name} leads there")

    def choose(self, requests: Sequence[VersionRequest]) -> None:
        """Show the versions that somebody named, each manager's newest where nobody did."""
        for root in self._roots:
            versions = self._versions[root]
            usual = root.manager.usual(root, self._home) if versions else {}
            for tool in dict.fromkeys(version.tool for version in versions):
                installed = [version for version in versions if version.tool == tool]
                self._choose_tool(
                    root, installed, [request for request in requests if request.tool == tool], usual.get(tool, ())
                )
            for part in root.manager.shared_programs:
                self._add_programs(os.path.normpath(os.path.join(root.place, part)), root.manager.is_last, False)
            if root.manager.name == LAUNCHERS:
                self._follow_launchers(root)

    def _choose_tool(
        self,
        root: ToolchainRoot,
        installed: list[Installation],
        requests: Sequence[VersionRequest],
        usual: tuple[str, ...],
    ) -> None:
        is_asked = False
        for request in requests:
            names = nvm_versions(root, request.version) if root.manager.name == "nvm" else (request.version,)
            for version in chosen_versions(installed, names):
                is_asked = True
                self._show(version, f"{_shown_path(request.source)} asks for {_shown_path(request.version)}")
                self._add_version(version, is_asked=True)
        if is_asked:
            return
        chosen, why = chosen_versions(installed, usual), "you use it where nothing says which"
        if not chosen and root.manager.has_newest:
            chosen, why = [newest_version(installed)], "it is the newest"
        for version in chosen:
            self._show(version, why)
            self._add_version(version, is_asked=False)

    def _follow_launchers(self, root: ToolchainRoot) -> None:
        """Programs that other managers' versions offer by links, such as those of `uv tool install`."""
        for name in sorted(_entry_names(root.real))[:_MOST_LAUNCHERS]:
            version = self._version_at(os.path.realpath(os.path.join(root.real, name)))
            if version is not None:
                self._show(version, f"{os.path.join(root.place, name)} leads there")

    def _add_version(self, version: Installation, *, is_asked: bool) -> None:
        for part in version.programs:
            self._add_programs(os.path.join(version.place, part), version.is_last, is_asked)

    def _add_programs(self, folder: str, is_last: bool, is_asked: bool) -> None:
        if os.path.isdir(folder) and ":" not in folder:
            (self._first if is_asked else self._last if is_last else self._usual).setdefault(folder)

    def toolchains(self) -> Toolchains:
        mounts = [mount for version, _ in self._whys.values() for mount in _version_mounts(version)]
        rows = [ToolchainRow(name=version.name, place=version.place, why=why) for version, why in self._whys.values()]
        for root in self._roots:
            shared = list(self._shared_mounts(root))
            mounts += shared
            if shared:
                rows.append(ToolchainRow(name=root.manager.name, place=root.place, why="its own programs"))
        in_use = {version.manager for version, _ in self._whys.values()}
        return Toolchains(
            mounts=tuple(mount for mount in dict.fromkeys(mounts) if not is_of_the_system(mount.place)),
            first_folders=tuple(dict.fromkeys((*self._first, *self._usual))),
            last_folders=tuple(folder for folder in self._last if folder not in self._first),
            variables={
                name: os.path.normpath(os.path.join(root.place, part))
                for root in self._roots
                if root.manager.name in in_use
                for name, part in root.manager.sets.items()
            },
            rows=tuple(rows),
            hidden=tuple(self._hidden.values()),
        )

    def _shared_mounts(self, root: ToolchainRoot) -> Iterator[Mount]:
        names = list(root.manager.shared)
        if root.manager.name == LAUNCHERS:
            names += [name for name in sorted(_entry_names(root.real))[:_MOST_LAUNCHERS] if self._is_tool(root, name)]
        for name in dict.fromkeys(names):
            place, real = os.path.join(root.place, name), os.path.realpath(os.path.join(root.real, name))
            if os.path.exists(real) and not self._is_too_wide(real):
                yield read_only(place, real, is_optional=True)
                if real != place and is_beneath(real, root.real):
                    yield read_only(real, is_optional=True)

    def _is_tool(self, root: ToolchainRoot, name: str) -> bool:
        """Whether a launcher starts a program that was installed as a tool. An interpreter is not shown so: it looks
        for its libraries beside the place from which it was started."""
        version = self._version_at(os.path.realpath(os.path.join(root.real, name)))
        return version is not None and not version.tool and os.path.isfile(os.path.join(root.real, name))

    def _is_too_wide(self, real: str) -> bool:
        """A person may have made anything a link; nothing that holds the home folder or lies in the workspace is shown
        for it."""
        workspace = self._workspace
        return is_beneath(os.path.realpath(self._home.folder), real) or (
            workspace is not None and is_beneath(real, workspace)
        )


def _firm_versions(versions: Mapping[ToolchainRoot, list[Installation]]) -> dict[ToolchainRoot, list[Installation]]:
    """Without those that are links to what is no version itself, nor lies in one or in what is shown beside them."""
    firm = [version.real for own in versions.values() for version in own if not version.is_link]
    firm += [os.path.realpath(os.path.join(root.real, part)) for root in versions for part in root.manager.shared]
    return {
        root: [
            version
            for version in own
            if not version.is_link or any(is_beneath(version.real, folder) for folder in firm)
        ]
        for root, own in versions.items()
    }


def _entry_names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _version_mounts(version: Installation) -> Iterator[Mount]:
    """The folder at its own place, and also where the links on the way are resolved: both are named by programs."""
    for place in dict.fromkeys((version.place, version.real)):
        yield read_only(place, version.real, is_optional=True)  # it may be removed at any time
        yield from _secret_covers(place, version.real)


def _secret_covers(place: str, real: str) -> Iterator[Mount]:
    for top in _installed_folders(real):
        for name in _STATE_FOLDERS:
            path = os.path.join(real, top, name)
            if os.path.isdir(path) and not os.path.islink(path):
                yield cover(os.path.normpath(os.path.join(place, top, name)), is_folder=True)
        for part in _SECRET_FOLDERS:
            folder = os.path.normpath(os.path.join(real, top, part))
            for name in sorted(_entry_names(folder)):
                path = os.path.join(folder, name)
                if name.casefold() in SECRET_NAMES and not os.path.islink(path):
                    yield cover(os.path.normpath(os.path.join(place, top, part, name)), is_folder=os.path.isdir(path))


def _installed_folders(version: str) -> Iterator[str]:
    """The folders in that of a version which hold something that was installed: itself, the folder that an archive had
    around all of it, and environments that were made of it (pyenv-virtualenv)."""
    yield ""
    for name, is_link in _folder_names(version):
        if not is_link and any(os.path.isdir(os.path.join(version, name, part)) for part in ("bin", "conf")):
            yield name
    environments = os.path.join(version, "envs")
    if not os.path.islink(environments):
        yield from (f"envs/{name}" for name, is_link in _folder_names(environments) if not is_link)


def _shown_path(text: str) -> str:
    """A path in a sentence; as Python writes it where a terminal would obey some of it."""
    return text if text.isprintable() and len(text) <= 300 else quoted(text, 300)
