"""Threads, trees and sets of sessions as one HTML page that needs nothing else.

The page has a policy that allows nothing from outside, one style, one script, and an outline. Texts
are escaped, or rendered from Markdown without HTML and images. Tool calls are folded; branches are
nested in the contents under the turn that they leave.
"""

from __future__ import annotations

import base64
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from hashlib import sha256
from html import escape, unescape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from msgspec.structs import replace

from weft.exchange.exporters.port import ExportOptions, ExportReport, Story, StoryFacts, ThinkingChoice
from weft.exchange.exporters.turn_contents import (
    DOT,
    ExportedImage,
    as_json,
    bounded_table,
    branch_text,
    call_changes,
    call_facts,
    counted,
    error_of,
    file_text,
    goes_on,
    headed,
    image_note,
    is_web_address,
    model_of,
    moment,
    next_of,
    on_one_line,
    other_arguments,
    raster_in,
    result_contents,
    result_text,
    speaker,
    state_of,
    turn_facts,
    visible,
)
from weft.exchange.file_changes import FileChange
from weft.kernel.clock import iso_from_ms
from weft.ledger.api import (
    BranchPoint,
    FullTurn,
    StepGroup,
    TurnLine,
    TurnRange,
    is_from_tool,
    message_passages,
    sections,
    typed_command,
)
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart
from weft.ledger.read.session_list import first_line, spoken

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token


# --- Texts for a page that trusts none of them: escaped as they are, or rendered from Markdown without HTML, images or
# other schemes.

LONGEST_RENDERED = 200_000
"""Longer texts are shown as they are."""
DEEPEST_RENDERED = 100
SCHEMES = ("http", "https", "mailto")
ALIGNMENTS = {f"text-align:{side}": side for side in ("center", "right")}
_MARKS = str.maketrans("", "", "`*~#>|+=<[]()!:\"'-")
"""Letters that marks of Markdown consist of."""
_TAG = re.compile(r"<[^<>]*>")
_ADDRESS = re.compile(r' (?:href|title)="([^"]*)"')


def html_text(text: str) -> str:
    """A text as the content of an element or of a quoted attribute."""
    return escape(visible(text))


def preformatted(text: str, kind: str = "") -> str:
    return f'<pre class="{kind}">{html_text(text)}</pre>' if kind else f"<pre>{html_text(text)}</pre>"


def is_safe_link(url: str) -> bool:
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        return False
    return scheme.lower() in SCHEMES and not any(letter <= " " for letter in url)


def typed(text: str) -> str:
    """What somebody typed, letter by letter; the style keeps its lines and spaces."""
    return f'<div class="typed" dir="auto">{html_text(text)}</div>\n'


def rendered(text: str) -> str:
    """A message's Markdown as HTML; as it is where it cannot be rendered, or not without loss."""
    text = visible(text)
    if len(text) > LONGEST_RENDERED:
        return preformatted(text)
    try:
        html: str = _renderer().render(text)
    except (RecursionError, ValueError, IndexError):  # too many cells, or what a parser cannot read: shown as it is
        return preformatted(text)
    source, result = _letters(text), _letters(_text_in(html))
    is_lossless = source == result or not Counter(source) - Counter(result)  # links have their address elsewhere
    return html if is_lossless else preformatted(text)


def _letters(text: str) -> str:
    """Without marks and spaces; a backslash before a pipe may be the mark of a pipe in a table."""
    return "".join(text.replace("\\|", "|").translate(_MARKS).split())


def _text_in(html: str) -> str:
    """The text of elements, with the addresses and titles of links."""
    return unescape(_TAG.sub(lambda tag: " ".join(_ADDRESS.findall(tag[0])), html))


@cache
def _renderer() -> MarkdownIt:
    from markdown_it import MarkdownIt

    options = {"html": False, "breaks": True, "maxNesting": DEEPEST_RENDERED}
    markdown = MarkdownIt("commonmark", options).enable(["strikethrough", "table"])
    markdown.disable(["reference", "entity"])  # a definition would not be shown, and an entity as something else
    markdown.inline.ruler.at("escape", _escape)
    markdown.inline.ruler.at("emphasis", _emphasis)
    markdown.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    markdown.validateLink = is_safe_link  # type: ignore[method-assign]
    markdown.normalizeLink = lambda url: url  # type: ignore[method-assign]
    markdown.normalizeLinkText = lambda link: link  # type: ignore[method-assign]
    for name, rule in RENDER_RULES.items():
        markdown.add_render_rule(name, rule)
    return markdown


