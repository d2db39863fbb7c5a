"""What commands are run by and what is hidden from them; where what is kept of a ledger's
resources lies, and what acts on them; what was left by commands whose weft was killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timezone, tzinfo
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from weft.kernel.authority import LOCAL, MACHINE_RIGHT, Authority
from weft.kernel.enums import ResourceCapability, ResourceKind
from weft.kernel.errors import InvalidInput, LedgerMissing, NotTrusted, Unsupported, quoted
from weft.kernel.typed_names import Site, shell_word
from weft.ledger.api import Resources
from weft.ledger.arguments import (
    checked_label,
    checked_list,
    checked_member,
    checked_record,
    checked_text,
    path_error,
)
from weft.surfaces.cli.user_files import (
    SERVER,
    beside_ledger,
    configuration_folder,
    find_ledger,
    outside_of_work,
    state_folder,
    this_machine,
    trust_store,
    user_cache,
    user_ledger,
)
from weft.surfaces.plain_text import safe

if TYPE_CHECKING:
    from weft.kernel.enums import ResourceLiveness
    from weft.ledger.api import Ledger, PriceTable, Resource, ResourceRestore, Snapshot
    from weft.runtime.assembly.system_prompts import ChangedRules, RulesOf, WorkspaceRules
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.runtime.folder_snapshots.snapshot_objects import ChangedPath
    from weft.runtime.resources.controller import KeptFiles, ResourceController
    from weft.runtime.resources.drivers import Drivers
    from weft.runtime.resources.local_drivers import DirectoryDriver
    from weft.runtime.resources.turn_files import ForkedResources, ForkPlanner, PlanLine, TurnFiles
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.runtime.sandbox.git_settings import GitIdentity
    from weft.runtime.sandbox.git_view import GitPrograms
    from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles
    from weft.store.replicas import TrustStore


# --- What runs commands for this person: in the sandbox, without the ledger and what is the person's own of Weft.

SANDBOX_SETTINGS_FILE = "sandbox.toml"
_MOST_INCLUDES = 10
SANDBOX_CACHES = "sandbox"
"""The folder of the user's caches in which package caches of sandboxed commands lie."""
SANDBOX_PLACES = "sandbox"
"""The folder of the user's state in which it is noted what was covered in workspaces."""
_announced_rules: set[tuple[str, str, str]] = set()


class SandboxSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The file `sandbox.toml`."""

    secret_files: tuple[str, ...] = ()
    """Names of files that are hidden from commands beside the usual ones; `*` and `?` stand for any characters."""
    readable: tuple[str, ...] = ()
    """Files and folders that commands can read beside the workspace, such as where a language is installed."""


def load_sandbox_settings() -> SandboxSettings:
    path = configuration_folder() / SANDBOX_SETTINGS_FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return SandboxSettings()
    except ValueError as error:
        raise InvalidInput(f"{path}: {error}", "write it in UTF-8") from None
    import tomllib

    try:
        settings = msgspec.convert(tomllib.loads(text), SandboxSettings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{path}: {error}", "docs/tools.md shows how it is written") from None
    for place in settings.readable:
        if not os.path.isabs(place) or not os.path.exists(place):
            raise InvalidInput(
                f"{path}: {quoted(place, 300)}, which the sandbox is to show, is not there",
                "give whole paths of what is",
            )
    return settings


def protected_places(ledger: str | None) -> ProtectedPlaces:
    """What no command in the sandbox sees: the ledger with what lies beside it, others that the person trusts, keys,
    decisions, configuration, caches, and files of secrets. What is kept of a ledger on a server lies beside the
    person's own ones."""
    from weft.runtime.sandbox.hidden_places import ProtectedPlaces, SecretFiles

    own = (configuration_folder(), state_folder(), user_ledger().parent, user_cache())
    secrets = SecretFiles(more=load_sandbox_settings().secret_files, shown=trust_store().shown_files)
    ledgers: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = own
    if ledger is not None and Site.of(ledger) is Site.FILE:
        ledgers, folders = (Path(ledger).absolute(),), (*own, folder_beside(ledger))
    return ProtectedPlaces(
        ledgers=ledgers, folders=folders, others=_trusted_files, secrets=secrets, programs=_started_programs
    )


