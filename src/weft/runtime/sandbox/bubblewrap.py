"""A sandbox for code that nobody vouches for: bubblewrap, a process in namespaces of its own.

Commands run in it once; a server in it, a program of our own, answers until it is stopped.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Unpack

from msgspec import Struct, structs

from weft.kernel.errors import InvalidInput, StoreFailed, Unsupported
from weft.runtime.sandbox.confinement import (
    CHECK_SECONDS,
    MEMORY_FOLDERS,
    ConfinedRun,
    Confinement,
    delegated_cgroup,
    system_call_filter,
)
from weft.runtime.sandbox.git_leftovers import ChangedGit, carry_upstreams, disarm_repositories
from weft.runtime.sandbox.git_settings import GitLeftovers
from weft.runtime.sandbox.hidden_places import ProtectedPlaces, ensure_hidden, identity_at, named_secrets
from weft.runtime.sandbox.leftovers import CommandNote, CommandNotes, Leftovers, OpenNote
from weft.runtime.sandbox.processes import (
    DEFAULT_LIMITS,
    STARTS,
    Ending,
    Limits,
    LineProcess,
    PreparedStart,
    ProcessOutcome,
    ServerProcess,
    StartAgain,
    run_process,
)
from weft.runtime.sandbox.profiles import is_beneath, mount_options
from weft.runtime.sandbox.remembered_places import PlaceMemory, RememberedPlace, memory_of
from weft.runtime.sandbox.sandbox_plan import (
    HOME_BYTES,
    NO_FOLDERS,
    PROGRAM_FOLDER,
    SandboxPlan,
    Surroundings,
    SystemFiles,
    WorkspaceView,
    has_person_settings,
    kernel_options,
    plan_sandbox,
    workspace_place,
    workspace_view,
    written_folders,
)
from weft.store.sqlite.connection import hold_log

# --- Sees whether what covers a file or folder of the workspace is still on it while a command runs.

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class CoverWatch:
    """Holds what is covered open: the number of a file that is gone would be given to the next one. Close it."""

    def __init__(self, places: Iterable[str]) -> None:
        """Before it is looked from inside whether they are covered. Raises StartAgain where one is gone."""
        self._names: dict[int, str] = {}
        place = ""
        try:
            for place in places:
                descriptor = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                self._names[descriptor] = _present_path(descriptor)
        except OSError as error:
            self.close()
            if error.errno in _GONE:
                raise StartAgain(f"{place} was moved") from None
            raise StoreFailed(
                f"what is hidden from the command cannot be watched: {error.strerror}", "close some files"
            ) from None

    def uncovered(self) -> str | None:
        """A path that another file has now, or none. What is moved with a folder above it takes its cover along."""
        for descriptor, path in self._names.items():
            present = _present_path(descriptor)
            if present != path:
                if os.path.basename(present) != os.path.basename(path):  # also where it is gone: then it says so
                    return path
                self._names[descriptor] = present
        return None

    def close(self) -> None:
        while self._names:
            os.close(self._names.popitem()[0])


def _present_path(descriptor: int) -> str:
    """Where a file lies now, as the kernel says it."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


# --- A sandbox for code that nobody vouches for: bubblewrap, a process of its own in namespaces of its own.

