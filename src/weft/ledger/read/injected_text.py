"""Which passages of a person's message were put there by a tool: reminders, opened files, wrappers of commands.

Tools mark what they add with tags of their own. A passage is such a tag at the beginning of a line, with everything to
the end of its line where it is closed. Tags that a person may have written, such as `<div>`, are no marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from weft.ledger.read.turn_titles import spoken

INJECTED_TAGS = frozenset(
    "additional_data agent-message bash-stderr bash-stdout collaboration_mode command-args command-contents"
    " command-message command-name current_datetime environment_context environment_details git_status hook_context"
    " ide_diagnostics ide_opened_file ide_selection local-command-caveat local-command-stderr local-command-stdout"
    " new-diagnostics open_and_recently_viewed_files project_layout qwen:user-prompt-submit-context session_context"
    " session-start-hook skills_instructions system-reminder system_reminder task-notification teammate-message"
    " turn_aborted user_info user_instructions user-prompt-submit-hook".split()
)
INSTRUCTIONS_TAG = "INSTRUCTIONS"
"""People write it too: it counts only below the heading that Codex writes above it."""
COMMANDS = ("<command-name>", "<command-message>", "<bash-input>")
_OPENING = re.compile(r"^[^\S\n]*<([A-Za-z][\w:-]{0,60})(?:[^\S\n][^<>\n]{0,300})?>", re.MULTILINE)
LONGEST_HEADING_CHARS = 1_000
_HEADING = re.compile(r"^# AGENTS\.md instructions[^\n]*\n\s*\Z", re.MULTILINE)
"""What Codex writes above its instructions."""


class MessagePassage(Struct, frozen=True):
    """A piece of a message's text, and whether a tool put it there."""

    text: str
    is_injected: bool = False

    @property
    def tag(self) -> str:
        """The name of the tag that it begins with; empty where it has none."""
        opening = _OPENING.search(self.text) if self.is_injected else None
        return "" if opening is None else opening[1]


def message_passages(text: str) -> list[MessagePassage]:
    """A text in pieces, one after the other; together they are the text."""
    pieces: list[MessagePassage] = []
    typed_from = 0
    for start, end in _injected_spans(text):
        if text[typed_from:start].strip():
            pieces.append(MessagePassage(text[typed_from:start]))
        else:
            start = typed_from
        pieces.append(MessagePassage(text[start:end], is_injected=True))
        typed_from = end
    if text[typed_from:].strip() or not pieces:
        pieces.append(MessagePassage(text[typed_from:]))
    elif typed_from < len(text):
        pieces[-1] = MessagePassage(pieces[-1].text + text[typed_from:], is_injected=True)
    return pieces


def _injected_spans(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    open_tags: set[str] = set()
    """Those that are not closed from here on."""
    while (opening := _OPENING.search(text, at)) is not None:
        start, tag = opening.start(), opening[1]
        heading = _heading_above(text, at, start) if tag == INSTRUCTIONS_TAG else None
        at = opening.end()
        if tag in open_tags or (heading is None and tag not in INJECTED_TAGS):
            continue
        closing = f"</{tag}>"
        end = text.find(closing, at)
        if end < 0:
            open_tags.add(tag)
            continue
        at = _line_end(text, end + len(closing))
        yield start if heading is None else heading, at


def _heading_above(text: str, after: int, start: int) -> int | None:
    heading = _HEADING.search(text, max(after, start - LONGEST_HEADING_CHARS), start)
    return None if heading is None else heading.start()


def _line_end(text: str, at: int) -> int:
    """Behind the line break after `at`, where nothing else stands before it; else `at`."""
    end = text.find("\n", at)
    return end + 1 if end >= 0 and not text[at:end].strip() else at


def typed_command(text: str) -> str | None:
    """The command that a person typed, where a message is a tool's record of one; such as `/review 12` or `! ls`."""
    return spoken(text) if text[:200].lstrip().startswith(COMMANDS) else None
