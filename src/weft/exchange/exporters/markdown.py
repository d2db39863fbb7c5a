"""Threads as one Markdown page.

Each message stands in a quote and everything else in a fence longer than any inside it, so that no heading, fence or
tag of a message can end what it stands in. Raw HTML and images of a message get a backslash: showing the page fetches
nothing. A message that would reach out all the same, by raw HTML, an image, a diagram that readers draw with addresses
in it, or a link definition that holds for the whole page, is fenced as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from weft.exchange.exporters.port import ExportOptions, ExportReport, Story, ThinkingChoice
from weft.exchange.exporters.turn_contents import (
    DOT,
    ExportedImage,
    as_json,
    branch_text,
    call_changes,
    call_facts,
    counted,
    error_of,
    file_text,
    headed,
    image_note,
    is_one_thread,
    is_web_address,
    next_of,
    on_one_line,
    other_arguments,
    raster_in,
    result_contents,
    speaker,
    turn_facts,
    visible,
    with_bounded_tables,
)
from weft.ledger.api import FullTurn, TurnRange
from weft.ledger.model import ImagePart, Message, Part, ReasoningPart, TextPart, ToolCall, ToolResultPart, ToolUsePart

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

LONGEST_QUOTE = 100_000
"""Longer texts are fenced without a look at what is in them."""
_SPECIAL = re.compile(r"([\\`*_\[\]<#|~&$])")
_REACHING = re.compile(r"<(?=[A-Za-z/!?])|!(?=\[)")
"""Where a tag or an image begins."""
_TICKS = re.compile(r"`+")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
DIAGRAMS = frozenset(
    "blockdiag bpmn bytefield c4plantuml d2 dbml ditaa dot excalidraw geojson graphviz kroki mermaid nomnoml pikchr"
    " plantuml puml stl structurizr svgbob tikz topojson umlet vega vega-lite vegalite wavedrom wireviz".split()
)
"""Languages of fences that some readers of Markdown draw; a diagram may have addresses that are then fetched."""
_DIAGRAM = re.compile("|".join(sorted(DIAGRAMS)), re.IGNORECASE)
_FENCE_MARK = re.compile("```|~~~")


class Markdown:
    form = "markdown"
    suffix = ".md"
    one_thread = False
    wants_requests = False

    def write(self, story: Story, wishes: ExportOptions, report: ExportReport) -> Iterator[bytes]:
        page = _Page(wishes, report, level=2 if is_one_thread(story) else 3)
        yield _encoded(page.head(story))
        before: TurnRange | None = None
        for thread_range in story.thread_ranges:
            if headed(thread_range, before) and (before is not None or page.level > 2):
                yield _encoded(page.range_heading(thread_range))
            before = thread_range
            for full_turn in story.turns_of(thread_range):
                report.count(full_turn)
                yield _encoded(page.turn(full_turn, next_of(story, thread_range)))


def _encoded(blocks: Iterator[str]) -> bytes:
    return "".join(f"{block}\n\n" for block in blocks).encode()


class _Page:
    def __init__(self, wishes: ExportOptions, report: ExportReport, *, level: int) -> None:
        self._wishes, self._report, self.level = wishes, report, level

    def head(self, story: Story) -> Iterator[str]:
        yield f"# {escaped(story.title)}"
        lines = []
        for tip in story.tips:
            about = f", {escaped(tip.title)}" if tip.title and tip.title != story.title else ""
            session = f"session {code(tip.session)}{about}, " if tip.session else ""
            lines.append(f"- {session}turn {code(tip.turn_id)}")
        if story.is_context:
            lines.append("- the context: what the model saw there, or would see next")
        yield "\n".join(lines)

    def range_heading(self, thread_range: TurnRange) -> Iterator[str]:
        if thread_range.leaves is None:
            yield f"## From the root, turn {code(thread_range.first)}"
            return
        inside = (
            "" if thread_range.after_events is None else f", after {counted(thread_range.after_events, 'event')} of it"
        )
        link = "" if thread_range.link is None else f" ({escaped(thread_range.link)})"
        heading = f"From turn {code(thread_range.leaves)}{inside}{link}"
        yield f"## {heading}" if self.level > 2 else f"*{heading} on:*"

    def turn(self, full_turn: FullTurn, next_turn: str | None) -> Iterator[str]:
        turn = full_turn.turn
        yield f"{'#' * self.level} Turn {turn.depth}"
        yield DOT.join([code(turn.id), *(escaped(fact) for fact in turn_facts(full_turn))])
        if turn.error is not None:
            yield "**Error**"
            yield fenced(error_of(turn) or "")
        if full_turn.summary is not None:
            yield "**Summary of what came before**"
            yield block_quote(full_turn.summary.summary)
        called = {item.call_id for item in full_turn.items if isinstance(item, ToolCall)}
        for item in full_turn.items:
            if isinstance(item, Message):
                yield from self._message(full_turn, item, called)
            else:
                yield from self._call(item)
        if branches := [branch for branch in full_turn.branches if branch.turn_id != next_turn]:
            yield "Other branches leave here:"
            yield "\n".join(f"- {code(branch.turn_id)} {escaped(branch_text(branch))}" for branch in branches)

    def _message(self, full_turn: FullTurn, message: Message, called: set[str]) -> Iterator[str]:
        """Nothing for a message of which nothing is shown."""
        parts = (part for part in message.content if not (isinstance(part, ToolUsePart) and part.id in called))
        blocks = [block for part in parts for block in self._part_blocks(part)]
        if notes := full_turn.files.get(message.id):
            blocks.append("\n".join(f"- {code(file_text(note))}" for note in notes))
        if blocks:
            yield f"**{escaped(speaker(message, full_turn.turn))}**"
            yield from blocks

    def _part_blocks(self, part: Part) -> Iterator[str]:
        match part:
            case TextPart():
                yield block_quote(str(part.text))
            case ReasoningPart():
                yield from self._thinking(str(part.text))
            case ImagePart():
                yield self._image(str(part.url))
            case ToolUsePart():
                yield from self._tool(f"**Tool call** {code(part.name)} {code(part.id)}", [part.input])
            case ToolResultPart():
                failed = " · error" if part.is_error is True else ""
                yield from self._tool(f"**Result** of {code(part.tool_call_id)}{failed}", result_contents(part.output))

    def _thinking(self, text: str) -> Iterator[str]:
        if self._wishes.thinking is ThinkingChoice.NONE:
            self._report.left_out["thinking"] += 1
            return
        yield "*Thinking*"
        yield block_quote(text)

    def _tool(self, heading: str, values: Any) -> Iterator[str]:
        """A use or a result that stands in a message by itself."""
        if not self._wishes.tools:
            self._report.left_out["part of a tool call"] += 1
            return
        yield heading
        for value in values:
            yield self._image(value.url) if isinstance(value, ExportedImage) else _valued(value)

    def _call(self, call: ToolCall) -> Iterator[str]:
        if not self._wishes.tools:
            self._report.left_out["tool call"] += 1
            return
        yield DOT.join([f"**Tool call** {code(call.name)}", *(escaped(fact) for fact in call_facts(call))])
        changes = call_changes(call)
        for change in changes:
            if change.path:
                yield code(change.path)
            yield fenced("\n".join(change.lines), "diff")
        other_fields = other_arguments(call, changes)
        if other_fields not in (None, {}, ""):
            yield _valued(other_fields)
        if call.error is not None:
            yield "Error:"
            yield fenced(call.error)
        if call.result is not None:
            yield "Result:"
            for content in result_contents(call.result):
                yield self._image(content.url) if isinstance(content, ExportedImage) else fenced(content)

    def _image(self, url: str) -> str:
        raster = raster_in(url)
        if raster is not None and self._wishes.assets is not None:
            return f"![image]({_address(self._wishes.assets.store_file(raster.data, raster.suffix))})"
        if raster is not None:
            self._report.left_out["image"] += 1
            return escaped(f"(an image, {raster.media_type}, {len(raster.data):,} bytes, that is not in this page)")
        return f"image: <{url}>" if is_web_address(url) and url == visible(url) else code(image_note(url))


def _valued(value: Any) -> str:
    return fenced(value) if isinstance(value, str) else fenced(as_json(value), "json")


def _address(path: str) -> str:
    from urllib.parse import quote

    return quote(path)


def escaped(text: str) -> str:
    """Words of a line that mean themselves."""
    return _SPECIAL.sub(r"\\\1", on_one_line(text))


def code(text: str) -> str:
    """A code span around any text."""
    text = on_one_line(text) or " "
    ticks = "`" * (_longest(text, "`") + 1)
    pad = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def fenced(text: str, language: str = "") -> str:
    """A block that nothing inside it can end."""
    text = visible(text)
    fence = "`" * max(3, _longest(text, "`") + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _longest(text: str, letter: str) -> int:
    return max((len(run) for run in re.findall(f"{letter}+", text)), default=0)


def block_quote(text: str) -> str:
    """A message in a quote, where its own headings, lists and fences stay inside."""
    text = visible(text)
    tame = text if len(text) <= LONGEST_QUOTE and _stays_inside(text) else None
    if tame is None and len(text) <= LONGEST_QUOTE and _stays_inside(unreaching := _without_reach(text)):
        tame = unreaching
    lines = (fenced(text) if tame is None else tame).split("\n")
    return "\n".join(f"> {line}" if line else ">" for line in lines)


def _stays_inside(text: str) -> bool:
    """No raw HTML, no image, no diagram, and no definition of a link, which would hold for every message."""
    if not any(mark in text for mark in ("<", "]:", "![")) and not _may_have_diagram(text):
        return True
    return all(_is_tame(text, parser) for parser in _parsers())


def _may_have_diagram(text: str) -> bool:
    """Does a line name a language of diagrams behind a fence's mark? Each letter is looked at once."""
    marked = ((line, _FENCE_MARK.search(line)) for line in text.split("\n"))
    return any(mark is not None and _DIAGRAM.search(line, mark.end()) for line, mark in marked)