def _trusted_files() -> tuple[str, ...]:
    """Where ledgers lie that may act for this person: what a command wrote there would act as well."""
    identities = [ledger.identity for ledger in trust_store().ledgers()]
    return tuple(identity.place for identity in identities if identity.inode is not None)


def _started_programs() -> tuple[str, ...]:
    """What runs with keys of the person, or outside of the sandbox: MCP servers, and commands that print keys."""
    from weft.runtime.tools.mcp_server_settings import is_script
    from weft.surfaces.cli.credentials import load_credentials, server_programs

    words = (word for credential in load_credentials() for word in credential.command if os.path.isabs(word))
    return (*server_programs(), *map(os.path.realpath, filter(is_script, words)))


def trusted_rules() -> RulesOf:
    """Reads the rules of folders that this person trusts, and of no other."""
    from weft.runtime.assembly.system_prompts import read_rules

    return partial(
        read_rules, seen_rules=trust_store().seen_rules, hidden_files=hidden_files, on_change=_announce_rules
    )


def _announce_rules(change: ChangedRules) -> None:
    """Once in a process: a broker plans many turns in one folder."""
    place, digest = change.seen.folder.place, change.seen.digest
    key = (place, digest, change.problem or change.digest)
    if key in _announced_rules:
        return
    _announced_rules.add(key)
    import click

    advice = "put a plain one there" if change.problem else f"`weft trust {shell_word(safe(place))}` shows the change"
    click.echo(f"{changed_rules_words(change)}; {advice}", err=True)


def rules_change(folder: str) -> ChangedRules | None:
    """How the rules of a folder that this person trusts differ from those that they saw; None where they do not, and of
    any other folder."""
    from weft.runtime.assembly.system_prompts import changed_rules

    seen = trust_store().seen_rules(folder)
    return None if seen is None else changed_rules(folder, seen, hidden_files)


def changed_rules_words(change: ChangedRules) -> str:
    """What became of the rules of a folder, and what agents are told meanwhile."""
    told = "not told it" if change.seen.text is None else "told what it said before"
    if change.problem:
        return f"{safe(change.problem)}: agents are {told}"
    what = "is gone" if change.present is None else "is new" if change.seen.text is None else "changed"
    return f"AGENTS.md in {safe(change.seen.folder.place)} {what} since you trusted it: agents are {told}"


def hidden_files() -> tuple[SecretFiles, Path]:
    """What this person hides from commands, and where it is noted what was."""
    from weft.runtime.sandbox.hidden_places import SecretFiles

    secrets = SecretFiles(more=load_sandbox_settings().secret_files, shown=trust_store().shown_files)
    return secrets, state_folder() / SANDBOX_PLACES


def is_plainly_seen(folder: str, path: str) -> bool:
    """Whether commands that work in a folder see a file of it though nobody showed it to them. One that is hidden where
    something stands in it is not, whatever stands in it now. `folder` has no links on its way."""
    from weft.runtime.sandbox.hidden_places import SecretFiles, search_workspace
    from weft.runtime.sandbox.profiles import is_beneath

    secrets = SecretFiles(more=load_sandbox_settings().secret_files)
    real = os.path.realpath(os.path.join(folder, path))
    if not (is_beneath(real, folder) and os.path.isfile(real)) or secrets.is_named(path) or secrets.is_named(real):
        return False
    return all(os.path.join(folder, entry.path) != real for entry in search_workspace(Path(folder), secrets).entries)


def ensure_not_led_away(file: str, descriptor: int | None = None) -> None:
    """Raises InvalidInput where a link in a folder that the person trusts leads from a path that they name out of it,
    or to a file that is hidden from commands: an agent may have made it so that the file is read. `descriptor` is what
    was opened at the path: another file lay there then where this is not what lies there now."""
    real = os.path.realpath(file)
    if real != os.path.abspath(file) and not _is_led_within(file, real):
        return
    if descriptor is not None and not _lies_at(descriptor, real):
        raise InvalidInput(f"{quoted(file, 300)} changes while it is read", "try again")


