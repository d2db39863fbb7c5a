"""Which project a folder belongs to. Worktrees and clones of one repository are one project, wherever they lie.

A folder's repository is the one that whoever opened the ledger knows of it, such as by looking at the folder itself;
else the one that sessions in it recorded, where they all recorded the same; else that of the folder around it, or of
worktrees of the same name beside it. Folders of no known repository are projects by their paths.

What a session recorded comes from an imported file, and others may have written that. It moves no session of a folder
whose repository is known otherwise, here or by another session.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

from msgspec import Struct

from weft.ledger.read.access import access_of
from weft.ledger.views.rows import SESSION, SessionRow
from weft.ledger.views.values import json_of, text_of
from weft.store.port import ReadTxn
from weft.store.sql import rows_in

RepositoryOf = Callable[[str], str | None]
"""Gives the repository of a folder: its remote as `repository_name` writes it, or the path of its main folder. The
folder itself: it belongs to none. None: nothing is known of it."""
GITHUB = "github.com"
HOME = "~"
WORKTREES = "worktrees"
MOST_LEVELS = 64
LONGEST_ADDRESS_CHARS = 500
SESSIONS_LOOKED_AT = 16
"""So many sessions of a folder are asked for its repository, the last ones."""
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://)(?:[^/@\s]*@)?([^/:@\s]+)(?::\d+)?/+(\S+)", re.IGNORECASE)
_PARAMETERS = re.compile(r"[?#]")
"""Where the parameters of an address begin, which may hold a token."""
_SCP = re.compile(r"(?:[^/@:\s]+@)([^/:@\s]+):/*(\S+)")
_OWNED = re.compile(r"[\w.-]+/[\w.-]+")
_TOOL_WORKTREE = re.compile(r"(?<=.)[/\\]\.claude[/\\]worktrees[/\\][^/\\]")
"""Where Claude Code makes worktrees of a repository: below its main folder."""
_PULL_REQUEST = re.compile(r"/pull/\d+/?$")
_FOLDERS = (
    "SELECT DISTINCT workspace FROM turn WHERE workspace IS NOT NULL"
    " UNION SELECT workspace FROM session WHERE workspace IS NOT NULL"
)
_NOTED = f"{SESSION.select} WHERE workspace IS NOT NULL AND metadata IS NOT NULL ORDER BY n DESC"
_WORKSPACES = "SELECT id, workspace FROM turn WHERE workspace IS NOT NULL AND id IN"


class Project(Struct, frozen=True):
    key: str
    """The repository, such as `github.com/owner/name`, or a folder's path."""
    name: str
    is_repository: bool = False