def _escape(state: StateInline, silent: bool) -> bool:
    """A backslash and the mark that it escapes, both shown."""
    escaped = state.src[state.pos : min(state.pos + 2, state.posMax)]
    if len(escaped) < 2 or escaped[0] != "\\" or escaped[1] not in string.punctuation:
        return False
    if not silent:
        state.pending += escaped
    state.pos += 2
    return True


def _emphasis(state: StateInline, silent: bool) -> bool:
    from markdown_it.rules_inline.emphasis import tokenize

    return state.src[state.pos] == "*" and tokenize(state, silent)


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """A table; the parser drops cells beyond its last column, which are put into that one."""
    from markdown_it.rules_block.table import escapedSplit, getLine

    before = len(state.tokens)
    if not bounded_table(state, start, end, silent):
        return False
    rows: dict[int, list[Token]] = {}
    for token in state.tokens[before:]:
        if token.type == "inline" and token.map:
            rows.setdefault(token.map[0], []).append(token)
    for line, row in rows.items():
        cells = escapedSplit(getLine(state, line).strip())
        cells = cells[not cells[0] : len(cells) - (not cells[-1])]
        if len(cells) > len(row):
            row[-1].content = " | ".join(cell.strip() for cell in cells[len(row) - 1 :])
    return True


def _list_number(token: Token) -> str:
    """The number of a list's item, as it was written."""
    return f'<span class="number">{escape(token.info)}{escape(token.markup)}</span> ' if token.info else ""


def _ordered_list(*_: Any) -> str:
    return '<ol class="numbered">\n'


