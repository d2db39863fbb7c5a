"""The tools `list` and `glob`: what is in a folder, and which files of the workspace fit a pattern."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from msgspec import Meta, Struct

from weft.kernel.enums import FileKind
from weft.kernel.foreign_input import ReadBudget
from weft.ledger.model import FileNote
from weft.runtime.broker.tools import ToolCallContext
from weft.runtime.tools.calls import CallPlan, StructTool, ToolFailure, ToolOutput
from weft.runtime.tools.folder_walk import FolderWalk
from weft.runtime.tools.path_patterns import PathPattern, States
from weft.runtime.tools.threads import in_thread
from weft.runtime.tools.workspace import WorkspaceFolder, parts_of

MOST_ENTRIES = 1000
"""That one call shows."""
MOST_NOTES = 100
"""Files that one call notes as referenced or read."""
INCOMPLETE = "not everything was looked at: name a smaller folder"
LIST_DESCRIPTION = (
    "List a folder of the workspace. A folder's name ends in `/`, that of a link in `@`. "
    "Where more follows, `more` says how to read on."
)
GLOB_DESCRIPTION = (
    "Find files of the workspace by a pattern over their paths: `*` and `?` within a name, `[a-z]`, `{a,b}`, and `**` "
    "for any folders, as in `src/**/*.py`. Links, `.git` and what `.gitignore` names are left out."
)


class ListArguments(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(description="Of the folder, from the workspace.")] = "."
    offset: Annotated[int, Meta(ge=1, description="The first entry, from 1.")] = 1


class GlobArguments(Struct, frozen=True, forbid_unknown_fields=True):
    pattern: Annotated[str, Meta(description="Over the paths of files, from the folder.")]
    path: Annotated[str, Meta(description="Of the folder to look in, from the workspace.")] = "."
    offset: Annotated[int, Meta(ge=1, description="The first path, from 1.")] = 1


FindArguments = TypeVar("FindArguments", bound=Struct)


class FindTool(StructTool[FindArguments]):
    """What tools that look through a folder have in common."""

    is_idempotent = True
    is_read_only = True
    is_repeatable = True

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[FindArguments],
        workspace: WorkspaceFolder,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name, description, arguments)
        self.workspace, self._monotonic = workspace, monotonic

    def budget(self) -> ReadBudget:
        return ReadBudget(self.workspace.limits, self._monotonic)

    def resolved_plan(self, path: str, exact: dict[str, Any]) -> CallPlan:
        resolved = self.workspace.resolve(path)
        if not resolved.exists:
            raise ToolFailure("not_found", f"{path!r} is not there")
        name, where = self.spec.name, resolved.text
        words = [name, *([exact["pattern"]] if "pattern" in exact else ()), where]
        return CallPlan(
            tool=name,
            exact={"workspace": str(self.workspace.root), "path": where, **exact},
            subjects=(where,),
            shown=" ".join(words),
            is_read_only=True,
        )

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        return await in_thread(lambda: self.look(plan.exact))

    @abstractmethod
    def look(self, exact: dict[str, Any]) -> ToolOutput:
        """Do what a plan says, in a thread."""


class ListTool(FindTool[ListArguments]):
    def __init__(self, workspace: WorkspaceFolder) -> None:
        super().__init__("list", LIST_DESCRIPTION, ListArguments, workspace)

    def plan_of(self, arguments: ListArguments) -> CallPlan:
        return self.resolved_plan(arguments.path, {"offset": arguments.offset})

    def look(self, exact: dict[str, Any]) -> ToolOutput:
        path, offset = exact["path"], exact["offset"]
        names = [entry.shown for entry in FolderWalk(self.workspace, self.budget()).entries(path)]
        return ToolOutput(result={"path": path, **_page(names, offset, "entries")})


class GlobTool(FindTool[GlobArguments]):
    def __init__(self, workspace: WorkspaceFolder) -> None:
        super().__init__("glob", GLOB_DESCRIPTION, GlobArguments, workspace)

    def plan_of(self, arguments: GlobArguments) -> CallPlan:
        PathPattern(arguments.pattern)
        return self.resolved_plan(arguments.path, {"pattern": arguments.pattern, "offset": arguments.offset})

    def look(self, exact: dict[str, Any]) -> ToolOutput:
        path, offset = exact["path"], exact["offset"]
        walk = FolderWalk(self.workspace, self.budget())
        paths = sorted(matching_files(walk, path, PathPattern(exact["pattern"])))
        result = {"path": path, **_page(paths, offset, "files")}
        if not walk.is_complete:
            result["note"] = INCOMPLETE
        notes = [FileNote(kind=FileKind.REFERENCED, path=file) for file in result["files"][:MOST_NOTES]]
        return ToolOutput(result=result, files=tuple(notes))


def matching_files(walk: FolderWalk, path: str, pattern: PathPattern) -> list[str]:
    """Files beneath a folder whose paths from there fit. A folder below which none can fit is not opened."""
    top = parts_of(path)
    states: dict[tuple[str, ...], States] = {top: pattern.start}

    def enters(folder: tuple[str, ...]) -> bool:
        following = pattern.after(states[folder[:-1]], folder[-1])
        if following:
            states[folder] = following
        return bool(following)

    return [
        file
        for file in walk.files(path, enters)
        for *folder, name in [file.split("/")]
        if pattern.is_match(pattern.after(states[tuple(folder)], name))
    ]


def _page(items: list[str], offset: int, what: str) -> dict[str, Any]:
    shown = items[offset - 1 : offset - 1 + MOST_ENTRIES]
    page: dict[str, Any] = {what: shown, "total": len(items)}
    following = offset + len(shown)
    if shown and following <= len(items):
        page["more"] = f"{len(items) - following + 1} more: read on with offset {following}"
    return page