class Projects:
    """The projects of folders, each looked up once."""

    def __init__(self, txn: ReadTxn, repository_of: RepositoryOf | None = None) -> None:
        self._txn, self._local = txn, cache(repository_of or _unknown)
        self._by_folder: dict[str, Project] = {}
        self._by_repository: dict[str, Project] = {}

    def of(self, folder: str) -> Project:
        project = self._by_folder.get(folder)
        if project is None:
            project = self._by_folder[folder] = self._look_up(folder)
        return project

    def name(self, folder: str | None) -> str:
        return self.of(folder).name if folder else project_of(folder)

    def is_in(self, folder: str, wanted: str) -> bool:
        """Does a folder belong to the project that is meant: by its name, its repository, or one of its folders? In any
        case of letters."""
        if not folder:
            return False
        project, words = self.of(folder), _trimmed(wanted)
        if words in (_trimmed(folder), project.name.casefold(), project.key.casefold(), project_of(folder).casefold()):
            return True
        return "/" in wanted and self.of(wanted.rstrip("/") or wanted).key.casefold() == project.key.casefold()

    @cached_property
    def folders(self) -> list[str]:
        """Every folder that a turn or a session worked in."""
        rows = self._txn.sql.all(_FOLDERS)
        self._txn.facts.hold(workspace for (workspace,) in rows)
        return [folder for (workspace,) in rows if (folder := text_of(self._txn, workspace))]

    def _look_up(self, folder: str) -> Project:
        claims = self._claims.get(folder)
        main = claims.main_folder if claims and self._local(folder) is None else None
        if main is None and (inside := _TOOL_WORKTREE.search(folder)) is not None:
            main = folder[: inside.start()]
        for place in (folder, main):
            if place and (repository := self._repository(place)) is not None:
                project = Project(repository, project_of(repository), is_repository=True)
                return self._by_repository.setdefault(repository.casefold(), project)
        return Project(main or folder, project_of(main or folder), is_repository=main is not None)

    def _repository(self, folder: str) -> str | None:
        """What is known of it here, what was recorded of it, or what is known of a folder around or beside it."""
        claims = self._claims.get(folder)
        if self._local(folder) is not None or (claims and claims.repositories):
            return self._own_repository(folder)
        return self._around(folder) or self._beside.get(_worktree_place(folder) or "")

    def _own_repository(self, folder: str) -> str | None:
        """What is known of the folder itself here; else what all sessions in it recorded."""
        local, claims = self._local(folder), self._claims.get(folder)
        if local is not None:
            return None if local == folder else local
        return claims.repository if claims else None

    def _around(self, folder: str) -> str | None:
        """The repository of the nearest folder above it of which one was recorded; a home folder's is not that of all
        below."""
        place = folder.rstrip("/")
        for _ in range(MOST_LEVELS):
            place = place.rpartition("/")[0]
            if not place or project_of(place) == HOME:
                return None
            claims = self._claims.get(place)
            if claims is not None and claims.repositories:
                return self._own_repository(place)
        return None

    @cached_property
    def _beside(self) -> dict[str, str | None]:
        """By the place where worktrees of one name are made: the repository that they share, by those of which one was
        recorded. None: they differ."""
        repositories: dict[str, dict[str, str | None]] = {}
        for folder, claims in self._claims.items():
            if claims.repositories and (place := _worktree_place(folder)) is not None:
                repository = self._own_repository(folder)
                repositories.setdefault(place, {})[(repository or "").casefold()] = repository
        return {place: _only(names) for place, names in repositories.items()}

    @cached_property
    def _claims(self) -> dict[str, FolderClaims]:
        """By folder, what sessions in it recorded of its repository."""
        pairs = self._metadata()
        self._txn.facts.hold(content for pair in pairs for content in pair)
        claims: dict[str, FolderClaims] = {}
        for workspace, metadata in pairs:
            folder = text_of(self._txn, workspace) or ""
            claims.setdefault(folder, FolderClaims()).add(recorded_repository(json_of(self._txn, metadata), folder))
        return claims

    def _metadata(self) -> list[tuple[int, int]]:
        """Folders and what the last sessions in each noted, as contents, the latest last; of sessions that can be
        read."""
        pairs: list[tuple[int, int]] = []
        sessions: Counter[int] = Counter()
        rows = (SessionRow(*row) for row in self._txn.sql.all(_NOTED))
        for row in filter(access_of(self._txn).may_read, rows):
            if row.workspace is not None and row.metadata is not None and sessions[row.workspace] < SESSIONS_LOOKED_AT:
                sessions[row.workspace] += 1
                pairs.append((row.workspace, row.metadata))
        return pairs[::-1]


def session_folders(txn: ReadTxn, rows: Sequence[SessionRow]) -> list[str]:
    """Where each session worked: the folder that was noted of it, else that of the turn it stands on; empty where
    neither is known."""
    heads = (row.head for row in rows if row.workspace is None and row.head)
    workspaces: dict[str | None, int] = dict(rows_in(txn.sql, _WORKSPACES, heads))
    numbers = [workspaces.get(row.head) if row.workspace is None else row.workspace for row in rows]
    txn.facts.hold(number for number in numbers if number is not None)
    return [text_of(txn, number) or "" for number in numbers]


class RecordedRepository(Struct, frozen=True):
    """What a session noted of the folder that it worked in."""

    repository: str | None = None
    main_folder: str | None = None
    """Where the folder is a worktree: the folder that it was made from."""


