"""What a command finds of the machine because of its workspace, beside the workspace itself.

This is the one place where the parts of a sandbox that look at a workspace add what they found: each gives a list of
mounts and variables. What must be hidden is not their matter: covers are added afterwards, and win over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from weft.runtime.sandbox.git_settings import GitIdentity
from weft.runtime.sandbox.git_view import GitGuard, GitPerson
from weft.runtime.sandbox.mounts import Mount
from weft.runtime.sandbox.toolchain_places import PersonalHome


class PersonFolders(Struct, frozen=True, kw_only=True):
    """The folders of the person for whom commands run, as surfaces hand them in."""

    home: Path | None = None
    """Where commands are at home that run without a sandbox. Inside a sandbox it is not their home."""
    caches: Path | None = None
    """Beneath it lies, for each workspace, what package managers fetched. None: it is kept in memory, and gone."""
    covered_places: Path | None = None
    """Beneath it is noted, for each workspace, what was covered there. None: all of it is looked through each time."""
    command_notes: Path | None = None
    """Where notes lie of commands that run, for whoever comes after a kill. None: nobody looks then."""
    variables: Mapping[str, str] = {}
    """Those that say where version managers keep what they installed."""
    identity: GitIdentity | None = None
    """Who makes commits where a repository does not say it."""
    git_settings: tuple[Path, ...] = ()
    """The files of the person's own configuration of git, also those that do not exist yet."""

    @property
    def git_person(self) -> GitPerson:
        return GitPerson(identity=self.identity, settings=tuple(map(str, self.git_settings)), home=self.home)

    @property
    def toolchain_home(self) -> PersonalHome | None:
        """Where toolchains are looked for that commands in the sandbox are shown."""
        return None if self.home is None else PersonalHome(folder=str(self.home), variables=self.variables)


NO_FOLDERS = PersonFolders()


class WorkspaceView(Struct, frozen=True, kw_only=True):
    """Mounts and variables for the commands of one workspace."""

    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = {}
    program_folders: tuple[str, ...] = ()
    """Where programs are looked for before the folders of the system."""
    git: GitGuard | None = None
    """What holds the folders of git as they are shown."""

    def close(self) -> None:
        if self.git is not None:
            self.git.close()


def workspace_view(
    workspace: Path, person: PersonFolders, *, is_read_only: bool = False, trusted_until: float | None = None
) -> WorkspaceView:
    """Looks at a workspace each time that something is started in it. `workspace` has no links on its way. The view
    must be closed when what was started has ended, or was not started. `trusted_until`: since when another command runs
    in it."""
    git = GitGuard(workspace, person.git_person, is_read_only=is_read_only, trusted_until=trusted_until)
    return WorkspaceView(mounts=git.view.mounts, environment=git.view.environment, git=git)