def _is_led_within(file: str, real: str) -> bool:
    """Whether a path that leads through a link has a folder on its way that the person trusts."""
    from weft.runtime.sandbox.profiles import is_beneath

    named = Path(os.path.abspath(file))
    ways = {os.path.realpath(way): way for way in (named, *named.parents)}  # of several ways there the outermost
    passed = False
    for folder in trust_store().folders():
        way = ways.get(folder.place)
        if way is None:
            continue
        passed = True
        if os.path.join(folder.place, named.relative_to(way)) == real:
            continue
        is_seen = os.path.isdir(real) or is_plainly_seen(folder.place, os.path.relpath(real, folder.place))
        if not (is_beneath(real, folder.place) and is_seen):
            raise InvalidInput(
                f"{quoted(file, 300)} leads to {quoted(real, 300)}, by a link in {folder.place}, where agents work",
                "name the file that is meant by its own path",
            )
    return passed


def _lies_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


def command_runner(ledger: Ledger | str | None, readable: Sequence[Path] = ()) -> CommandRunner:
    """The one that everything is started by in one process. `ledger`: the one that is open, or where it lies. It shows
    `readable` beside what the person's configuration names."""
    from weft.runtime.sandbox.bubblewrap import STRICT_VARIABLE, is_strict
    from weft.runtime.sandbox.command_runner import CommandRunner
    from weft.runtime.sandbox.sandbox_plan import PersonFolders
    from weft.runtime.sandbox.toolchains import manager_variables

    place = ledger if ledger is None or isinstance(ledger, str) else ledger.path
    clean_up_commands()
    return CommandRunner(
        protected_places(place),
        strict=is_strict(os.environ.get(STRICT_VARIABLE)),
        readable=[*map(Path, load_sandbox_settings().readable), *readable],
        person=PersonFolders(
            home=Path.home(),
            caches=sandbox_caches(),
            covered_places=state_folder() / SANDBOX_PLACES,
            variables=manager_variables(os.environ.get),
            identity=git_identity(),
            git_settings=git_settings(),
            command_notes=command_notes(),
        ),
    )


def sandbox_caches() -> Path:
    """Where it lies what package managers fetched inside sandboxes."""
    return user_cache() / SANDBOX_CACHES


def git_settings() -> tuple[Path, ...]:
    """The files of this person's own configuration of git and the machine's, also those that do not exist."""
    from weft.runtime.sandbox.git_settings import SYSTEM_SETTINGS, person_settings

    return *SYSTEM_SETTINGS, *person_settings(os.environ.get, Path.home())


def git_programs(folder: str) -> GitPrograms:
    """What of a folder this person's git runs."""
    from weft.runtime.sandbox.git_view import GitPerson, GitPrograms

    return GitPrograms(Path(folder), GitPerson(settings=tuple(map(str, git_settings())), home=Path.home()))


def git_identity() -> GitIdentity:
    """Who this person is in commits, by their global configuration of git: what `git config --global --includes` says
    of `user.name` and `user.email`. Files that are included only under a condition are not read."""
    from weft.runtime.sandbox.git_settings import GitIdentity, person_settings

    files = person_settings(os.environ.get, Path.home())
    values = dict(pair for file in files for pair in _user_settings(file, _MOST_INCLUDES))
    return GitIdentity(values.get("user.name", ""), values.get("user.email", ""))


def _user_settings(file: Path, levels: int) -> Iterator[tuple[str, str]]:
    from weft.runtime.sandbox.git_settings import CONFIG_BYTES, read_settings

    try:
        with file.open("rb") as opened:
            config = opened.read(CONFIG_BYTES)
    except OSError:  # as git does with a file that is not there or cannot be read
        return
    for setting in read_settings(config):
        if setting.key == "include.path" and levels:
            yield from _user_settings(file.parent / Path(setting.value).expanduser(), levels - 1)
        elif setting.section == "user":
            yield setting.key, setting.value