def _is_tame(text: str, parser: MarkdownIt) -> bool:
    env: dict[str, Any] = {}
    try:
        tokens = parser.parse(text, env)
    except (RecursionError, ValueError, IndexError):  # whatever a parser cannot read is shown as it is
        return False
    inner = [token for outer in tokens for token in (outer, *(outer.children or ()))]
    return not env.get("references") and not any(_reaches_out(token) for token in inner)


def _reaches_out(token: Token) -> bool:
    """Is it HTML, an image, or a fence of a diagram's language, however that is written: `mermaid`, `{.mermaid}`?"""
    if token.type == "fence":
        return not DIAGRAMS.isdisjoint(re.findall(r"[\w-]+", token.info.lower()))
    return token.type.startswith("html") or token.type == "image"


@cache
def _parsers() -> tuple[MarkdownIt, ...]:
    """With tables, too: a cell ends a span of code that goes on in CommonMark."""
    from markdown_it import MarkdownIt

    plain = {"html": True, "linkify": False, "typographer": False}
    return MarkdownIt("commonmark", plain), with_bounded_tables(MarkdownIt("js-default", plain))


def _without_reach(text: str) -> str:
    """With a backslash before what would be a tag or an image, outside code."""
    lines, fence = [], ""
    for line in text.split("\n"):
        fence_match = _FENCE.match(line)
        if fence:
            if fence_match and fence_match[1].startswith(fence) and not fence_match[2].strip():
                fence = ""
        elif fence_match and not (fence_match[1][0] == "`" and "`" in fence_match[2]):
            fence = fence_match[1]
        else:
            line = _escaped_reach(line)
        lines.append(line)
    return "\n".join(lines)


def _escaped_reach(line: str) -> str:
    spans, copied_until = [], 0
    for start, stop in _code_spans(line):
        spans += [_REACHING.sub(r"\\\g<0>", line[copied_until:start]), line[start:stop]]
        copied_until = stop
    return "".join([*spans, _REACHING.sub(r"\\\g<0>", line[copied_until:])])


def _code_spans(line: str) -> Iterator[tuple[int, int]]:
    """Where code stands between two runs of equally many backticks, as CommonMark pairs them: each run with the next
    one of its length."""
    runs = [match.span() for match in _TICKS.finditer(line)]
    nearest: dict[int, int] = {}
    ends: list[int | None] = []
    for number in range(len(runs) - 1, -1, -1):
        length = runs[number][1] - runs[number][0]
        ends.append(nearest.get(length))
        nearest[length] = number
    ends.reverse()
    number = 0
    while number < len(runs):
        end = ends[number]
        if end is not None:
            yield runs[number][0], runs[end][1]
        number = (number if end is None else end) + 1
