"""Which files of a workspace are hidden from commands in the sandbox, for the tools that read files outside of it.

What a command cannot see, no other tool tells a model unasked. A file is known by its own name, by the name of a link
that somebody asks for, and by its number where it was covered at an earlier command: a command can give it, or the
folder that makes it a file of secrets, another name. Where the notes of what was covered cannot be read, every file
counts as hidden, so that a person is asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from msgspec import DecodeError

from weft.runtime.sandbox.hidden_places import SecretFiles, is_linked_secret
from weft.runtime.sandbox.remembered_places import remembered_files


class HiddenFiles:
    """Those of one workspace."""

    def __init__(self, workspace: Path, secrets: SecretFiles, covered_places: Path | None) -> None:
        """`covered_places`: beneath it is noted what was covered; see `PersonFolders`."""
        self._workspace, self._secrets, self._noted = os.path.realpath(workspace), secrets, covered_places

    def is_hidden(self, path: str, asked: str | None = None) -> bool:
        """Whether commands do not see a file, by its path from the workspace on, without links. `asked` is how it was
        named."""
        if asked is not None:
            named = os.path.relpath(os.path.join(self._workspace, asked), self._workspace)
            if is_linked_secret(self._workspace, named, self._secrets):
                return True
        return self.look()(path)

    def look(self) -> Callable[[str], bool]:
        """The same of many files: what was covered is read once."""
        numbers = self._covered()

        def is_hidden(path: str) -> bool:
            if numbers is None or self._secrets.hides(self._workspace, path):
                return True
            return bool(numbers) and _number(os.path.join(self._workspace, path)) in numbers

        return is_hidden

    def _covered(self) -> frozenset[int] | None:
        """None where it cannot be known."""
        if self._noted is None:
            return frozenset()
        try:
            return remembered_files(self._noted, Path(self._workspace))
        except (OSError, DecodeError):
            return None


def _number(place: str) -> int | None:
    try:
        return os.lstat(place).st_ino
    except OSError:  # it is gone
        return None