def nearby_ledger(option: str | None) -> str | None:
    """Where the ledger lies that is meant, for a command that does not open it; None where there is none to be used."""
    try:
        return find_ledger(option)
    except (LedgerMissing, NotTrusted):
        return None


# --- The resources of an open ledger: where what is kept of them lies, what acts on them, and what the person
# configured.

RESOURCE_SETTINGS_FILE = "resources.toml"
_FILES = "-files"
_LOOK_SECONDS = 30.0


class SnapshotSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of folders."""

    turns: bool = True
    """Whether the workspace of a turn is kept before and after each call that may change it."""
    file_bytes: int = 64 * 1024**2
    """A larger file is left out."""
    total_bytes: int = 8 * 1024**3
    """A folder that holds more is not kept."""
    files: int = 1_000_000


class DockerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the container engine is."""

    host: str | None = None
    """None: where DOCKER_HOST says, else its usual socket."""
    tar_image: str | None = None
    """An image of the engine that has `tar`. Podman needs one to read volumes."""


class ResourceSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The file `resources.toml`."""

    snapshots: SnapshotSettings = SnapshotSettings()
    docker: DockerSettings = DockerSettings()


def load_resource_settings() -> ResourceSettings:
    path = configuration_folder() / RESOURCE_SETTINGS_FILE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ResourceSettings()
    except ValueError as error:
        raise InvalidInput(f"{path}: {error}", "write it in UTF-8") from None
    import tomllib

    try:
        settings = msgspec.convert(tomllib.loads(text), ResourceSettings)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{path}: {error}", "docs/branches.md shows how it is written") from None
    limits = settings.snapshots
    if min(limits.file_bytes, limits.total_bytes, limits.files) < 1:
        raise InvalidInput(f"{path}: a limit of snapshots is below 1", "give numbers from 1 on")
    return settings


def folder_beside(file: str) -> Path:
    """Where what is kept of the resources of a ledger lies that is a file."""
    stem = beside_ledger(file)
    return stem.with_name(stem.name + _FILES)


def files_folder(ledger: Ledger) -> Path:
    """Where what is kept of the resources of a ledger lies."""
    if Site.of(ledger.path) is Site.FILE:
        return folder_beside(ledger.path)
    stem = beside_ledger(ledger.path)
    from weft.ledger.api import ResourceLog

    name, *former = (stem.with_name(f"{SERVER}{id}{_FILES}") for id in ResourceLog(ledger).own_ids())
    for earlier in (*former, stem.with_name(stem.name + _FILES)):
        if not name.exists() and earlier.is_dir():
            with suppress(FileNotFoundError):  # somebody else has just done so
                earlier.rename(name)
    return name


def machine_of(ledger: Ledger) -> str | None:
    """What tells this machine from others that share the ledger; None: a file, which lies with its places."""
    return None if Site.of(ledger.path) is Site.FILE else this_machine()


def ledger_files(ledger: Ledger) -> Iterator[Path]:
    """The files and folders that a ledger consists of and that lie beside it, as far as they are there."""
    stem = beside_ledger(ledger.path)
    try:
        names = os.listdir(stem.parent)
    except FileNotFoundError:
        return
    from weft.runtime.sandbox.hidden_places import BESIDE_LEDGERS

    own = files_folder(ledger).name
    for name in names:
        if name in (stem.name, own) or name.startswith(tuple(stem.name + ending for ending in BESIDE_LEDGERS)):
            yield stem.with_name(name)


def kept_files(folder: Path) -> KeptFiles:
    """What is kept in a folder beside a ledger."""
    from weft.runtime.resources.controller import KeptFiles

    return KeptFiles(folder, path_folders=outside_of_work(os.environ.get("PATH", "")))


def directory_driver(ledger: Ledger, settings: SnapshotSettings, secrets: SecretFiles | None = None) -> DirectoryDriver:
    """Keeps folders for a ledger. Neither the ledger nor what lies beside it is in any snapshot, and of ignored files
    no secrets. What commands left that were cut off is taken away first: none is kept, compared or put back."""
    from weft.runtime.folder_snapshots.file_store import FileStore
    from weft.runtime.folder_snapshots.snapshot_objects import SnapshotLimit
    from weft.runtime.resources.controller import TREES
    from weft.runtime.resources.local_drivers import DirectoryDriver
    from weft.runtime.sandbox.hidden_places import HiddenFiles

    clean_up_commands()
    limit = SnapshotLimit(file_bytes=settings.file_bytes, total_bytes=settings.total_bytes, files=settings.files)
    store = FileStore(
        files_folder(ledger) / TREES,
        path_folders=outside_of_work(os.environ.get("PATH", "")),
        apart=lambda: ledger_files(ledger),
        hidden=lambda folder: HiddenFiles(folder, *hidden_files()),
    )
    return DirectoryDriver(store, limit, machine=machine_of(ledger), secrets=secrets)


def resource_drivers(ledger: Ledger) -> Drivers:
    """What acts on resources of a ledger: folders, files, addresses, and a container engine, which is connected to when
    it is first needed."""
    from weft.runtime.resources.container_engine import DEFAULT_ADDRESS, ContainerEngine
    from weft.runtime.resources.controller import ARCHIVES, COPIES
    from weft.runtime.resources.docker_drivers import docker_drivers
    from weft.runtime.resources.drivers import Drivers
    from weft.runtime.resources.local_drivers import FileDriver, UriDriver
    from weft.runtime.resources.tar_archives import ArchiveStore

    settings, folder = load_resource_settings(), files_folder(ledger)
    address = settings.docker.host or os.environ.get("DOCKER_HOST") or DEFAULT_ADDRESS
    return Drivers(
        directory_driver(ledger, settings.snapshots),
        FileDriver(folder / COPIES),
        UriDriver(look_at_address),
        *docker_drivers(
            lambda: ContainerEngine(address), ArchiveStore(folder / ARCHIVES), tar_image=settings.docker.tar_image
        ),
        folder=folder,
        machine=machine_of(ledger),
    )


def resource_controller(ledger: Ledger) -> ResourceController:
    from weft.runtime.resources.controller import ResourceController

    return ResourceController(ledger, resource_drivers(ledger))


def look_at_address(address: str) -> int:
    """The status of the answer to a request for an address of the web, by the rules of `fetch_url`: plain addresses of
    public hosts, without keys. Raises OutsideError."""
    import asyncio

    from weft.kernel.errors import ConnectionForbidden
    from weft.runtime.egress.connections import fetch_page
    from weft.runtime.tool.tool_contract import ToolFailure
    from weft.runtime.tools.fetch_url import FETCH_RULES, parse_url

    try:
        url = str(parse_url(address))
    except ToolFailure as failure:
        raise ConnectionForbidden(failure.message) from None
    return asyncio.run(fetch_page(url, FETCH_RULES, 0, _LOOK_SECONDS)).status


# --- What is done about commands in the sandbox whose weft was killed before it could look at what they had left.

COMMANDS = "commands"
"""The folder of the user's state in which commands are noted that run in the sandbox."""