SEARCHED = "/usr/local/bin:/usr/bin:/bin"
"""Where bubblewrap is looked for. Not in PATH, which anybody may have changed."""
STRICT_VARIABLE = "WEFT_SANDBOX"
_TRIAL_LIMITS = Limits(seconds=20)
_STATUS = "/proc/self/status"
_ENDING_SECONDS = 0.6
"""Within these a command is killed from which something is uncovered."""
_LOOKED_AT_BYTES = 64 * 1024
"""Of the output of a command that failed, for names of what was hidden from it."""
_ADVICE = "allow user namespaces without privileges, and have bubblewrap 0.8 or later"
_FORBIDDING = {
    "user/max_user_namespaces": ("0", "more than 0"),
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0, or give bwrap a profile of AppArmor that allows userns"),
}
"""Settings of the kernel that forbid user namespaces with the first value, and what allows them."""
NO_CGROUP = (
    "memory and processes of a command are not limited together by the kernel: it limits each process (rlimits), and "
    f"all of them are measured every {CHECK_SECONDS * 1000:.0f} ms; no cgroup of version 2 with the controllers memory "
    "and pids is delegated to this user"
)
NO_FILTER = "system calls are not filtered: there is no filter for this processor"
NO_KEYRING = "programs share the session keyring: a new one could not be joined"
NO_DEVICES = (
    "this runs as root, and programs can change the modes of the machine's device nodes: none can be made for them"
)


class Sandbox(Struct, frozen=True):
    """A working bubblewrap, and what it is strengthened with here."""

    program: str
    call_filter: bytes | None = None
    cgroup: Path | None = None
    gaps: tuple[str, ...] = ()
    """What cannot be had on this machine, in sentences."""


def is_strict(setting: str | None) -> bool:
    """What the variable WEFT_SANDBOX asks for."""
    if setting in (None, "", "strict"):
        return setting == "strict"
    raise InvalidInput(f"{STRICT_VARIABLE} is {setting!r}", "set it to strict, or not at all")


async def find_sandbox(searched: str = SEARCHED, *, strict: bool = False) -> Sandbox:
    """The sandbox of this machine, tried out; `Unsupported` says why there is none, or none without gaps if strict."""
    program = shutil.which("bwrap", path=searched)
    if program is None:
        raise Unsupported(
            "there is no sandbox here: bubblewrap is not installed", "on Linux install the package bubblewrap"
        )
    sandbox = Sandbox(program, system_call_filter(os.uname().machine), delegated_cgroup())
    gaps = await _observed_gaps(sandbox)
    if strict and gaps:
        raise Unsupported(
            f"there is no strict sandbox here: {'; '.join(gaps)}", f"mend that, or unset {STRICT_VARIABLE}"
        )
    return Sandbox(program, sandbox.call_filter, sandbox.cgroup, gaps)


async def _observed_gaps(sandbox: Sandbox) -> tuple[str, ...]:
    """Run something harmless and look at how it is confined."""
    confinement = Confinement(limits=_TRIAL_LIMITS, call_filter=sandbox.call_filter, cgroup=sandbox.cgroup)
    nothing = ProtectedPlaces(ledgers=(), folders=())  # nothing but the system is shown
    guard = SandboxGuard(sandbox, nothing, confinement, Surroundings())
    argv = ["cat", _STATUS]
    try:
        outcome = await run_process(argv, environment={}, folder=Path("/"), limits=_TRIAL_LIMITS, guard=guard)
    except StoreFailed as error:
        raise Unsupported(f"there is no sandbox here: {error}", error.advice) from None
    is_filtered = b"Seccomp:\t2" in outcome.stdout
    if not outcome.succeeded or (sandbox.call_filter is not None and not is_filtered):
        why, advice = forbidden_namespaces() or ("bubblewrap does not work", _ADVICE)
        raise Unsupported(f"there is no sandbox here: {why} ({_last_line(outcome)})", advice)
    held = {
        NO_CGROUP: sandbox.cgroup is not None,
        NO_FILTER: is_filtered,
        NO_KEYRING: guard.run is not None and guard.run.has_own_keyring,
        NO_DEVICES: guard.run is not None and guard.run.has_private_devices,
    }
    return tuple(gap for gap, is_held in held.items() if not is_held)


def forbidden_namespaces(settings: Path = Path("/proc/sys")) -> tuple[str, str] | None:
    """Which setting of the kernel forbids user namespaces, and what to do about it; None where none is known to."""
    for name, (forbidding, allowing) in _FORBIDDING.items():
        try:
            value = (settings / name).read_text().strip()
        except OSError:  # this kernel has no such setting
            continue
        if value == forbidding:
            words = f"sysctl {name.replace('/', '.')}"
            return f"this machine forbids user namespaces, for {words} is {value}", f"set {words} to {allowing}"
    return None


