"""The two forms of a chat, each as the changes that the index takes: a document that is written anew each time, and
JSON lines that are appended to."""

from __future__ import annotations

import re
from typing import Any, BinaryIO

from weft.exchange.importers.gemini_cli.index import Entry, Indexer
from weft.exchange.importers.gemini_cli.kinds import classify
from weft.exchange.importers.jsonl import Record, record_at, records
from weft.exchange.importers.pieces import pieces
from weft.exchange.importers.port import Report, Source
from weft.exchange.importers.values import mapping, sequence, text

SIGN = re.compile(rb'[,\[]\s*(\{\s*"(?:id|type|timestamp|role)"\s*:)')


def index_lines(source: Source, indexer: Indexer, report: Report) -> None:
    for record in records(source, report):
        _take_line(record, indexer, report)


def _take_line(record: Record, indexer: Indexer, report: Report) -> None:
    value = record.value
    kind, _ = classify(value)
    entry = Entry(kind, text(value.get("id")), record.line, record.offset, record.end)
    if (target := text(value.get("$rewindTo"))) is not None:
        report.mapped["$rewindTo"] += 1
        indexer.rewind(target, record.line)
    elif entry.id is not None and "sessionId" not in value:
        indexer.take(value, entry)
    elif isinstance(told := value.get("$set"), dict):
        report.mapped["$set"] += 1
        indexer.tell(told)
        if isinstance(messages := told.get("messages"), list):
            indexer.replace(messages, entry)
    elif text(value.get("sessionId")) is not None:
        report.mapped["session"] += 1
        indexer.tell(value)
        for number, message in enumerate(sequence(value.get("messages"))):
            if isinstance(message, dict):
                inner = classify(message)[0], text(message.get("id"))
                indexer.take(message, Entry(*inner, record.line, record.offset, record.end, number))
    else:
        report.kept["untyped"] += 1
        report.unknown["untyped"] += 1


def index_document(source: Source, indexer: Indexer, report: Report) -> None:
    """One object with its messages in a list. What is said of the session is one record, each message another."""
    report.found += 1
    report.mapped["session"] += 1
    for piece in pieces(source.path, "messages", SIGN):
        value = piece.value
        if piece.name is not None:
            indexer.tell({piece.name: value})
            continue
        report.found += 1
        if isinstance(value, dict):
            indexer.take(value, Entry(classify(value)[0], text(value.get("id")), None, piece.offset, piece.end))
        else:
            report.damaged += 1
            what = "is no object" if piece.is_whole else "is cut or damaged"
            report.problem(None, f"the message at byte {piece.offset} {what}")


class Reader:
    """Messages read again. A record with a list of them is decoded once for all."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._at: tuple[int, int] | None = None
        self._list: list[Any] = []

    def message(self, entry: Entry) -> dict[str, Any]:
        if entry.nested is None:
            return record_at(self._file, entry.offset, entry.end)
        if self._at != (entry.offset, entry.end):
            value = record_at(self._file, entry.offset, entry.end)
            self._at = entry.offset, entry.end
            self._list = sequence(mapping(value.get("$set", value)).get("messages"))
        if entry.nested >= len(self._list):
            raise ValueError("the source changed while it was read")
        return mapping(self._list[entry.nested])