def command_notes() -> Path:
    """Where notes lie of the commands that run in the sandbox."""
    return state_folder() / COMMANDS


def clean_up_commands() -> None:
    """Take away what they left, and say what. To be called before something is done where they may have worked."""
    if not command_notes().is_dir():  # as nearly always
        return
    import click

    from weft.runtime.sandbox.leftovers import CommandNotes

    for command in CommandNotes(command_notes()).clean_up():
        for sentence in command.sentences:
            click.echo(safe(sentence), err=True)


# --- What the resources of an open ledger are acted on by.


class ActingResources(Resources):
    """`ledger.resources` of a ledger that `weft.open` opened: what is recorded of resources, and what acts on them.
    Only the ledger's owner acts on them, in a ledger that may act."""

    def declare(
        self, place: str, *, kind: str | None = None, name: str | None = None, session: str | None = None
    ) -> Resource:
        """A folder, a file, an address with its scheme, or docker:volume/NAME, docker:container/NAME, docker:image/NAME
        as a resource of a session, else of whoever declares it. What is declared already is described anew."""
        from weft.runtime.resources.drivers import guessed_kind

        controller = self._controller("declare a resource")
        checked_text(place, "place")
        wanted = guessed_kind(place) if kind is None else checked_member(ResourceKind, kind, "kind")
        return controller.add(controller.drivers.of(wanted), place, name=name, session=session)

    def probe(self, resource: str) -> ResourceLiveness:
        """Look whether it is still there, and record that."""
        return self._controller("look at a resource").probe(self.get(resource))

    def take_snapshot(self, resource: str, *, method: str | None = None) -> Snapshot:
        """Keep what it is like now. One that could not be taken is recorded, with its error."""
        record = self.get(resource)
        if not record.can(ResourceCapability.SNAPSHOT):
            raise Unsupported(f"nothing can be kept of a {record.kind.value}", "see what its capabilities name")
        return self._controller("take a snapshot").snapshot(record, method=method)

    def restore(self, snapshot: str, *, place: str | None = None, session: str | None = None) -> ResourceRestore:
        """Bring back what a snapshot kept, as a new resource: at a place, or for a session; without either, over the
        resource itself, of which a snapshot is taken before. One that failed is recorded, with its error."""
        controller, record = self._controller("restore a snapshot"), self.snapshot(snapshot)
        resource, in_place = self.get(record.resource), place is None and session is None
        controller.drivers.ensure_here(resource)
        controller.refuse_unsupported(record, in_place=in_place)
        if place is not None:
            place = controller.absolute_place(resource, checked_text(place, "place"))
        elif session is not None:
            place = controller.drivers.of(resource.kind).new_place(resource, self._ledger.session(session).label)
        else:
            controller.keep_present(resource)
        return controller.restore(record, place=place, session=session)

    def mount(
        self, resource: str, path: str, *, mode: str = "rw", run: str | None = None, container: str | None = None
    ) -> Resource:
        """Record that a turn that runs, or a container, sees it under a path."""
        return self._controller("mount a resource").log.mount(resource, path, mode=mode, run=run, container=container)

    def unmount(self, resource: str, *, run: str | None = None, container: str | None = None) -> Resource:
        """Record that it sees it no more."""
        return self._controller("unmount a resource").log.unmount(resource, run=run, container=container)

    def plan_fork(self, turn: str, label: str) -> list[PlanLine]:
        """What a fork at a turn, with this label, would do with each resource of the session. Nothing is changed."""
        return self._planner().propose(turn, checked_label(label))

    def fork(
        self, turn: str, label: str, plan: Sequence[PlanLine] | None = None, *, agent: str | None = None
    ) -> ForkedResources:
        """A fork at a turn with copies of its resources, by a plan of `plan_fork`, else as that proposes."""
        from weft.runtime.resources.turn_files import PlanLine

        planner = self._planner()
        if plan is None:
            lines = planner.propose(turn, checked_label(label))
        else:
            lines = [checked_record(line, PlanLine, "plan") for line in checked_list(plan, "plan")]
        return planner.carry_out(turn, label, lines, persona=agent)

    def _planner(self) -> ForkPlanner:
        from weft.runtime.resources.turn_files import ForkPlanner

        self._ensure_owner("fork resources")
        return ForkPlanner(self._open_ledger, resource_drivers(self._open_ledger))

    def _controller(self, act: str) -> ResourceController:
        self._ensure_owner(act)
        return resource_controller(self._open_ledger)

    def _ensure_owner(self, act: str) -> None:
        """What lies outside of the ledger is the person's, whoever may do what in it."""
        if self._ledger.authority != LOCAL:
            raise self._ledger.authority.refusal("resource", act)

    @property
    def _open_ledger(self) -> Ledger:
        from weft.ledger.api import Ledger

        assert isinstance(self._ledger, Ledger), "the resources of an open ledger"
        return self._ledger


