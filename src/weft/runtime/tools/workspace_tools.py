"""The built-in tools that work on the files of one workspace and on what the session has recorded."""

from __future__ import annotations

from collections.abc import Callable

from weft.runtime.tools.calls import PlannedTool
from weft.runtime.tools.change_tools import EditTool, WriteTool
from weft.runtime.tools.find_tools import GlobTool, ListTool
from weft.runtime.tools.grep_tool import GrepTool
from weft.runtime.tools.linters import Linters
from weft.runtime.tools.read_tool import ReadTool
from weft.runtime.tools.recorded_calls import RecordedCalls
from weft.runtime.tools.results import ReadResultTool
from weft.runtime.tools.todo_tool import TodoTool
from weft.runtime.tools.workspace import WorkspaceFolder


def workspace_tools(
    workspace: WorkspaceFolder, linters: Linters | None = None, may_read: Callable[[str], bool] = lambda _: True
) -> tuple[PlannedTool, ...]:
    """Those that read and change files. `may_read` says of a path whether `read` would be permitted on it."""
    return (
        ReadTool(workspace),
        WriteTool(workspace, linters),
        EditTool(workspace, linters),
        ListTool(workspace),
        GlobTool(workspace),
        GrepTool(workspace, may_read),
    )


def session_tools(calls: RecordedCalls) -> tuple[PlannedTool, ...]:
    """Those that read what earlier calls gave."""
    return TodoTool(calls.last_result), ReadResultTool(calls.result)