def _list_item(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    is_led = index + 1 < len(tokens) and tokens[index + 1].type == "paragraph_open"
    return "<li>" if is_led else f"<li>{_list_number(tokens[index])}"


def _paragraph(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    is_first = index > 0 and tokens[index - 1].type == "list_item_open"
    return ("" if tokens[index].hidden else "<p>") + (_list_number(tokens[index - 1]) if is_first else "")


def _paragraph_end(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return "\n" if tokens[index].hidden else "</p>\n"


def _cell(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    side = ALIGNMENTS.get(str(tokens[index].attrGet("style")))
    return f'<{tokens[index].tag} class="{side}">' if side else f"<{tokens[index].tag}>"


def _image(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    """No image is fetched: a link with its words stands for it."""
    return f"[image: {_anchor(tokens[index], 'src')}{escape(tokens[index].content or 'image')}</a>]"


def _link(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return _anchor(tokens[index], "href")


def _anchor(token: Token, name: str) -> str:
    address, title = str(token.attrGet(name) or ""), str(token.attrGet("title") or "")
    tooltip = f' title="{escape(title)}"' if title else ""
    return f'<a href="{escape(address)}"{tooltip} rel="noopener noreferrer nofollow" target="_blank">'


def _fence(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    language = tokens[index].info.strip()
    label = f'<span class="language">{escape(language)}</span>' if language else ""
    return f'<div class="code">{label}<pre><code>{escape(tokens[index].content)}</code></pre></div>\n'


def _code(_: Any, tokens: Sequence[Token], index: int, *__: Any) -> str:
    return f'<div class="code"><pre><code>{escape(tokens[index].content)}</code></pre></div>\n'


RENDER_RULES = {
    "image": _image,
    "link_open": _link,
    "fence": _fence,
    "code_block": _code,
    "ordered_list_open": _ordered_list,
    "list_item_open": _list_item,
    "paragraph_open": _paragraph,
    "paragraph_close": _paragraph_end,
    "th_open": _cell,
    "td_open": _cell,
}


# --- Tool calls of a page, folded: what was asked, what it changed in files, what came back.

LONGEST_SUMMARY_CHARS = 160
SIGNS = {"+": "add", "-": "remove", "@": "hunk"}


def folded(kind: str, about: str, body: str) -> str:
    return f'<details class="block {kind}"><summary>{about}</summary>{body}</details>\n'


def line_of(text: str) -> str:
    """The beginning of a text on one line, escaped."""
    line = on_one_line(text[: 4 * LONGEST_SUMMARY_CHARS])
    return escape(line if len(line) <= LONGEST_SUMMARY_CHARS else f"{line[:LONGEST_SUMMARY_CHARS]}…")


def call_piece(call: ToolCall) -> str:
    changes = call_changes(call)
    other_fields = other_arguments(call, changes)
    body = "".join(_diff(change) for change in changes)
    if other_fields not in (None, {}, ""):
        body += value_piece(other_fields)
    if call.error is not None:
        body += f"<h4>Error</h4>{preformatted(call.error)}"
    if call.result is not None:
        body += f"<h4>Result</h4>{output_piece(call.result)}"
    kind = "call" if call.outcome == "ok" else "call failed" if call.outcome == "error" else "call open"
    return folded(kind, f"{html_text(call.name)} {_lead(call, changes)}{_facts(call)}", body)


def _lead(call: ToolCall, changes: list[FileChange]) -> str:
    """What matters of a call, on one line."""
    if changes:
        first = changes[0]
        text = f"{first.path or ''} {first.counts}" if len(changes) == 1 else counted(len(changes), "file")
    elif isinstance(call.arguments, dict):
        text = next((value for value in call.arguments.values() if isinstance(value, str) and value.strip()), "")
    else:
        text = result_text(call.arguments)
    line = line_of(text)
    return f"<code>{line}</code>" if line else ""


def _facts(call: ToolCall) -> str:
    facts = call_facts(call)
    return f" <small>{escape(DOT.join(facts))}</small>" if facts else ""


def value_piece(value: Any) -> str:
    return preformatted(value if isinstance(value, str) else as_json(value), "arguments")


def output_piece(value: Any) -> str:
    return "".join(
        image_piece(content.url) if isinstance(content, ExportedImage) else preformatted(content)
        for content in result_contents(value)
    )


def _diff(change: FileChange) -> str:
    lines = [f'<span class="{SIGNS.get(line[:1], "same")}">{html_text(line)}\n</span>' for line in change.lines]
    path = f"<h4>{html_text(change.path)} <small>{change.counts}</small></h4>" if change.path else ""
    return f'{path}<pre class="diff">{"".join(lines)}</pre>'


def image_piece(url: str) -> str:
    raster = raster_in(url)
    if raster is not None:
        return f'<p><img alt="image" src="data:{raster.media_type};base64,{raster.base64}"></p>\n'
    if is_web_address(url) and url == visible(url):
        link = f'<a href="{escape(url)}" rel="noopener noreferrer nofollow" target="_blank">{html_text(url)}</a>'
        return f'<p class="note">image, not fetched: {link}</p>\n'
    return f'<p class="note">{html_text(image_note(url))}</p>\n'


# --- The contents of a page: a line for each turn that leads to it, branches nested under the turn that they leave.

LONGEST_ENTRY_CHARS = 120
LINES_UNFOLDED = 25
"""A longer list is folded."""
DEEPEST_NESTED = 12
"""Branches of branches deeper than this are listed beside each other: browsers nest no further than some hundreds."""


class _Listing(NamedTuple):
    """A range to be listed in place."""

    thread_range: TurnRange
    level: int
    """How many branches deep."""
    is_nested: bool = False
    """In a list of its own; else in the one that is open."""
    is_branch: bool = True
    """Else it goes on where the range before it ends."""


def contents(story: Story) -> Iterator[str]:
    """Nothing for a single turn, or where nobody knows the lines."""
    turns = sum(thread_range.count for thread_range in story.thread_ranges)
    if story.lines_of is None or turns < 2:
        return
    root_count = sum(thread_range.parent is None for thread_range in story.thread_ranges)
    is_tree = root_count == 1 and any(thread_range.parent is not None for thread_range in story.thread_ranges)
    is_open = " open" if turns <= LINES_UNFOLDED else ""
    title = "Tree" if is_tree else "Contents"
    yield f'<nav class="contents" aria-label="{title}"><details{is_open}><summary>{title}: {turns:,} turns</summary>'
    yield '\n<ol class="prompts">\n'
    tree = _Tree(story, is_one=root_count == 1)
    for thread_range in story.thread_ranges:
        if thread_range.parent is None:
            yield from tree.lines(thread_range)
    yield "</ol></details></nav>\n"


class _Tree:
    def __init__(self, story: Story, *, is_one: bool) -> None:
        self._story, self._is_one = story, is_one
        self._session = story.tips[0].session if len(story.tips) == 1 else None
        self._children: dict[tuple[int, str], list[TurnRange]] = {}
        for thread_range in story.thread_ranges:
            if thread_range.parent is not None and thread_range.leaves is not None:
                self._children.setdefault((thread_range.parent, thread_range.leaves), []).append(thread_range)

    def lines(self, root: TurnRange) -> Iterator[str]:
        """The lines of a range and of all that leave it; a stack instead of recursion, since trees may be deep."""
        listings = [self._range_lines(_Listing(root, 0, is_branch=False))]
        while listings:
            line = next(listings[-1], None)
            if line is None:
                listings.pop()
            elif isinstance(line, str):
                yield line
            else:
                listings.append(self._range_lines(line))

    def _range_lines(self, listing: _Listing) -> Iterator[str | _Listing]:
        thread_range, level = listing.thread_range, listing.level
        assert self._story.lines_of is not None
        following: list[TurnRange] = []
        for line in self._story.lines_of(thread_range):
            if line.depth == thread_range.low:
                yield self._opening(listing, line)
            children = self._children.get((thread_range.number, line.turn_id), [])
            following = [
                child for child in children if goes_on(child, thread_range) and child.number == thread_range.number + 1
            ]
            branches = [child for child in children if child not in following]
            yield (
                f"<li>{_link_to_content(line)}"
                if line.is_prompted
                else f'<li class="unprompted">{_link_to_content(line)}'
            )
            if level < DEEPEST_NESTED:
                yield from (_Listing(child, level + 1, is_nested=True) for child in branches)
                branches = []
            yield "</li>\n"
            yield from (_Listing(child, level) for child in branches)
        yield from (_Listing(child, level, is_branch=False) for child in following)
        if listing.is_nested:
            yield "</ol>"

    def _opening(self, listing: _Listing, first: TurnLine) -> str:
        """What a branch is called, or one of several conversations, and the list that it stands in."""
        thread_range = listing.thread_range
        if not listing.is_branch and (self._is_one or thread_range.parent is not None):
            return ""
        session = "" if first.session in (None, self._session) else f" {escape(on_one_line(str(first.session)))}"
        kind = "Conversation" if thread_range.parent is None else "Branch"
        name = f"{kind}{session}, {counted(thread_range.count, 'turn')}"
        if listing.is_nested:
            return f'<ol class="prompts branch"><li class="name">{name}</li>\n'
        place = f", from turn {thread_range.leaves_at}" if listing.is_branch else ""
        return f'<li class="name">{name}{place}</li>\n'


def _link_to_content(line: TurnLine) -> str:
    words = on_one_line(line.subject[: 4 * LONGEST_ENTRY_CHARS])
    if len(words) > LONGEST_ENTRY_CHARS:
        words = f"{words[:LONGEST_ENTRY_CHARS]}…"
    if line.is_compaction:
        words = f"Summary of what came before: {words}" if words else "Summary of what came before"
    number = f'<span class="number">{line.depth}</span>'
    return f'{number} <a href="#t-{escape(line.turn_id)}" dir="auto">{escape(words) or "(no text)"}</a>'


# --- One turn of a page: what was said, steps between it in groups that unfold, and where branches leave.

BRANCHES_LISTED = 50
ROLES = ("user", "assistant", "system", "tool")
SENDERS = {
    "agent": "Sent by another agent",
    "cron": "Sent by a schedule",
    "webhook": "Sent by a webhook",
    "event": "Put in by the tool, not typed",
    "trigger": "Put in by a hook, not typed",
}
"""Who sent a message in the user's place, by its source."""
FILES_UNFOLDED = 5
"""More notes of files are folded."""
SMALLEST_GROUP_STEPS = 2
"""Fewer steps stand by themselves."""


class TurnPieces:
    """Writes turns as the pieces of a page. Labels that the turn before has too are left out."""

    def __init__(self, wishes: ExportOptions, report: ExportReport, session: str | None = None) -> None:
        """`session`: the label that the page's header names."""
        self._wishes, self._report, self._session = wishes, report, session
        self._anchored: set[str] = set()
        self._before: FullTurn | None = None
        self._speaker: str | None = ""
        """Who spoke last in this turn; null: nobody is named, inside a group of steps."""
        self._noted: set[str] = set()
        """The messages of this turn whose notes of files are written."""

    def begin_range(self) -> None:
        """The next turn says everything about itself."""
        self._before = None

    def turn(self, full_turn: FullTurn, next_turn: str | None) -> Iterator[str]:
        turn = full_turn.turn
        state = " troubled" if state_of(turn) not in (None, "compaction") else ""
        yield f'<article class="turn{state}"{self._anchor(turn.id)} data-depth="{turn.depth}">\n<header><h3>'
        yield f'<a href="#t-{escape(turn.id)}" title="{escape(turn.id)}">Turn {turn.depth}</a></h3>'
        time_title = f' title="{iso_from_ms(turn.started_at)}"' if turn.time_known else ""
        yield f"<p{time_title}>{escape(DOT.join(self._facts(full_turn)))}</p></header>\n"
        if turn.error is not None:
            yield f'<div class="block error">{preformatted(error_of(turn) or "")}</div>\n'
        if full_turn.summary is not None:
            yield _block("summary", "Summary of what came before", _text(full_turn.summary.summary))
        self._speaker, self._noted = "", set()
        yield from self._sections(full_turn)
        branches = [branch for branch in full_turn.branches if branch.turn_id != next_turn]
        yield from _branches(
            [replace(branch, session=None) if branch.session == full_turn.session else branch for branch in branches]
        )
        yield "</article>\n"
        self._before = full_turn

    def _anchor(self, turn: str) -> str:
        """The id of a turn's piece. A context can show parts of one turn in two places: the first has the id."""
        if turn in self._anchored:
            return ""
        self._anchored.add(turn)
        return f' id="t-{escape(turn)}"'

    def _facts(self, full_turn: FullTurn) -> list[str]:
        """Without the session, the day and the model that the turn before has too."""
        turn, before = full_turn.turn, self._before
        facts, repeated = turn_facts(full_turn), {self._session if before is None else before.session}
        if before is not None:
            repeated.add(model_of(before.turn))
            now = moment(turn.started_at)
            if turn.time_known and before.turn.time_known and moment(before.turn.started_at)[:10] == now[:10]:
                facts = [now[11:] if fact == now else fact for fact in facts]
        return [fact for fact in facts if fact not in {on_one_line(label) for label in repeated if label}]

    def _sections(self, full_turn: FullTurn) -> Iterator[str]:
        for section in sections(full_turn.items):
            if isinstance(section, StepGroup):
                yield self._group(full_turn, section)
            else:
                yield self._message(full_turn, section)
        for message in full_turn.files:
            yield self._files(full_turn, message)

    def _group(self, full_turn: FullTurn, group: StepGroup) -> str:
        """Steps in a fold; a single one, or what is left where steps are not wanted, as it is."""
        if not self._wishes.tools or group.tools.total() < SMALLEST_GROUP_STEPS:
            return "".join(self._steps(full_turn, group))
        speaker_before, self._speaker = self._speaker, None
        body = "".join(self._steps(full_turn, group))
        self._speaker = speaker_before
        hint = line_of(group.hint(thinking=self._wishes.thinking is not ThinkingChoice.NONE))
        about = html_text(group.summary) + (f' <span class="hint" dir="auto">{hint}</span>' if hint else "")
        return folded("steps", about, body)

    def _steps(self, full_turn: FullTurn, group: StepGroup) -> Iterator[str]:
        for item in group.items:
            yield self._call(item) if isinstance(item, ToolCall) else self._message(full_turn, item)

    def _message(self, full_turn: FullTurn, message: Message) -> str:
        blocks = [block for part in message.content for block in self._part_pieces(message, part)]
        body = "".join(blocks) + self._files(full_turn, message.id)
        if all(block.startswith("<details") for block in blocks):  # each says itself what it is
            return body
        role = message.role if message.role in ROLES else "other"
        speaker_name = "System" if role == "system" else speaker(message, full_turn.turn)
        if role == "user":
            speaker_name = SENDERS.get(str(message.source), speaker_name)
        if role == "system" or is_from_tool(message):
            self._speaker = None if self._speaker is None else ""
            return folded(f"message {role} injected", _labelled(html_text(speaker_name), spoken(message.text)), body)
        label = "" if self._speaker in (None, speaker_name) else speaker_name
        self._speaker = None if self._speaker is None else speaker_name
        return _block(f"message {role}", label, body)

    def _part_pieces(self, message: Message, part: Part) -> Iterator[str]:
        match part:
            case TextPart():
                yield from _text_pieces(message, str(part.text))
            case ReasoningPart():
                yield from self._thinking(str(part.text))
            case ImagePart():
                yield image_piece(str(part.url))
            case ToolUsePart():
                about = f"{html_text(part.name)} <small>{html_text(part.id)}</small>"
                yield from self._tool("call", about, value_piece(part.input))
            case ToolResultPart():
                failed = " failed" if part.is_error is True else ""
                about = f"Result <small>{html_text(part.tool_call_id)}</small>"
                yield from self._tool(f"call{failed}", about, output_piece(part.output))

    def _thinking(self, text: str) -> Iterator[str]:
        if self._wishes.thinking is ThinkingChoice.NONE:
            self._report.left_out["thinking"] += 1
        elif text.strip():  # of hidden thinking only its signature is known
            yield folded("thinking", _labelled("Thinking", text), _text(text))

    def _tool(self, kind: str, about: str, body: str) -> Iterator[str]:
        """A use or a result that stands in a message by itself."""
        if self._wishes.tools:
            yield folded(kind, about, body)
        else:
            self._report.left_out["part of a tool call"] += 1

    def _call(self, call: ToolCall) -> str:
        if self._wishes.tools:
            return call_piece(call)
        self._report.left_out["tool call"] += 1
        return ""

    def _files(self, full_turn: FullTurn, message: str) -> str:
        """What a message notes of files, once; without those that a call of the turn names and shows."""
        if message not in full_turn.files or message in self._noted:
            return ""
        self._noted.add(message)
        call_texts = _argument_texts(full_turn) if self._wishes.tools else frozenset()
        notes = [note for note in full_turn.files[message] if note.path not in call_texts]
        if not notes:
            return ""
        lines = "".join(f"<li>{html_text(file_text(note))}</li>" for note in notes)
        files = f'<ul class="files">{lines}</ul>\n'
        return folded("noted", f"Notes of {counted(len(notes), 'file')}", files) if notes[FILES_UNFOLDED:] else files


def _argument_texts(full_turn: FullTurn) -> frozenset[str]:
    calls = (item for item in full_turn.items if isinstance(item, ToolCall) and isinstance(item.arguments, dict))
    return frozenset(value for call in calls for value in call.arguments.values() if isinstance(value, str))


def _text_pieces(message: Message, text: str) -> Iterator[str]:
    """As typed, as a tool printed it, or rendered from Markdown."""
    if message.role == "user" and message.source in (None, "human"):
        yield from _typed_pieces(text)
    elif is_from_tool(message) and message_passages(text)[0].is_injected:
        yield preformatted(text)
    else:
        yield _text(text)


def _typed_pieces(text: str) -> Iterator[str]:
    """What a person typed, letter by letter, and in folds what a tool put around it."""
    if command := typed_command(text):
        yield typed(command)
        yield folded("injected", "As the tool recorded it", preformatted(text))
        return
    for passage in message_passages(text):
        if passage.is_injected:
            about = f"{SENDERS['event']} <code>{html_text(passage.tag)}</code>"
            yield folded("injected", _labelled(about, spoken(passage.text)), preformatted(passage.text))
        else:
            yield typed(passage.text)


def _text(text: str) -> str:
    return f'<div class="text" dir="auto">{rendered(text)}</div>\n'


def _labelled(label: str, text: str) -> str:
    """A label with the first line of what it is about."""
    line = line_of(first_line(text))
    return f'{label} <span class="hint" dir="auto">{line}</span>' if line else label


def _block(kind: str, speaker_name: str, body: str) -> str:
    label = f"<h4>{html_text(speaker_name)}</h4>" if speaker_name else ""
    return f'<section class="block {kind}">{label}{body}</section>\n'


def _branches(branches: list[BranchPoint]) -> Iterator[str]:
    if not branches:
        return
    leave = "1 other branch leaves here" if len(branches) == 1 else f"{len(branches):,} other branches leave here"
    yield f'<nav class="branches" aria-label="Branches"><h4>{leave}</h4><ul>\n'
    for branch in branches[:BRANCHES_LISTED]:
        words = escape(branch_text(branch)) or "(no text)"
        if branch.strand is not None:
            yield f'<li><a href="#t-{escape(branch.turn_id)}">{words}</a></li>\n'
        else:
            yield f"<li>{words} <small>not in this page: <code>{escape(branch.turn_id)}</code></small></li>\n"
    if unlisted := branches[BRANCHES_LISTED:]:
        yield f"<li>and {len(unlisted):,} more</li>\n"
    yield "</ul></nav>\n"


# --- The page around the turns: a policy that allows nothing from outside, one style, one script, and an outline.

THREADS_UNFOLDED = 12
"""More threads than these are listed in a fold."""
CONTROLS = """<form role="search" id="search" hidden>
<label for="words">Search</label> <input id="words" type="search" autocomplete="off" placeholder="words">
<button type="button" id="previous" aria-label="Previous hit">↑</button>
<button type="button" id="next" aria-label="Next hit">↓</button>
<label><input type="checkbox" id="only"> only hits</label>
<output id="found" for="words" aria-live="polite"></output>
</form>
<div class="controls" hidden>
<button type="button" id="unfold" aria-pressed="false">Unfold all</button>
<button type="button" id="theme">Dark or light</button>
<details class="keys"><summary>Keys</summary><p><kbd>/</kbd> search, <kbd>Enter</kbd> next hit, <kbd>Shift Enter</kbd>
the one before, <kbd>Escape</kbd> end of search, <kbd>j</kbd> and <kbd>k</kbd> next and previous turn,
<kbd>f</kbd> fold or unfold all</p></details>
</div>
"""


class Html:
    form = "html"
    suffix = ".html"
    one_thread = False
    wants_requests = False

    def write(self, story: Story, wishes: ExportOptions, report: ExportReport) -> Iterator[bytes]:
        session = story.tips[0].session if len(story.tips) == 1 else None
        writer = TurnPieces(wishes, report, session)
        yield "".join(_head(story)).encode()
        for line in contents(story):
            yield line.encode()
        yield b'</header>\n<main id="said" tabindex="-1">\n'
        before: TurnRange | None = None
        for thread_range in story.thread_ranges:
            yield "".join(_opening(thread_range, before)).encode()
            if headed(thread_range, before):
                writer.begin_range()
            before = thread_range
            for full_turn in story.turns_of(thread_range):
                report.count(full_turn)
                yield "".join(writer.turn(full_turn, next_of(story, thread_range))).encode()
            yield b"</section>\n"
        yield page_foot().encode()


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    return base64.b64encode(sha256(_file(name).encode()).digest()).decode()


def _policy() -> str:
    return (
        f"default-src 'none'; script-src 'sha256-{_hash('html.js')}'; style-src 'sha256-{_hash('html.css')}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def page_foot() -> str:
    return f"</main>\n<script>{_file('html.js')}</script>\n</body>\n</html>\n"


def page_head(title: str, about: str) -> str:
    """The page up to the list of its contents; its header is still open."""
    return "".join(_page_head(title, about))


def _head(story: Story) -> Iterator[str]:
    yield page_head(story.title, _about(story))
    yield from _threads(story)


def _page_head(name: str, about: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
    yield '<meta name="referrer" content="no-referrer">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield '<meta name="generator" content="weft">\n'
    title = escape(on_one_line(name))
    yield f'<title>{title}</title>\n<link rel="icon" href="data:,">\n<style>{_file("html.css")}</style>\n</head>\n'
    yield '<body>\n<a class="skip" href="#said">To the conversation</a>\n<header class="page">\n'
    yield f'<h1 dir="auto">{title}</h1>\n<p>{escape(about)}</p>\n{CONTROLS}'


def _about(story: Story) -> str:
    if story.is_context:
        return "The context: what the model saw there, or would see next."
    facts = [counted(sum(thread_range.count for thread_range in story.thread_ranges), "turn")]
    root_count, ends = sum(thread_range.parent is None for thread_range in story.thread_ranges), len(_ends(story))
    if root_count > 1:
        facts.append(f"{root_count:,} conversations")
    if ends > root_count:
        facts.append(f"{ends:,} branches")
    (tip, *other_tips) = story.tips
    if tip.session and not other_tips:
        facts.insert(0, f"Session {on_one_line(tip.session)}")
    return DOT.join([*facts, *(() if story.facts is None else _known_facts(story.facts()))])


def _known_facts(facts: StoryFacts) -> Iterator[str]:
    """When it was, and what it took."""
    if facts.started_at is not None and facts.ended_at is not None:
        start, end = moment(facts.started_at), moment(facts.ended_at)
        yield start if end <= start else f"{start[:16]} to {end[11:] if end[:10] == start[:10] else end}"
    if facts.tokens:
        whose = " in all sessions that made these turns" if facts.is_of_sessions else ""
        yield f"{counted(facts.tokens, 'token')}{DOT}{_cost(facts)}{whose}"
        if facts.cost is not None and facts.unpriced_tokens:
            yield f"{counted(facts.unpriced_tokens, 'token')} without a price"


def _cost(facts: StoryFacts) -> str:
    if facts.cost is None:
        return "cost not known"
    dollars = facts.cost / 1_000_000
    cost = f"${dollars:,.2f}" if facts.cost == 0 or dollars >= 0.1 else f"${dollars:,.4f}"
    return f"at least {cost}" if facts.unpriced_tokens else cost


def _ends(story: Story) -> list[TurnRange]:
    """The ranges that no other goes on from at their last turn."""
    fork_points = {(thread_range.parent, thread_range.leaves) for thread_range in story.thread_ranges}
    return [
        thread_range
        for thread_range in story.thread_ranges
        if (thread_range.number, thread_range.last) not in fork_points
    ]


def _threads(story: Story) -> Iterator[str]:
    """The threads that were asked for, where there are several; and which of several ends to read."""
    labels = {tip.turn_id: tip.session or tip.name for tip in story.tips}
    yield '<nav class="outline" aria-label="Threads">'
    if len(story.tips) > 1:
        is_long = len(story.tips) > THREADS_UNFOLDED
        yield f"<details><summary>{len(story.tips):,} threads</summary><ul>\n" if is_long else "<ul>\n"
        for tip in story.tips:
            words = on_one_line(DOT.join(word for word in (tip.session or tip.name, tip.title) if word))
            yield f'<li><a href="#t-{escape(tip.turn_id)}">{escape(words)}</a></li>\n'
        yield "</ul></details>\n" if is_long else "</ul>\n"
    ends = _ends(story)
    if len(ends) > 1:
        yield '<p class="reading" hidden><label for="thread">Read</label> <select id="thread">'
        yield '<option value="">all branches</option>\n'
        for thread_range in ends:
            label = (
                on_one_line(labels.get(thread_range.last, "")) or f"turn {thread_range.high}, {thread_range.last[-8:]}"
            )
            yield f'<option value="{thread_range.number}">the thread of {escape(label)}</option>\n'
        yield "</select></p>\n"
    yield "</nav>\n"


def _opening(thread_range: TurnRange, before: TurnRange | None) -> Iterator[str]:
    parent = (
        ""
        if thread_range.parent is None
        else f' data-parent="{thread_range.parent}" data-leaves="{thread_range.leaves_at}"'
    )
    number = thread_range.number
    yield f'<section class="strand" data-number="{number}"{parent} aria-label="Part {number + 1}">\n'
    if thread_range.leaves is None:
        yield "" if before is None else "<h2>Another conversation</h2>\n"
        return
    if not headed(thread_range, before):
        return
    link = f'<a href="#t-{escape(thread_range.leaves)}">turn {thread_range.leaves_at}</a>'
    inside = "" if thread_range.after_events is None else f", after {counted(thread_range.after_events, 'event')} of it"
    why = "" if thread_range.link is None else f" ({html_text(thread_range.link)})"
    word = "Goes on from" if goes_on(thread_range, before) else "Branch after"
    yield f"<h2>{word} {link}{inside}{why}</h2>\n"
