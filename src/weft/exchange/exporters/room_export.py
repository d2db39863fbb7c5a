"""A room as one Markdown page, one HTML page, or JSON lines: what whoever exports may read of it, the oldest first.

Messages are written as those of threads are: nothing that one says can end what it stands in, run or fetch anything.
Mentions are shown by the names that those who are meant have now. What agents did to answer is in their own sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from typing import BinaryIO

from weft.exchange.exporters.export import Exported, write_chunks
from weft.exchange.exporters.html.page import html_text, image_piece, page_foot, page_head, rendered, typed
from weft.exchange.exporters.markdown import block_quote, code, escaped
from weft.exchange.exporters.port import ExportReport
from weft.exchange.exporters.turn_contents import DOT, counted, image_note, json_line, moment, on_one_line, raster_in
from weft.kernel.clock import iso_from_ms
from weft.kernel.errors import InvalidInput, quoted
from weft.kernel.message_text import Mention, render_mentions, shown_name
from weft.ledger.api import Ledger, Participant, Room, RoomMessage
from weft.ledger.model import ImagePart, TextPart

MESSAGES_AT_ONCE = 500


def export_room(
    ledger: Ledger,
    room: str,
    form: str,
    out: str | Path | BinaryIO,
    *,
    title: str | None = None,
    force: bool = False,
) -> Exported:
    """Write what was said in a room, by its name. `out` is a path or a file that takes bytes."""
    if form not in FORMS:
        raise InvalidInput(f"a room has no form {quoted(form)}", f"known: {', '.join(FORMS)}")
    room_record, report = ledger.rooms.get(room), ExportReport()
    story = RoomStory(ledger, room_record, title or room_record.title or f"Room {room_record.id}", report)
    byte_count = write_chunks(ledger, out, FORMS[form](story), force=force)
    left_out = {name: count for name, count in sorted(report.left_out.items()) if count}
    return Exported(
        form=form, bytes=byte_count, turns=0, messages=report.messages, tool_calls=report.tool_calls, left_out=left_out
    )


class RoomStory:
    """What is told of a room."""

    def __init__(self, ledger: Ledger, room: Room, title: str, report: ExportReport) -> None:
        self._ledger, self.room, self.title, self.report = ledger, room, title, report
        self.participants: list[Participant] = ledger.rooms.participants(room.id, removed=True)

    def messages(self) -> Iterator[RoomMessage]:
        """Those that were there when it began, a page at a time."""
        position = 0
        while page := self._ledger.rooms.messages(self.room.id, after=position, limit=MESSAGES_AT_ONCE):
            for message in page:
                if message.position > self.room.position:
                    return
                self.report.messages += 1
                yield message
            position = page[-1].position

    @property
    def about(self) -> str:
        people = [
            f"{shown_name(participant.name)}{' (left)' if participant.is_removed else ''}"
            for participant in self.participants
        ]
        return DOT.join([f"Room {self.room.id}", counted(self.room.position, "message"), ", ".join(people)])


def text_parts(message: RoomMessage) -> Iterator[tuple[str, bool]]:
    """The texts of a message as people read them, and the addresses of its images (True)."""
    names = {mention.id: mention.name for mention in message.mentions}

    def name(mention: Mention) -> str:
        current = names.get(mention.id, mention.id)
        return f"@{shown_name(mention.name if current == mention.id else current) or mention.id}"

    for part in message.content:
        if isinstance(part, TextPart):
            yield render_mentions(str(part.text), name), False
        elif isinstance(part, ImagePart):
            yield str(part.url), True


def speaker_of(message: RoomMessage) -> str:
    return "System" if message.author_name is None else shown_name(message.author_name) or str(message.author_id)


def _markdown(story: RoomStory) -> Iterator[bytes]:
    yield f"# {escaped(story.title)}\n\n{escaped(story.about)}\n\n".encode()
    for message in story.messages():
        facts = [f"{message.position}", f"**{escaped(speaker_of(message))}**", moment(message.posted_at)]
        blocks = [f"## {DOT.join(facts)}"]
        for text, is_image in text_parts(message):
            blocks.append(_noted_image(story, text) if is_image else block_quote(text))
        yield "".join(f"{block}\n\n" for block in blocks).encode()


def _noted_image(story: RoomStory, url: str) -> str:
    raster = raster_in(url)
    if raster is None:
        return code(image_note(url))
    story.report.left_out["image"] += 1
    return escaped(f"(an image, {raster.media_type}, {len(raster.data):,} bytes, that is not in this page)")


def _html(story: RoomStory) -> Iterator[bytes]:
    yield page_head(story.title, story.about).encode()
    yield b'</header>\n<main id="said" tabindex="-1">\n<section class="strand" data-number="0">\n'
    for message in story.messages():
        yield "".join(_article(message)).encode()
    yield b"</section>\n"
    yield page_foot().encode()


def _article(message: RoomMessage) -> Iterator[str]:
    role = {"user": "user", "agent": "assistant"}.get(message.author_kind or "", "system")
    yield f'<article class="turn" id="m-{message.position}" data-depth="{message.position}">\n<header><h3>'
    yield f'<a href="#m-{message.position}" title="{escape(message.id)}">{message.position}</a></h3>'
    yield f'<p title="{iso_from_ms(message.posted_at)}">{escape(moment(message.posted_at))}</p></header>\n'
    yield f'<section class="block message {role}"><h4>{html_text(on_one_line(speaker_of(message)))}</h4>'
    for text, is_image in text_parts(message):
        if is_image:
            yield image_piece(text)
        elif role == "assistant":
            yield f'<div class="text" dir="auto">{rendered(text)}</div>\n'
        else:
            yield typed(text)
    yield "</section>\n</article>\n"


def _jsonl(story: RoomStory) -> Iterator[bytes]:
    """A message a line. Mentions stand in the text as they were written."""
    for message in story.messages():
        images = [str(part.url) for part in message.content if isinstance(part, ImagePart)]
        line = {
            "id": message.id,
            "conversationId": message.conversation_id,
            "position": message.position,
            "kind": message.kind,
            "author": {"kind": message.author_kind, "id": message.author_id, "name": message.author_name}
            if message.author_id is not None
            else None,
            "content": message.text,
            "images": images or None,
            "mentions": [{"kind": mention.kind, "id": mention.id, "name": mention.name} for mention in message.mentions]
            or None,
            "notice": message.notice,
            "meta": message.meta or None,
            "erased": message.is_erased or None,
            "timestamp": iso_from_ms(message.posted_at),
        }
        yield json_line({name: value for name, value in line.items() if value is not None}) + b"\n"


FORMS: dict[str, Callable[[RoomStory], Iterator[bytes]]] = {"markdown": _markdown, "html": _html, "jsonl": _jsonl}
