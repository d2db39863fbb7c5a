"""A tool call's arguments, by the names that tools give them."""

from __future__ import annotations

import json
from typing import Any

PATHS = ("file_path", "filePath", "absolute_path", "notebook_path", "target_file", "filename", "path", "file")
OLD = ("old_string", "oldString", "old_str", "oldText", "old_text", "old")
NEW = ("new_string", "newString", "new_str", "newText", "new_text", "new")
EVERYWHERE = ("replace_all", "replaceAll")
PATCHES = ("patch", "input", "diff", "unified_diff")
WRITTEN = ("content", "file_text", "contents")


def opened(arguments: Any) -> Any:
    """Arguments as a value, where the origin has them as the text of one."""
    if isinstance(arguments, str) and arguments[:1] in "{[" and arguments:
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return value if isinstance(value, dict) else arguments
    return arguments


def text_at(arguments: Any, names: tuple[str, ...]) -> str | None:
    """The first of these arguments that is a text."""
    if not isinstance(arguments, dict):
        return None
    return next((arguments[name] for name in names if isinstance(arguments.get(name), str)), None)
