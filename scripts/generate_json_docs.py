"""Writes docs/json.md from the records in weft.surfaces.wire. `make docs` runs it; a test compares page and code."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from scripts.field_notes import field_notes
from weft.kernel import errors
from weft.kernel.errors import INTERNAL_ERROR, SYSTEM_ERROR, TIMED_OUT, Action, WeftError
from weft.surfaces.wire.catalogue import keys, records, spread, title
from weft.surfaces.wire.forms import WIRE_VERSION

PAGE = Path(__file__).resolve().parents[1] / "docs" / "json.md"

OPENING = f"""# JSON

With `--json` every command answers with one JSON document: an object, or a list of objects. `weft import --watch` and
other commands that go on for a while answer with one object to a line. This page lists the form of every record. It is
version {WIRE_VERSION} of these forms; `weft --version --json` says which version a program answers with. A new version
may rename or drop a key. New keys can come in any version, so ignore the ones you do not know.

- Keys are snake_case. Programs are the exception: they have the form that their files have, in camelCase.
- A *time* is ISO-8601 in UTC with milliseconds, like `2026-11-15T01:58:12.123Z`.
- *any JSON* is a value that somebody stored; it comes back as it was.
- A key that "may be absent" is left out where it has no value; every other key is always there.
- `id`, and what ends in `_id`, is an id, but for `persona_id`, which is the name of an agent; so is `turn` where it is
  text. `session` is a session's label, which can be changed, where nothing else is said, and `session_id` its id.
- `head` is the turn where a session stands, `heads` the labels of the sessions that stand at a turn. `depth` counts the
  turns of a thread; a root's is 1.
- `n` is an event's number in the log of this ledger; other ledgers number it otherwise. `replica` is the ledger that
  recorded it. A `digest` is 64 hexadecimal digits, which change with any byte of what they stand for.
- `origin` of a session or a turn is the tool from which it was imported, and `native_id` the id that it had there; what
  was recorded here has `weft` or null. `metadata` is what whoever recorded it added.
- What a model's answers cost is in millionths of a US dollar, and null where it is not known.
- Whatever a model or a tool wrote is exact. Characters that a terminal would obey are written as `\\u` escapes.

An error goes to standard error as [ErrorDocument](#errordocument). `code` says which error it is, and `hint` is a
sentence for people. `action` is a code for programs, with its `arguments`. The [codes of errors](#error-codes) and of
[actions](#action-codes) are listed at the end."""


def about(record: type[Struct]) -> str:
    """The first paragraph of the record's docstring."""
    return inspect.cleandoc(record.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def record_lines(record: type[Struct]) -> Iterator[str]:
    yield f"### {title(record)}"
    yield ""
    if record.__doc__:
        yield about(record)
        yield ""
    base = spread(record)
    rows = keys(record)
    if base is not None:
        yield f"The keys of [{title(base)}](#{title(base).lower()}), and:"
        yield ""
        rows = {key: words for key, words in rows.items() if key not in keys(base)}
    notes = {key: note for key, note in field_notes(record).items() if key in rows}
    yield "| key | type | |" if notes else "| key | type |"
    yield "|---|---|---|" if notes else "|---|---|"
    for key, words in rows.items():
        yield f"| `{key}` | {words} |" + (f" {notes[key]} |" if key in notes else " |" if notes else "")
    yield ""


OWN_CODES = {
    WeftError.code: "an error of no kind of its own",
    TIMED_OUT: "something that is no part of Weft took too long",
    SYSTEM_ERROR: "the operating system refused something",
    INTERNAL_ERROR: "a defect, of Weft or of a tool",
    "usage": "the command line is wrong",
    "declined": "the person at the terminal answered no",
    "nobody_to_ask": "a person has to answer, and nobody is at a terminal",
    "interrupted": "interrupted from the keyboard",
}


def error_lines() -> Iterator[str]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, WeftError)]
    meanings = {kind.code: sentence(kind) for kind in kinds} | OWN_CODES
    yield "## Error codes"
    yield ""
    yield "| code | what it says |"
    yield "|---|---|"
    for code in sorted(meanings):
        yield f"| `{code}` | {meanings[code]} |"


def sentence(kind: type) -> str:
    """The first sentence of a class's docstring."""
    return re.split(r"(?<=[.:])\s", " ".join((inspect.getdoc(kind) or "").split()), maxsplit=1)[0].rstrip(".:")


def action_lines() -> Iterator[str]:
    yield "## Action codes"
    yield ""
    yield "| code | what to do |"
    yield "|---|---|"
    for action in Action:
        yield f"| `{action}` | {action.sentence or 'as the hint says, if there is one'} |"


def json_page() -> str:
    lines = [OPENING, ""]
    for family, listed in records().items():
        lines += [f"## {family}", ""]
        for record in listed:
            lines += record_lines(record)
    return "\n".join([*lines, *error_lines(), "", *action_lines(), ""])


def main() -> None:
    PAGE.write_text(json_page())
    print(f"wrote {PAGE.relative_to(PAGE.parents[1])}")


if __name__ == "__main__":
    main()
