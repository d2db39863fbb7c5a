"""Code blocks of assistant messages: a lagging view, read out of the text unless the recorder named them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from msgspec import UNSET, UnsetType

from weft.kernel.dag_events import HistoryAppend, ModelResponse
from weft.kernel.errors import ContentMissing
from weft.kernel.fields import MessageFact, TextFact, Words, is_name
from weft.ledger.model import Codeblock
from weft.ledger.views.recorded_events import decoded
from weft.ledger.views.runs import ROWS_PER_EVENT
from weft.ledger.views.values import number_in, shown_text
from weft.store.erased_contents import ErasedContents
from weft.store.facts import FactReader
from weft.store.port import ReadTxn, Store, WriteTxn
from weft.store.sql import Sql, rows_in

VIEW = "codeblock"
BATCH = 512
LIGHT = 1024 * 1024
_FENCE = re.compile(
    r"^(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^\n`]*+)\n(?P<code>.*?)(?:^(?P=fence)[`~]*+[ \t]*+$|\Z)", re.M | re.S
)
_INSERT = (
    "INSERT INTO codeblock(id, message, idx, language, content, start, length, path, line_start, line_end)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (message, idx) DO NOTHING"
)
Row = tuple[object, ...]


def catch_up(store: Store) -> None:
    store.catch_up_if_far_behind()
    while _is_behind(store) and store.write(advance):
        pass


def catch_up_lightly(store: Store, seconds: float, now: Callable[[], float]) -> None:
    """For so long at most, and only up to the first text that is too large to be read out in passing."""
    until = now() + seconds
    store.catch_up_if_far_behind()
    while _is_behind(store) and store.write(partial(advance, most=LIGHT)) and now() < until:
        pass


def _is_behind(store: Store) -> bool:
    """Whoever has nothing to add takes no lock."""
    if store.read_only:
        return False
    with store.read() as txn:
        return txn.facts.watermark(VIEW) < txn.facts.tip().n


def advance(txn: WriteTxn, most: int | None = None) -> bool:
    """One batch from the watermark on; True when there is more of what was there. It ends before a text of more than
    `most` bytes."""
    mark = txn.facts.watermark(VIEW)
    rows = txn.facts.log(mark, BATCH)
    if not rows:
        return False
    end = rows[-1].n if most is None else _end_of_light(txn.facts, mark, rows[-1].n, most)
    fill(txn.sql, txn.facts, mark, end)
    return end == rows[-1].n and len(rows) == BATCH


def _end_of_light(facts: FactReader, after: int, until: int, most: int) -> int:
    """The event before the first one whose message is heavier than that."""
    for n, line in facts.lines(after, until):
        message = _message_in(n, line)
        texts = [part.text for part in message.parts if isinstance(part, TextFact)] if message else []
        if sum(facts.content_size(_number(facts, text)) for text in texts) > most:
            return n - 1
    return until


def fill(sql: Sql, facts: FactReader, after: int, until: int) -> None:
    """The blocks of all events in (after, until], and the mark that says so."""
    made = [row for n, line in facts.lines(after, until) for row in _blocks(facts, n, line)]
    sql.run_many(_INSERT, made)
    sql.run(
        "INSERT INTO watermark(view, n) VALUES (?, ?) ON CONFLICT (view) DO UPDATE SET n = excluded.n", (VIEW, until)
    )


def load(txn: ReadTxn, message: str) -> list[Codeblock]:
    """A message's blocks, exact: from the view, or from the newest events where the view lags behind. Of one that was
    substituted, those of the message that is shown in its place."""
    facts, message = txn.facts, _shown_message(txn, message)
    rows = txn.sql.all(
        "SELECT language, content, start, length, path, line_start, line_end FROM codeblock"
        " WHERE message = ? ORDER BY idx",
        (message,),
    )
    for n, line in facts.lines(facts.watermark(VIEW)):
        if message.encode() in line:
            rows += [row[3:] for row in _blocks(facts, n, line) if row[1] == message]
    return [_to_block(facts, *row) for row in rows]


def _shown_message(txn: ReadTxn, message: str) -> str:
    turn = txn.sql.one("SELECT n FROM turn WHERE id < ? ORDER BY id DESC LIMIT 1", (message,))  # its id lies behind it
    place = turn and txn.sql.one("SELECT turn, seq FROM message WHERE turn = ? AND id = ?", (*turn, message))
    query = "SELECT n, replacement_n FROM substitution WHERE turn = ? AND place = 'message' AND seq = ?"
    rows = [] if place is None else txn.sql.all(query, place)
    replacement = max(rows)[1] if rows else None
    line = None if replacement is None else txn.facts.line(replacement)
    shown = None if replacement is None or line is None else _message_in(replacement, line)
    return message if shown is None else shown.id


def _to_block(
    facts: FactReader,
    language: str | None,
    content: int,
    start: int | None,
    length: int | None,
    path: int | None,
    line_start: int | None,
    line_end: int | None,
) -> Codeblock:
    text = _shown(facts, content)
    return Codeblock(
        content=text if start is None or length is None else text[start : start + length],
        language=_shown(facts, number_in(language)) if language and language[0] == "#" else language,
        path=None if path is None else _shown(facts, path),
        line_start=line_start,
        line_end=line_end,
    )


def _message_in(n: int, line: bytes) -> MessageFact | None:
    """The assistant's message that an event brings, if it does."""
    if b'"assistant"' not in line:
        return None
    event = decoded(n, line)
    message: MessageFact | UnsetType = UNSET
    if isinstance(event, HistoryAppend):
        message = event.message
    elif isinstance(event, ModelResponse):
        message = event.output
    return message if message is not UNSET and message.role == "assistant" else None


