"""One export: what is asked for is found, read turn by turn, and written in one of the forms that exporters know.

A file comes into being beside its place and is renamed when it is complete: whoever finds it finds all of it. What was
there stays unless it may be replaced. If the process dies in between, a `.partial` file is left and nothing else.

A room is exported as what whoever exports may read of it. Messages are written as those of threads are: nothing that
one says can end what it stands in, run or fetch anything. Mentions are shown by the names that those who are meant have
now. What agents did to answer is in their own sessions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from html import escape
from itertools import count, groupby
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from weft.exchange.exporters.html import html_text, image_piece, page_foot, page_head, rendered, typed
from weft.exchange.exporters.markdown import block_quote, code, escaped
from weft.exchange.exporters.port import (
    Exporter,
    ExportOptions,
    ExportReport,
    Story,
    StoryFacts,
    ThinkingChoice,
    ThreadTip,
    load_exporter,
)
from weft.exchange.exporters.turn_contents import DOT, counted, image_note, json_line, moment, on_one_line, raster_in
from weft.kernel.clock import iso_from_ms
from weft.kernel.errors import Action, InvalidInput, NotFound, StoreError, quoted
from weft.kernel.message_text import Mention, render_mentions, shown_name
from weft.ledger.api import (
    FullThreads,
    FullTurn,
    Ledger,
    Participant,
    PriceTable,
    Room,
    RoomMessage,
    Spending,
    TurnRange,
    has_title,
)
from weft.ledger.arguments import checked_path, path_error
from weft.ledger.model import PROMPT_SEQUENCE, ImagePart, Message, Session, TextPart
from weft.store.port import Progress
from weft.store.private_files import make_folder, new_file

LONGEST_TITLE = 120


class Exported(Struct, frozen=True, kw_only=True):
    """What an export wrote."""

    form: str
    bytes: int
    turns: int
    messages: int
    tool_calls: int
    left_out: dict[str, int]
    """What the form has no place for, or was not asked for."""
    assets: int = 0


def export(
    ledger: Ledger,
    what: str | Sequence[str],
    form: str | Exporter,
    out: str | Path | BinaryIO,
    *,
    trees: bool = False,
    context: bool = False,
    title: str | None = None,
    thinking: str | None = None,
    tools: bool = True,
    assets: str | Path | None = None,
    force: bool = False,
    prices: PriceTable | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write the threads that end at these turns or sessions. `trees`: with everything that shares a root with them;
    `context`: what the model would see instead. `out` is a path or a file that takes bytes. `prices`: for forms that
    tell the cost; None: the table that is shipped. `progress` is told how many turns are out, of how many."""
    exporter = load_exporter(form) if isinstance(form, str) else form
    names = (what,) if isinstance(what, str) else tuple(what)
    chosen = _thinking(thinking)
    story = _story(ledger, names, exporter, trees=trees, context=context, title=title, prices=prices)
    if progress is not None:
        story = _watched(story, progress)
    report = ExportReport()
    folder = _folder(assets, None if hasattr(out, "write") else checked_path(out, "out"))
    chunks = exporter.write(story, ExportOptions(thinking=chosen, tools=tools, assets=folder), report)
    byte_count = write_chunks(ledger, out, chunks, force=force, turn=_only_turn(story, trees))
    return Exported(
        form=exporter.form,
        bytes=byte_count,
        turns=report.turns,
        messages=report.messages,
        tool_calls=report.tool_calls,
        left_out={name: count for name, count in sorted(report.left_out.items()) if count},
        assets=0 if folder is None else folder.count,
    )


def _only_turn(story: Story, trees: bool) -> str | None:
    """The turn whose thread an export shows; None where it shows several."""
    return story.tips[0].turn_id if len(story.tips) == 1 and not trees else None


def _thinking(name: str | None) -> ThinkingChoice | None:
    try:
        return None if name is None else ThinkingChoice(name)
    except ValueError:
        raise InvalidInput(f"thinking is {quoted(name)}", f"known: {', '.join(ThinkingChoice)}") from None


def _story(
    ledger: Ledger,
    names: tuple[str, ...],
    exporter: Exporter,
    *,
    trees: bool,
    context: bool,
    title: str | None,
    prices: PriceTable | None,
) -> Story:
    if not names:
        raise InvalidInput("there is nothing to export", "name a turn or a session")
    if exporter.one_thread and (trees or len(names) > 1):
        raise InvalidInput(
            f"the form {exporter.form} holds one thread", "export threads one by one, or as markdown, html or jsonl"
        )
    if context and (trees or len(names) > 1):
        raise InvalidInput("a context is that of one turn or session", "name one, without its tree")
    tips = tuple(_tip(ledger, name) for name in names)
    story_title = title or _title(ledger, tips)
    if context:
        return _context_story(ledger, tips, story_title)
    threads = ledger.full_threads(*names, trees=trees, requests=exporter.wants_requests)
    return Story(
        title=story_title,
        tips=tips,
        thread_ranges=threads.strands,
        turns_of=threads.turns_of,
        lines_of=threads.lines_of,
        facts=lambda: _facts(ledger, tips, threads, prices, trees=trees),
    )