def _last_line(outcome: ProcessOutcome) -> str:
    """What it says of why it failed."""
    lines = outcome.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else str(outcome.ending)


async def run_sandboxed(
    sandbox: Sandbox,
    argv: Sequence[str],
    protected: ProtectedPlaces,
    *,
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    limits: Limits = DEFAULT_LIMITS,
    limit_address_space: bool = True,
    extra_memory: int = 0,
    **surroundings: Unpack[Surroundings],
) -> ProcessOutcome:
    """Run a command, and wait for its end.

    `limit_address_space=False` is for programs that reserve more than they use. `extra_memory` is what a runtime takes
    for itself, beside the memory that the limit leaves to its program.
    """
    confinement = Confinement(
        limits=limits,
        call_filter=sandbox.call_filter,
        cgroup=sandbox.cgroup,
        limit_address_space=limit_address_space,
        extra_memory=extra_memory,
    )
    guard = SandboxGuard(sandbox, protected, confinement, surroundings)
    outcome = await run_process(
        argv, environment=environment or {}, folder=Path("/"), stdin=stdin, limits=limits, guard=guard
    )
    if outcome.ending is Ending.EXITED and not guard.has_started_program:
        raise Unsupported(f"the sandbox could not be made: {_last_line(outcome)}", _ADVICE)
    outcome = structs.replace(
        outcome, git=guard.git_leftovers, uncovered=guard.uncovered, shared_files=guard.shared_files
    )
    if outcome.succeeded or guard.plan is None:
        return outcome
    ends = (output[-_LOOKED_AT_BYTES:].decode(errors="replace") for output in (outcome.stderr, outcome.stdout))
    words = " ".join((*argv, *ends))
    folders = (f"{folder}/" for folder in named_secrets(guard.plan.gathered, words))
    return structs.replace(outcome, hidden=(*named_secrets(guard.plan.secrets, words), *folders))


def start_sandboxed(
    sandbox: Sandbox,
    argv: Sequence[str],
    protected: ProtectedPlaces,
    *,
    environment: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    **surroundings: Unpack[Surroundings],
) -> LineProcess:
    """Start a command that is spoken with in lines. It may reserve more memory than it uses."""
    confinement = Confinement(limits=limits, call_filter=sandbox.call_filter, cgroup=sandbox.cgroup)
    guard = SandboxGuard(sandbox, protected, confinement, surroundings)
    return LineProcess(argv, environment=environment or {}, folder=Path("/"), limits=limits, guard=guard)


