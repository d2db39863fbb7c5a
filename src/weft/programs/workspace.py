"""A task's workspace as criteria see it: files below one folder, whatever links say, and the final answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.kernel.errors import InvalidInput, Unsupported
from weft.programs.criteria import CommandResult

RunCommand = Callable[[str | list[str], Path, float | None], CommandResult]
"""Runs a command in a folder, in a sandbox that is not this layer's business."""
MAX_TEXT = 64 * 1024 * 1024


class Workspace:
    """Observes one folder. `answer` is what the task's assignee said last."""

    def __init__(self, folder: Path | None, answer: str | None = None, run: RunCommand | None = None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._answer, self._run = answer, run

    def file_exists(self, path: str) -> bool:
        return self._inside(path).exists()

    def read_text(self, path: str | None) -> str | None:
        if path is None:
            return self._answer
        file = self._inside(path)
        if not file.is_file():
            return None
        if file.stat().st_size > MAX_TEXT:
            raise InvalidInput(f"{path!r} is larger than {MAX_TEXT} bytes", "check a smaller file")
        return file.read_text(errors="replace")

    def run(self, command: str | list[str], timeout: float | None) -> CommandResult:
        if self._run is None:
            raise Unsupported(
                "this task's criteria run a command, and there is no sandbox to run it in here",
                "complete it where there is one, or give the task other criteria",
            )
        return self._run(command, self._root(), timeout)

    def _root(self) -> Path:
        if self._folder is None:
            raise InvalidInput("the task has no workspace", "name one: `--workspace FOLDER`, or in its configuration")
        if not self._folder.is_dir():
            raise InvalidInput(f"the workspace {self._folder} is no folder", "make it, or name another")
        return self._folder

    def _inside(self, path: str) -> Path:
        """The file that is really meant, links followed: one that lies outside is not looked at."""
        root = self._root()
        found = (root / path).resolve()
        if found != root and root not in found.parents:
            raise InvalidInput(
                f"{path!r} leads outside of the workspace", "give a path below it, without links out of it"
            )
        return found