# --- What verbs reach beside a ledger.


def ledger_directories(ledger: Ledger) -> DirectoryDriver:
    """What keeps working directories for a ledger, as the person configured it."""
    return directory_driver(ledger, load_resource_settings().snapshots)


def self_running_changes(changes: Iterable[ChangedPath], places: Iterable[str]) -> dict[str, str]:
    """Those of the changed paths of these directories that are still there and that something runs by itself."""
    from weft.runtime.folder_snapshots.snapshot_objects import ChangeStatus, readable_path

    paths = [readable_path(change.path) for change in changes if change.status is not ChangeStatus.DELETED]
    if not paths:
        return {}
    runners: dict[str, str] = {}
    for place in places:
        runners |= git_programs(place).self_running(paths)
    return {path: runners[path] for path in paths if path in runners}


def ignored_self_running(files: TurnFiles, turns: Sequence[str]) -> dict[str, str]:
    """What of the files that something runs by itself is not what it was before these turns, whether a folder ignores
    it or not: no snapshot of the files tells of what rules leave out, and a command can write such rules."""
    paths_of_place: dict[str, list[str]] = {}
    for place, path in files.changed_programs_since(turns):
        paths_of_place.setdefault(place, []).append(path)
    runners: dict[str, str] = {}
    for place, paths in paths_of_place.items():
        runners |= git_programs(place).self_running(paths)
    return runners