class SandboxGuard:
    """The one place where a sandbox is put together: bubblewrap makes it, and starts the command in it. What the
    command finds is planned anew at each start. A server is the first process of its process namespace, and can write
    nowhere, not even in memory."""

    check_seconds = CHECK_SECONDS

    def __init__(
        self,
        sandbox: Sandbox,
        protected: ProtectedPlaces,
        confinement: Confinement,
        surroundings: Surroundings,
        *,
        is_server: bool = False,
    ) -> None:
        self._sandbox, self._protected, self._confinement = sandbox, protected, confinement
        self._surroundings, self._is_server = surroundings, is_server
        self._place = workspace_place(surroundings.get("workspace"))  # what can never be one is refused at once
        protected.ensure_outside([*([] if self._place is None else [self._place]), *surroundings.get("shown", ())])
        self._identity = None if self._place is None else _identity(self._place)
        self._starts = 0
        self.run: ConfinedRun | None = None
        self.plan: SandboxPlan | None = None
        self._view = WorkspaceView()
        self._memory: PlaceMemory | None = None
        self._absent_before: frozenset[RememberedPlace] = frozenset()
        """What the look before missed."""
        self._enters_fetched = True
        self._held_logs: list[Callable[[], None]] = []
        self._watch: CoverWatch | None = None
        self.uncovered: str | None = None
        """What was replaced while the command ran, so that it was no longer covered."""
        self._note: OpenNote | None = None
        self._interrupted: tuple[str, ...] = ()
        self._home = -1
        """The home folder inside, which is there as long as somebody has it open."""
        self.git_leftovers = GitLeftovers()

    def before_start(self, argv: Sequence[str], environment: Mapping[str, str]) -> PreparedStart:
        try:
            return self._prepare_start(argv, environment)
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            raise InvalidInput(
                f"what a command in {self._place} must not write takes more than the {most} files open that this "
                "process may have: repositories of git, files of settings, files of secrets",
                "allow more with `ulimit -n`, or make a folder with fewer of them the workspace",
            ) from None

    def _prepare_start(self, argv: Sequence[str], environment: Mapping[str, str]) -> PreparedStart:
        self.run = self.uncovered = None
        self._starts += 1
        self._let_go()
        surroundings, place = self._surroundings, self._place
        person, is_read_only = surroundings.get("person", NO_FOLDERS), surroundings.get("read_only", False)
        notes = None
        if person.command_notes is not None and place is not None:
            notes = CommandNotes(person.command_notes)
        remembered = None if place is None else self._lock_workspace(place, notes)
        plan = self.plan = plan_sandbox(self._protected, surroundings, place, self._view, remembered)
        self._enters_fetched = remembered is None
        if self._memory is not None:
            self._ensure_none_is_moved(plan, self._memory)
            self._memory.save(plan.covered, plan.absent)
        files = {f"{PROGRAM_FOLDER}/{name}": data for name, data in (surroundings.get("files") or {}).items()}
        run = self.run = ConfinedRun(
            structs.replace(
                self._confinement,
                files=files,
                folders=tuple(written_folders(plan)),
                caches=None if plan.caches is None else str(plan.caches),
                unseen=self._unseen_folders(plan),
                memory_folders={plan.home: HOME_BYTES},
            )
        )
        walls = [
            self._sandbox.program, "--unshare-all", "--unshare-user", "--die-with-parent", "--uid", "1000",
            "--gid", "1000", "--cap-drop", "ALL", "--hostname", "sandbox", *run.options,
            *kernel_options(surroundings.get("system", SystemFiles.PROGRAMS), run.devices),
            *mount_options(plan.mounts, run.mounted_file),
        ]  # fmt: skip
        if place is None:
            walls += ["--dir", PROGRAM_FOLDER]
        if self._is_server:
            walls += [
                "--as-pid-1",
                *(word for folder in (*MEMORY_FOLDERS, plan.home) for word in _remount_read_only(folder)),
            ]
        if notes is not None and place is not None and self._view.git is not None and not is_read_only:
            caches = None if plan.caches is None else str(plan.caches)
            note = CommandNote.of(place, self._view.git, run.started, self._unseen_folders(plan), caches)
            self._note = notes.write(note)
        start = surroundings.get("folder") or place or PROGRAM_FOLDER
        return PreparedStart(
            argv=[*walls, *_remount_read_only("/"), "--chdir", start, "--", *argv],
            environment={**plan.environment, **environment},
            descriptors=run.before_start(),
        )

    def _lock_workspace(self, place: str, notes: CommandNotes | None) -> Collection[RememberedPlace] | None:
        """Look at the workspace, and hold what must stay while the command runs; what is remembered of it.

        The order of what is held: the lock on starts comes first, and nobody who holds anything else waits for it.
        Without it another command could be between its own look and its mounts. The view of git, the logs of ledgers
        and the note are taken while it is held. It is released when the program may run, the others at the end. For
        the cleaning at the end it is waited for again while those are held: none of them keeps a start from its end,
        and that wait is short."""
        person, is_read_only = self._surroundings.get("person", NO_FOLDERS), self._surroundings.get("read_only", False)
        self._memory = self._memory or memory_of(person.covered_places, Path(place), can_write=not is_read_only)
        if self._memory is not None:
            self._memory.lock.acquire()
        running_since = None
        if notes is not None:
            commands = notes.clean_up(place)
            for command in commands:
                command.ensure_cleaned(place)
            self._interrupted += tuple(sentence for command in commands for sentence in command.sentences)
            running_since = notes.running_since(place)
        self._view = workspace_view(Path(place), person, is_read_only=is_read_only, trusted_until=running_since)
        remembered = None if self._memory is None else self._memory.load()
        if not is_read_only:  # else the last of its connections elsewhere would uncover the names of its log
            self._held_logs += [hold_log(ledger) for ledger in self._protected.open_ledgers(place)]
        return remembered

    def after_start(self, process_id: int) -> None:
        assert self.run is not None, "it was prepared"
        self.run.after_start(process_id, None if self._place is None else self.ensure_unchanged)
        if self._place is not None and not self.run.has_started_program and self._starts < STARTS:
            raise StartAgain("bubblewrap could not make it")  # the last one says itself why
        if self._memory is not None:
            self._memory.lock.release_start()

    def ensure_unchanged(self, first_process: int) -> None:
        """Raises StartAgain unless the workspace is the folder that was meant, and what is hidden in it is hidden."""
        assert self.plan is not None, "it was planned"
        assert self._place is not None, "without a workspace nothing can have changed"
        try:
            inside = os.open(f"/proc/{first_process}/root{self._place}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise StartAgain(f"the workspace cannot be seen inside ({error.strerror})") from None
        try:
            if _identity(inside) != self._identity:
                raise StartAgain("another folder took the place of the workspace")
            planned = {
                mount.place[len(self._place) + 1 :]: self.plan.numbers.get(mount.place)
                for mount in self.plan.mounts
                if mount.place != self._place and is_beneath(mount.place, self._place)
            }
            self._watch = CoverWatch(self._watched_places())
            secrets, enters_fetched = self._protected.secrets, self._enters_fetched
            ensure_hidden(inside, planned, Path(self._place), secrets, enters_fetched=enters_fetched)
            for mount in self.plan.mounts:
                identity = None if mount.is_cover else self.plan.identities.get(mount.place)
                if identity is not None and identity_at(mount.place, f"/proc/{first_process}/root") != identity:
                    raise StartAgain(f"something else was mounted at {mount.place}")
            self._home = os.open(
                f"/proc/{first_process}/root{self.plan.home}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
            )
            if self._note is not None:
                self._note.add_process(first_process)
        finally:
            os.close(inside)

    def _ensure_none_is_moved(self, plan: SandboxPlan, memory: PlaceMemory) -> None:
        """Raises StartAgain where something that was hidden is nowhere, and another command runs that could have moved
        it ahead of the search. Where the person removed it, that command is killed, and the next look is alone. Raises
        StoreFailed where the next look misses the same: no further one would tell more."""
        absent = [place for place in plan.absent if not (place.came_beside or place.is_elsewhere)]
        if not absent or memory.lock.is_alone:
            return
        why = f"{absent[0].text}, which is hidden from commands, is not found, and another command that runs could have"
        if frozenset(absent) == self._absent_before:
            raise StoreFailed(f"{why} moved it", "put it back, or run this again when the other command has ended")
        self._absent_before = frozenset(absent)
        memory.lock.wait_to_be_alone(_ENDING_SECONDS)
        raise StartAgain(f"{why} moved it")

    def _watched_places(self) -> Iterator[str]:
        """What is covered in the workspace, but for what Weft itself replaces beside a ledger, and for sockets, which
        go when somebody's program ends."""
        assert self.plan is not None, "it was planned"
        replaced = self._protected.replaced_beginnings
        for mount in self.plan.mounts:
            is_inside = self._place is not None and is_beneath(mount.place, self._place)
            is_left_alone = mount.place in self.plan.sockets or mount.place.startswith(replaced)
            if mount.is_cover and is_inside and not is_left_alone:
                yield mount.place

    @property
    def has_started_program(self) -> bool:
        return self.run is not None and self.run.has_started_program

    @property
    def shared_files(self) -> tuple[str, ...]:
        """When it has ended: files of the workspace that changed and have another name elsewhere."""
        place, leftovers = self._place, {} if self.run is None else self.run.leftovers
        inner = {folder: left_there for folder, left_there in leftovers.items() if place and is_beneath(folder, place)}
        return tuple(
            os.path.normpath(os.path.join(os.path.relpath(folder, place), path))
            for folder, left_there in inner.items()
            for path in left_there.shared
        )

    def check(self) -> Ending | None:
        if self._is_uncovered() or (self._view.git is not None and not self._view.git.is_intact()):
            return Ending.UNCOVERED
        return None if self.run is None else self.run.check()

    def _is_uncovered(self) -> bool:
        if self._watch is not None and self.uncovered is None:
            self.uncovered = self._watch.uncovered()
        return self.uncovered is not None

    def after_end(self, ending: Ending) -> Ending:
        try:
            if self._is_uncovered() and ending is Ending.EXITED:
                ending = Ending.UNCOVERED
            if self.run is not None:
                try:
                    lock = None if self._memory is None else self._memory.lock
                    ending = self.run.after_end(ending, None if lock is None else lock.acquire_for_cleaning)
                finally:  # what was found is cleaned, whatever became of the rest
                    self._disarm_repositories(self.run)
            is_whole = self.run is None or not any(left_there.missed for left_there in self.run.leftovers.values())
            is_whole = is_whole and not self.git_leftovers.not_cleaned
            if self._note is not None and is_whole:  # else whoever comes next looks at it again
                self._note.remove()
        finally:
            self._let_go()
            if self._watch is not None:
                self._watch.close()
                self._watch = None
            while self._held_logs:
                self._held_logs.pop()()
            if self._memory is not None:
                self._memory.close()
                self._memory = None
        return ending

    def _let_go(self) -> None:
        """Of what one attempt to start held."""
        self._view.close()
        if self._home >= 0:
            os.close(self._home)
            self._home = -1
        if self._note is not None:
            self._note.close()
            self._note = None

    def _disarm_repositories(self, run: ConfinedRun) -> None:
        """Before what it held for git is let go: until then nothing else may be found there by the person's git."""
        git = self._view.git
        if self._place is not None and git is not None and not self._surroundings.get("read_only", False):
            tree = None if git.tree is None else git.tree.folder
            changed = ChangedGit(
                changed={folder: run.leftovers[folder].repositories for folder in run.leftovers if folder != tree},
                pointers={
                    folder: left_there.pointers for folder, left_there in run.leftovers.items() if folder != tree
                },
                replaced=git.replaced_settings(),
                made=git.made_settings(),
                links=git.replaced_links(),
                unseen=self._unseen_folders(self.plan),
            )
            folders = git.folders_now()
            leftovers = disarm_repositories(self._place, structs.replace(git.view, folders=folders), changed)
            removed = [path for folder in run.leftovers.values() for path in folder.removed_links]
            failures: tuple[str, ...] = ()
            try:
                if git.tree is not None:
                    refused = git.tree.carry_back()
                    failures = tuple(f"not staged, for it lies above the workspace: {path}" for path in refused)
            except (StoreFailed, OSError) as error:
                failures = (f"what was staged in the sandbox is not staged outside: {error}",)
            upstreams = carry_upstreams(folders, git.branches)
            self.git_leftovers = structs.replace(
                leftovers,
                taken_away=(*removed, *leftovers.taken_away),
                read_only=git.view.odd,
                upstreams=upstreams,
                failures=failures,
                not_cleaned=(*_missed_paths(run.leftovers), *leftovers.not_cleaned),
                interrupted=self._interrupted,
                has_lost_settings=self._home >= 0 and has_person_settings(self._home),
            )

    def _unseen_folders(self, plan: SandboxPlan | None) -> tuple[str, ...]:
        """Names of folders that the command can write to and that are not looked through when it has ended: the
        caches, also those of other workspaces, and what git has in a subfolder."""
        names = []
        if plan is not None and plan.caches is not None:
            with suppress(OSError):
                names = os.listdir(plan.caches.parent)
        if self._view.git is not None and self._view.git.tree is not None:
            names.append(self._view.git.tree.name)
        return tuple(names)


def _missed_paths(leftovers: Mapping[str, Leftovers]) -> Iterator[str]:
    for folder, left_there in leftovers.items():
        for path in left_there.missed:
            yield f"{folder}/{path}"


def _identity(folder: str | int) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _remount_read_only(folder: str) -> tuple[str, str]:
    return "--remount-ro", folder


# --- A server in the sandbox: a program of our own that answers until it is stopped, and runs what nobody vouches for.

_CHUNK_BYTES = 64 * 1024
_LOST = {
    Ending.TOO_MUCH_MEMORY: "it took more memory than it may",
    Ending.TOO_MANY_PROCESSES: "it had more processes and threads than it may",
    Ending.TOO_MUCH_DISK: "it made more files than it may",
    Ending.UNCOVERED: "what it must not write was replaced from outside meanwhile",
}


class ServerLost(Exception):
    """The server ended, said nothing in time or took more than it may. It must be stopped."""


class SandboxedServer:
    """A running server. `limits.seconds` and `limits.output` are the caller's to keep."""

    def __init__(
        self,
        sandbox: Sandbox,
        argv: Sequence[str],
        protected: ProtectedPlaces,
        *,
        files: Mapping[str, bytes],
        readable: Sequence[Path],
        hidden: Sequence[Path],
        limits: Limits,
    ) -> None:
        confinement = Confinement(
            limits=limits, call_filter=sandbox.call_filter, cgroup=sandbox.cgroup, limit_address_space=True
        )
        surroundings = Surroundings(files=files, readable=readable, hidden=hidden, system=SystemFiles.LIBRARIES)
        self._guard = SandboxGuard(sandbox, protected, confinement, surroundings, is_server=True)
        self._process: ServerProcess | None = None
        self._is_stopped = False
        self._received = bytearray()
        try:
            start = self._guard.before_start(argv, {})
            self._process = ServerProcess(start.argv, {}, Path("/"), inherited=start.descriptors)
            self._guard.after_start(self._process.process_id)
        except BaseException:  # nothing is left behind, whatever it was
            self.stop()
            raise

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.has_ended

    def send(self, data: bytes, deadline: float) -> None:
        """Raises ServerLost where it is gone, or does not take it before a time of the monotonic clock."""
        assert self._process is not None
        if not self._process.send(data, deadline - time.monotonic()):
            raise ServerLost("its interpreter ended or took no call")

    def receive(self, count: int, deadline: float) -> bytes:
        """So many bytes of its output, before a time of the monotonic clock. Raises ServerLost."""
        while len(self._received) < count:
            self._received += self._read_piece(deadline)
        data = bytes(self._received[:count])
        del self._received[:count]
        return data

    def stop(self) -> None:
        """Kill it with all that it started, and wait until nothing is left."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._process is not None:
            self._process.stop()
        self._guard.after_end(Ending.EXITED)

    def _read_piece(self, deadline: float) -> bytes:
        assert self._process is not None
        now = time.monotonic()
        if now >= deadline:
            raise ServerLost("its interpreter said nothing in time")
        piece = self._process.receive(_CHUNK_BYTES, min(deadline - now, CHECK_SECONDS))
        exceeded = self._guard.check()
        if exceeded is not None:
            raise ServerLost(_LOST[exceeded])
        if piece is None:
            return b""
        if not piece:
            raise ServerLost("its interpreter ended")
        return piece
