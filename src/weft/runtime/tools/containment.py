"""Whether a call stays where its person lets agents work without asking: the facts that the approval policy is told.

A person trusts a folder for work, and that is looked up for each call. It holds for turns that the ledger's owner began
and nobody else, with an agent and in a session that are theirs; the folder is the one that the call is bound to, by the
sandbox or by the tool, and not one that a configuration names.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from weft.kernel.errors import WeftError
from weft.runtime.sandbox.git_folders import obeyed_settings, repository_settings
from weft.runtime.sandbox.git_repositories import lies_in_git_folder
from weft.runtime.sandbox.git_view import GitPerson
from weft.runtime.sandbox.secret_files import SecretFiles
from weft.runtime.tools.calls import CallPlan

FILE_CHANGES = frozenset({"write", "edit"})

IsTrusted = Callable[[str], bool]
"""Whether the person trusts a folder for work, by its path without links."""


class Containment:
    """What holds for the calls of one turn."""

    def __init__(
        self, is_trusted: IsTrusted, secrets: SecretFiles, person: GitPerson, why_not_theirs: str | None
    ) -> None:
        """`person` is whose git obeys what lies in the folder. `why_not_theirs` says of a turn that is not the owner's
        own why it is not."""
        self._is_trusted, self._secrets, self._why_not_theirs = is_trusted, secrets, why_not_theirs
        self._person = person
        self._repositories: dict[str, tuple[str, ...]] = {}
        """The settings of the repositories in a folder, which is looked through once a turn. What they include is read
        for each call: what a command leaves in a repository that it made includes nothing."""

    def may_hold(self, folder: str) -> bool:
        """Whether calls of the turn that stay in this folder may go unasked."""
        return self._why_not_theirs is None and self._is_trusted(folder)

    def obstacle(self, plan: CallPlan, workspace: str | None) -> str | None:
        """Why a call may not; empty where nobody said that any may, None where nothing is in the way. What keeps that
        from being told is in the way, too, so that a person is asked: the trust in the folder may be told no longer,
        or the folder not be looked through."""
        try:
            return self._obstacle(plan, workspace)
        except (OSError, WeftError) as error:
            return f"it cannot be told whether it stays in a folder that is trusted for work: {error}"

    def _obstacle(self, plan: CallPlan, workspace: str | None) -> str | None:
        folder = plan.confined_to or (None if workspace is None else os.path.realpath(workspace))
        if folder is None or not self._is_trusted(folder):
            return ""
        if self._why_not_theirs is not None:
            return self._why_not_theirs
        if plan.confined_to is None:
            return "it leaves the sandbox" if plan.is_outward else "it does not run in the sandbox of the folder"
        if plan.uncovers:
            return f"it names what is hidden from commands: {', '.join(plan.uncovers)}"
        if plan.tool in FILE_CHANGES:
            return next(filter(None, (self._why_not_changed(folder, path) for path in plan.subjects or ())), None)
        return None

    def _why_not_changed(self, folder: str, path: str) -> str | None:
        """What commands in the sandbox cannot change, file tools do not change unasked either."""
        place = os.path.join(folder, path)
        if self._secrets.is_named(path) and place not in self._secrets.shown():
            return f"{path} is of a name that files of secrets have"
        if lies_in_git_folder(place, folder):
            return f"{path} is a part of a folder of git's"
        settings = self._repositories.get(folder)
        if settings is None:
            settings = self._repositories[folder] = repository_settings(Path(folder))
        if place in obeyed_settings(Path(folder), settings, self._person):
            return f"{path} is a part of git's configuration"
        return None
