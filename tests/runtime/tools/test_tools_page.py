"""The page of the tools names every tool and every argument, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from weft.aio.crossing import Pool
from weft.ledger.api import Ledger
from weft.runtime.tool.recorded_results import RecordedCalls
from weft.runtime.tool.workspace import WorkspaceFolder
from weft.runtime.tools.workspace_tools import session_tools, workspace_tools

PAGE = Path(__file__).parents[3] / "docs" / "tools.md"
SECTION = re.compile(r"^### `(\w+)`\n(.*?)(?=^##)", re.M | re.S)
ARGUMENT = re.compile(r"^\| `(\w+)` \|", re.M)


def test_the_page_and_the_schemas_name_the_same_arguments(ledger: Ledger, workspace: WorkspaceFolder) -> None:
    tools = [*workspace_tools(workspace), *session_tools(RecordedCalls(ledger, Pool()))]
    documented = {name: ARGUMENT.findall(text) for name, text in SECTION.findall(PAGE.read_text())}
    for tool in tools:
        assert documented[tool.spec.name] == list(tool.spec.schema["properties"])
        assert tool.spec.schema["additionalProperties"] is False
        assert tool.spec.description