def _blocks(facts: FactReader, n: int, line: bytes) -> Iterator[Row]:
    message = _message_in(n, line)
    if message is not None:
        found = _named(facts, message) if message.codeblocks is not UNSET else _derived(facts, message)
        for idx, (language, content, *rest) in enumerate(islice(found, ROWS_PER_EVENT - 1)):
            yield (n * ROWS_PER_EVENT + idx, message.id, idx, language, content, *rest)


def _named(facts: FactReader, message: MessageFact) -> Iterator[Row]:
    for block in message.codeblocks or ():
        path = None if block.path is UNSET else _number(facts, block.path)
        start = None if block.line_start is UNSET else block.line_start
        end = None if block.line_end is UNSET else block.line_end
        language = block.language
        shown = f"#{_number(facts, language.content)}" if isinstance(language, Words) else language or None
        yield shown, _number(facts, block.content), None, None, path, start, end


def _derived(facts: FactReader, message: MessageFact) -> Iterator[Row]:
    for part in message.parts:
        if isinstance(part, TextFact):
            number = _number(facts, part.text)
            for match in _FENCE.finditer(_text(facts, number)):
                start, end = match.span("code")
                language = match["info"].split(" ")[0]
                yield language if is_name(language) else None, number, start, end - start, None, None, None


def _number(facts: FactReader, ref: str) -> int:
    return facts.find_content(bytes.fromhex(ref)) or 0


def _text(facts: FactReader, number: int) -> str:
    """What blocks are read out of."""
    try:
        return facts.text(number) or ""
    except ContentMissing:
        return ""


def _shown(facts: FactReader, number: int) -> str:
    try:
        return shown_text(facts, number) if number else ""
    except ContentMissing:
        return ""


def forget(_: Store, txn: WriteTxn, forgotten: ErasedContents) -> None:
    """Blocks that were read out of texts that are erased now, with the languages that stood there."""
    query = "SELECT DISTINCT id FROM codeblock WHERE start IS NOT NULL AND content IN"
    for n in sorted({id // ROWS_PER_EVENT for (id,) in rows_in(txn.sql, query, forgotten.contents)}):
        low = n * ROWS_PER_EVENT
        txn.sql.run("DELETE FROM codeblock WHERE id BETWEEN ? AND ?", (low, low + ROWS_PER_EVENT - 1))
        txn.sql.run_many(_INSERT, list(_blocks(txn.facts, n, txn.facts.line(n) or b"")))
