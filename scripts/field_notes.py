"""What is said of a record's fields: below them in the source, else of the same column in docs/sql.md."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

SQL_PAGE = Path(__file__).resolve().parents[1] / "docs" / "sql.md"
JSON_WORDS = {"None": "null", "True": "true", "False": "false"}
TABLES = {
    "Turn": "turns",
    "Usage": "turns",
    "Session": "sessions",
    "Message": "messages",
    "ToolCall": "tool_calls",
    "Compaction": "compactions",
}
"""The table that has the fields of a record as columns."""
COLUMNS: dict[str, dict[str, str | None]] = {
    "Turn": {"parent_id": "parent_turn_id", "compaction_id": "compaction_turn_id"},
    "Session": {
        "head": "thread_id",
        "parent_session": "parent_session_label",
        "created_at": None,
        "updated_at": None,
    },
    "Message": {"parent_id": "parent_message_id", "content": None},
    "ToolCall": {
        "name": "tool_name",
        "number": "tool_number",
        "arguments": None,
        "spawned_session": "spawned_session_label",
    },
    "Compaction": {"summarized_through": "summarized_through_turn_id", "first_kept": "first_kept_turn_id"},
}
"""Those with another name; None where the column has something else."""


def field_notes(record: type[Struct]) -> dict[str, str]:
    """By key of its JSON form, in words that hold of that."""
    notes = {field: note for field in record.__struct_fields__ if (note := _column_note(record.__name__, field))}
    for base in reversed(record.__mro__):
        file = getattr(sys.modules[base.__module__], "__file__", None)
        if issubclass(base, Struct) and file is not None and file.endswith(".py"):
            notes |= _notes_in(file).get(base.__qualname__, {})
    keys = dict(zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True))
    return {keys.get(field, field): note for field, note in notes.items()}


def _column_note(record: str, field: str) -> str | None:
    if record not in TABLES:
        return None
    column = COLUMNS.get(record, {}).get(field, field)
    meanings = _columns(TABLES[record])
    words = meanings.get(column or "") or meanings.get(f"{column}_json")
    if words is None:
        return None
    words = re.sub(r"^(JSON array of |JSON of )", "", words)
    words = re.sub(r"^1 if ", "Whether ", words)
    return f"{words[0].upper()}{words[1:]}."


@cache
def _columns(table: str) -> dict[str, str]:
    """What the page says of the columns of a table."""
    section = SQL_PAGE.read_text().partition(f"\n## `{table}`\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (?:seed )?\| (.+) \|$", section, re.MULTILINE))


@cache
def _notes_in(file: str) -> dict[str, dict[str, str]]:
    """By class and field."""
    return dict(_class_notes(ast.parse(Path(file).read_text()), ""))


def _class_notes(tree: ast.Module | ast.ClassDef, within: str) -> Iterator[tuple[str, dict[str, str]]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield within + node.name, dict(_fields_of(node))
            yield from _class_notes(node, f"{within}{node.name}.")


def _fields_of(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, _in_json(" ".join(text.split()))


def _in_json(text: str) -> str:
    return re.sub(r"\b(None|True|False)\b", lambda found: JSON_WORDS[found[0]], text).replace("|", r"\|")
