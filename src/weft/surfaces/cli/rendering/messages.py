"""One message: who spoke, what was said; what nobody typed is marked by its source and folded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import UNSET, UnsetType

from weft.exchange.file_changes import opened
from weft.ledger.model import (
    AppliedSubstitution,
    FileNote,
    ImagePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolResultPart,
    ToolUsePart,
)
from weft.surfaces.cli.rendering.page import STEP, PageLayout, image_text
from weft.surfaces.cli.rendering.results import result_text
from weft.surfaces.cli.rendering.shapes import lead_of, lines_text, rest_text
from weft.surfaces.cli.screen import Line, Span
from weft.surfaces.plain_text import safe

FOLD = 5
FOLD_THINKING = 3
FOLD_FILES = 5
ROLE_STYLES = {"user": "user", "assistant": "assistant", "system": "dim", "tool": "tool"}


def substitution_mark(substituted: AppliedSubstitution | UnsetType) -> Line:
    """What stands beside words that were put in the place of others."""
    if substituted is UNSET:
        return []
    reason = f": {safe(substituted.reason)}" if substituted.reason else ""
    return [Span(f" substituted by {safe(substituted.by)}{reason}", "warn")]


class MessageRenderer:
    """Lines of messages on one page."""

    def __init__(self, page: PageLayout) -> None:
        self._page = page

    def heading(self, message: Message) -> Line:
        source = f" ({message.source})" if message.source not in (None, "human") else ""
        return [
            Span(message.role, ROLE_STYLES.get(message.role, "heading")),
            Span(source, "dim"),
            *substitution_mark(message.substituted),
        ]

    def body(
        self, message: Message, parts: Sequence[Part], files: Sequence[FileNote], tools: Mapping[str, str]
    ) -> Iterator[Line]:
        """`tools`: by the ids of calls, what was called."""
        typed = message.role in ("user", "assistant") and message.source in (None, "human")
        for part in parts:
            yield from self._part(part, typed, message.role == "user", tools)
        notes: list[Line] = [[Span(self._note(file), "dim")] for file in files]
        yield from self._page.folded(notes, FOLD_FILES, 1)

    def _note(self, file: FileNote) -> str:
        return f"{file.kind} {safe(self._page.path(file.path))}{lines_text(file.line_start, file.line_end)}"

    def _part(self, part: Part, typed: bool, asked: bool, tools: Mapping[str, str]) -> Iterator[Line]:
        page = self._page
        match part:
            case TextPart() if typed:
                yield from page.whole_text(self._words(str(part.text), asked), 1)
            case TextPart():
                yield from page.text(str(part.text), FOLD, 1, "dim")
            case ReasoningPart():
                yield from page.text(str(part.text), FOLD_THINKING, 2, lead="thinking: ")
            case ImagePart():
                yield [STEP, Span(image_text(str(part.url)), "dim")]
            case ToolUsePart():
                yield [STEP, *self._use(part)]
            case ToolResultPart():
                failed = part.is_error is True
                called = tools.get(part.tool_call_id, part.tool_call_id)
                yield [STEP, Span("result of ", "dim"), Span(called, "bad" if failed else "tool")]
                yield from page.text(result_text(part.output), FOLD, 2)

    def _words(self, text: str, asked: bool) -> str:
        """A command that was typed, without the tags it was handed over in; whatever else it was, as it is."""
        from weft.ledger.read.session_list import spoken

        is_command = asked and not self._page.full and text.startswith(("<command-", "<bash-input>"))
        return spoken(text) if is_command else text

    def _use(self, part: ToolUsePart) -> Line:
        arguments = opened(part.input)
        lead = lead_of(arguments, None, self._page)
        rest = rest_text(arguments, lead, self._page.full)
        room = self._page.room(1) - len(part.name) - 4
        if not lead.text:
            return [Span(part.name, "tool"), f"({self._page.cut(rest, room)})"]
        return [Span(part.name, "tool"), " ", self._page.cut(f"{lead.text}  {rest}".rstrip(), room)]
