"""The rules of a workspace: the file AGENTS.md of a folder that a person trusted.

The file of any other folder is not read. It is read beneath its folder alone: one that leads out of it, is no regular
file, is too long or no text is refused, and its message is not answered without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weft.kernel.errors import InvalidInput
from weft.kernel.foreign_input import KIB, ReadLimits
from weft.runtime.assembly.prompts import WorkspaceRules
from weft.runtime.tools.calls import ToolFailure
from weft.runtime.tools.workspace import WorkspaceFolder

RULES_FILE = "AGENTS.md"
RULES_LIMITS = ReadLimits(held_bytes=64 * KIB, advice=f"shorten {RULES_FILE}: it is sent with every request")
IsTrusted = Callable[[str], bool]
"""Whether a person trusted a folder."""
RulesOf = Callable[[str], WorkspaceRules | None]
"""The rules of a folder, by its path."""


def read_rules(folder: str, is_trusted: IsTrusted) -> WorkspaceRules | None:
    """The rules of this folder; None where it has none, or is not trusted. Raises InvalidInput or LimitExceeded where
    the file cannot be taken."""
    if not is_trusted(folder):
        return None
    workspace = WorkspaceFolder(Path(folder), limits=RULES_LIMITS)
    try:
        path = workspace.resolve(RULES_FILE)
        file = workspace.read_if_there(path.text)
    except ToolFailure as failure:
        raise InvalidInput(
            f"the rules of workspace {folder} cannot be read: {failure.message}", f"put a plain {RULES_FILE} there"
        ) from failure
    if file is None:
        return None
    try:
        text = file.data.decode()
    except UnicodeDecodeError:
        raise InvalidInput(
            f"the rules of workspace {folder} are no text: {RULES_FILE} is not UTF-8", "save it as UTF-8"
        ) from None
    return WorkspaceRules(path=path.text, digest=file.digest, text=text) if text.strip() else None
