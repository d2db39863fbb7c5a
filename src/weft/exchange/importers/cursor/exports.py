"""What a person exports from Cursor: a Markdown page, `**User**` and `**Cursor**` by turns under rules.

It names no session and no times but that of the export, in the words of the person's own language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256

from weft.exchange.importers.cursor.dialogue import Dialogue, Message
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.transcript import NativeSession, Transcript

HEAD = re.compile(
    r"(?:\ufeff)?# (?P<title>[^\n]*)\r?\n_(?P<when>[^\n]{4,200}?) from Cursor \((?P<version>[\w.+-]{1,40})\)_\r?\n"
)
SPEAKER = re.compile(r"^---\r?\n\r?\n\*\*(User|Cursor)\*\*\r?\n(?:\r?\n)?", re.MULTILINE)
ROLES = {"User": "user", "Cursor": "assistant"}


def is_export(head: bytes) -> bool:
    return HEAD.match(head.decode("utf-8", "replace")) is not None


def read_export(source: Source, report: Report) -> Iterator[Transcript]:
    words = source.path.read_bytes().decode("utf-8", "surrogateescape")
    head = HEAD.match(words)
    if head is None:
        report.problem(1, "this is no page that Cursor exported")
        return
    report.found += 1
    report.mapped["export"] += 1
    named = f"{head['title']}\n{head['when']}".encode("utf-8", "surrogateescape")
    session = NativeSession(
        id=f"export-{sha256(named).hexdigest()[:24]}",
        title=head["title"] or None,
        version=head["version"],
        metadata={"exported": head["when"]},
    )
    told = list(_messages(words, report))
    yield Transcript(session=session, turns=Dialogue(session, None).turns(told))


def _messages(words: str, report: Report) -> Iterator[Message]:
    found = list(SPEAKER.finditer(words))
    ends = [*(match.start() for match in found[1:]), len(words)]
    for match, end in zip(found, ends, strict=True):
        role = ROLES[match[1]]
        report.found += 1
        report.mapped[role] += 1
        start = _size(words[: match.start()])
        yield Message(role, words[match.end() : end].strip(), start, start + _size(words[match.start() : end]))


def _size(words: str) -> int:
    return len(words.encode("utf-8", "surrogateescape"))