class LedgerMachine:
    """What verbs reach beside a ledger, as the person configured it. It is a `Machine`. `acting` tells in whose name
    models are asked, where that is not the person's own."""

    def __init__(
        self,
        ledger: Ledger,
        trust: TrustStore,
        acting: Callable[[], ExecutionContext] | None = None,
        zone: tzinfo = timezone.utc,  # noqa: UP017
    ) -> None:
        self._ledger, self.trust, self._acting, self.zone = ledger, trust, acting, zone

    def directories(self) -> DirectoryDriver:
        return ledger_directories(self._ledger)

    def drivers(self) -> Drivers:
        return resource_drivers(self._ledger)

    def self_running(self, changes: Iterable[ChangedPath], places: Iterable[str]) -> dict[str, str]:
        return self_running_changes(changes, places)

    def ignored_self_running(self, files: TurnFiles, turns: Sequence[str]) -> dict[str, str]:
        return ignored_self_running(files, turns)

    def text_of(self, path: str) -> str | None:
        file = Path(path)
        if not file.is_file():
            return None
        try:
            return file.read_bytes().decode()
        except OSError as error:
            raise path_error(file, error) from error
        except UnicodeDecodeError:
            raise InvalidInput(f"{path} is not UTF-8 text", "blame works on lines of text") from None

    def acting(self) -> ExecutionContext:
        from weft.surfaces.cli.credentials import person_acting

        return person_acting() if self._acting is None else self._acting()

    def variable(self, name: str) -> str | None:
        self._ledger.trust.ensure("look up variables of the environment")
        return os.environ.get(name)

    def rules(self, workspace: str | None) -> WorkspaceRules | None:
        from weft.surfaces.cli.trust import workspace_of

        folder = workspace_of(None) or workspace
        return None if folder is None else trusted_rules()(folder)

    def prices(self, file: str | None) -> PriceTable:
        from weft.surfaces.cli.user_files import prices_in_force

        return prices_in_force(file)


class NoMachine:
    """In place of the folders and containers of the machine, for whoever is not its owner."""

    zone = timezone.utc  # noqa: UP017

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def prices(self, file: str | None) -> PriceTable:
        """Public list prices: those that the owner configured are theirs."""
        from weft.ledger.api import shipped_prices

        return shipped_prices() if file is None else self.__getattr__("prices")

    def __getattr__(self, name: str) -> Any:
        raise self._authority.refusal(MACHINE_RIGHT, "reach the files of this machine", "its owner can")
