"""The version managers that keep toolchains in a home folder: where, in which folders, and which version is usual.

Only what lies in one of these places is ever shown in a sandbox because a workspace leads there. The places come from
the person's home folder and environment, never from the workspace. Of a manager only the folders of versions are shown
and the parts that its programs need. What else lies there, such as configuration and credentials, is not.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from weft.runtime.sandbox.profiles import is_beneath

Variable = Callable[[str], str | None]
VersionNames = Mapping[str, tuple[str, ...]]
"""By tool, the versions that somebody named, as they named them."""

_MOST_VERSIONS = 500
"""Of one folder that are looked at."""
_MOST_ALIASES = 8
_LARGEST_FILE_BYTES = 64 * 1024
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
            text = file.read(_LARGEST_FILE_BYTES).decode(errors="replace")
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