def _facts(
    ledger: Ledger, tips: tuple[ThreadTip, ...], threads: FullThreads, prices: PriceTable | None, *, trees: bool
) -> StoryFacts:
    """The cost of one session's thread is that of all its turns; of several threads, that of the sessions which made
    their turns. Of a thread that ends before its session does, nobody asks."""
    span = threads.span()
    facts = StoryFacts(started_at=span.started_at, ended_at=span.ended_at, is_of_sessions=trees or len(tips) > 1)
    spent: list[Spending] = []
    if facts.is_of_sessions:
        rows = ledger.usage.report("session", prices=prices).rows
        spent += [row for row in rows if row.session_id in span.session_ids]
    elif tips[0].session is not None and (session := ledger.session(tips[0].session)).head == tips[0].turn_id:
        spent.append(ledger.usage.branch(session.id, prices=prices).thread)
    costs = [row.cost for row in spent if row.cost is not None]
    return replace(
        facts,
        tokens=sum(row.total for row in spent),
        cost=sum(costs) if costs else None,
        unpriced_tokens=sum(row.unpriced for row in spent),
    )


def _session_called(ledger: Ledger, name: str) -> Session | None:
    try:
        return ledger.session(name)
    except NotFound:
        return None


def _tip(ledger: Ledger, name: str) -> ThreadTip:
    point = ledger.point(name)
    session = None if point.session is None else ledger.session(point.session)
    title = session.title if session is not None and has_title(session) else None
    return ThreadTip(name=name, turn_id=point.turn_id, session=None if session is None else session.label, title=title)


def _title(ledger: Ledger, tips: tuple[ThreadTip, ...]) -> str:
    """What the session is called, or else what its thread began with."""
    if len(tips) > 1:
        return ", ".join(tip.title or tip.session or tip.name for tip in tips[:8]) + (" …" if tips[8:] else "")
    root = next(ledger.thread(tips[0].turn_id).ancestry)
    subject = ledger.listing().subjects([root]).get(root, "")
    return tips[0].title or subject[:LONGEST_TITLE] or tips[0].session or tips[0].name


def _context_story(ledger: Ledger, tips: tuple[ThreadTip, ...], title: str) -> Story:
    """The messages of a context under the turns that they come from."""
    (tip,) = tips
    session = _session_called(ledger, tip.name)
    shown_context = ledger.context(tip.name) if session is None else ledger.context(session=session.id)

    def turns_of(_: TurnRange) -> Iterator[FullTurn]:
        for turn, messages in groupby(shown_context.messages, lambda message: _turn_of(message, tip)):
            items = tuple(messages)
            yield FullTurn(turn=ledger.turn(turn), items=items, positions=tuple(range(len(items))))

    whole_range = TurnRange(
        number=0, segment=0, low=1, high=len(shown_context.messages), events=None, first="", last=tip.turn_id
    )
    return Story(title=title, tips=tips, thread_ranges=(whole_range,), turns_of=turns_of, is_context=True)


def _turn_of(message: Message, tip: ThreadTip) -> str:
    """Messages that stand for a tool call are named after it, and it after its turn. A prompt that no turn has recorded
    yet is told with the last one."""
    if message.sequence == PROMPT_SEQUENCE:
        return tip.turn_id
    return message.id.partition(":")[0] if message.sequence < 0 else message.turn_id


def _watched(story: Story, progress: Progress) -> Story:
    total, done = sum(thread_range.count for thread_range in story.thread_ranges), count(1)

    def turns_of(thread_range: TurnRange) -> Iterator[FullTurn]:
        for full_turn in story.turns_of(thread_range):
            yield full_turn
            progress(min(next(done), total), total)

    return replace(story, turns_of=turns_of)


def write_chunks(
    ledger: Ledger, out: str | Path | BinaryIO, chunks: Iterable[bytes], *, force: bool, turn: str | None = None
) -> int:
    """Write an export to a path or a file that takes bytes; how many bytes that were. `turn` is the one whose thread
    it shows."""
    if hasattr(out, "write"):
        return _write_all(chunks, out)  # type: ignore[arg-type]
    return _write_file(ledger, checked_path(out, "out"), chunks, force=force, turn=turn)


def _write_all(chunks: Iterable[bytes], file: BinaryIO) -> int:
    byte_count = 0
    for chunk in chunks:
        file.write(chunk)
        byte_count += len(chunk)
    file.flush()
    return byte_count


def _write_file(ledger: Ledger, target: Path, chunks: Iterable[bytes], *, force: bool, turn: str | None) -> int:
    """Noted before it exists, so that one which is cut short is known too; and after it, with whatever came since."""
    _refuse_existing(target, force)
    try:
        with new_file(target) as file:
            ledger.upkeep.note_export(target)
            byte_count = _write_all(chunks, file)
            _refuse_existing(target, force)
    except OSError as error:
        raise path_error(target, error) from error
    ledger.upkeep.note_export(target, turn=turn)
    return byte_count


def _refuse_existing(path: Path, force: bool) -> None:
    if path.is_dir():
        raise StoreError(f"{path} is a folder", "name a file in it")
    if path.exists() and not force:
        raise StoreError(f"{path} exists already", Action.CHOOSE_ANOTHER_FILE_OR_FORCE)


def _folder(assets: str | Path | None, target: Path | None) -> Folder | None:
    if assets is None:
        return None
    return Folder(checked_path(assets, "assets"), Path() if target is None else target.parent)


class Folder:
    """Files beside an export, each named by its bytes: what is there already is the same."""

    def __init__(self, path: Path, seen_from: Path) -> None:
        self._path, self.count = path, 0
        self._address = os.path.relpath(path.absolute(), seen_from.absolute())

    def store_file(self, data: bytes, suffix: str) -> str:
        name = sha256(data).hexdigest()[:24] + suffix
        place = self._path / name
        if not place.exists():
            make_folder(self._path)
            with new_file(place) as file:
                file.write(data)
            self.count += 1
        return f"{self._address}/{name}"


# --- A room as one Markdown page, one HTML page, or JSON lines: what whoever exports may read of it, the oldest first.

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