class FolderClaims:
    """What sessions noted of one folder. It counts where all that noted something noted the same."""

    def __init__(self) -> None:
        self.repositories: dict[str, str | None] = {}
        """By their names in small letters, as the last session wrote them."""
        self._main_folders: dict[str, str | None] = {}

    def add(self, record: RecordedRepository) -> None:
        if record.repository is not None:
            self.repositories[record.repository.casefold()] = record.repository
        if record.main_folder is not None:
            self._main_folders[record.main_folder] = record.main_folder

    @property
    def repository(self) -> str | None:
        return _only(self.repositories)

    @property
    def main_folder(self) -> str | None:
        """Of a folder whose repository is disputed none counts either."""
        return _only(self._main_folders) if len(self.repositories) <= 1 else None


def _only(names: dict[str, str | None]) -> str | None:
    """The one name among these; None where there is none, or more than one."""
    return next(iter(names.values())) if len(names) == 1 else None


def _unknown(folder: str) -> None:
    """What is known of folders where nobody looks at them."""


def recorded_repository(metadata: Any, folder: str) -> RecordedRepository:
    """Codex notes the remote, Copilot the repository's name at GitHub, Claude Code pull requests and worktrees. A pull
    request counts where its repository is named like the folder."""
    if not isinstance(metadata, dict):
        return RecordedRepository()
    git, worktree = metadata.get("git"), metadata.get("worktree")
    remote = git.get("repository_url") if isinstance(git, dict) else None
    name = repository_name(remote) if isinstance(remote, str) else _owned(metadata.get("repository"))
    requests = metadata.get("pullRequests")
    for request in requests if name is None and isinstance(requests, list) else ():
        address = request.get("prUrl") if isinstance(request, dict) else None
        pulled = _PULL_REQUEST.sub("", address) if isinstance(address, str) else ""
        pulled_name = repository_name(pulled)
        if pulled_name is not None and project_of(pulled_name).casefold() == project_of(folder).casefold():
            name = pulled_name
    main = None
    if isinstance(worktree, dict) and worktree.get("worktreePath") == folder:
        main = worktree.get("originalCwd")
    return RecordedRepository(name, main if isinstance(main, str) and main != folder else None)


def _worktree_place(folder: str) -> str | None:
    """Of a worktree such as `~/.codex/worktrees/9a6a/app`: where those of its name are made, whatever the part in
    between. None: it lies in no folder of worktrees."""
    parts = folder.rstrip("/").split("/")
    return "/".join([*parts[:-2], "*", parts[-1]]) if WORKTREES in parts[:-2] else None


def _owned(name: Any) -> str | None:
    is_name = isinstance(name, str) and len(name) <= LONGEST_ADDRESS_CHARS and _OWNED.fullmatch(name)
    return f"{GITHUB}/{name}" if is_name else None


def repository_name(address: str) -> str | None:
    """A remote's address as `host/path`, without a user, a password, a port, `.git` and what follows `?` or `#`; None:
    it is no such address."""
    text = address.strip()
    if len(text) > LONGEST_ADDRESS_CHARS or not text.isprintable():
        return None
    text = _PARAMETERS.split(text, maxsplit=1)[0]
    parts = _ADDRESS.fullmatch(text) or _SCP.fullmatch(text)
    if parts is None:
        return None
    path = parts[2].rstrip("/").removesuffix(".git").rstrip("/")
    return f"{parts[1].lower()}/{path}" if path else None


def project_of(workspace: str | None) -> str:
    """The last part of a folder's path, on whatever system it lay; `~` where it is somebody's home."""
    parts = [part for part in (workspace or "").replace("\\", "/").split("/") if part]
    if not parts:
        return "/" if workspace else ""
    folders = parts[1:] if parts[0].endswith(":") else parts
    is_home = (len(folders) == 2 and folders[0].lower() in ("home", "users")) or folders == ["root"]
    return HOME if is_home else parts[-1]


def _trimmed(path: str) -> str:
    return (path.rstrip("/") or path).casefold()
