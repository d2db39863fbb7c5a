"""A summary without a model: what people asked, files, tools, errors, the last answer, and counts.

It is made of the thread alone, so it always succeeds and is always the same. It tells nothing of what a tool returned
but its names and paths: the words of a result would stand in a message of the user's role.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from weft.ledger.model import Message, ToolResultPart, ToolUsePart
from weft.runtime.assembly.layers import TurnMessages
from weft.runtime.compaction.key_terms import key_terms, plain_text
from weft.runtime.compaction.quoting import without_middle
from weft.runtime.inference.token_estimates import BYTES_A_TOKEN, text_tokens

MOST_QUESTIONS, MOST_PATHS, MOST_TOOLS = 40, 40, 20
QUESTION_CHARACTERS, ANSWER_CHARACTERS = 200, 1_500


def extract(turns: Sequence[TurnMessages], earlier: str, most_tokens: int) -> str:
    """The sections that fit into so many tokens, the most important first; at least the beginning of the first one."""
    earlier_characters = most_tokens * BYTES_A_TOKEN // 2
    sections = [section for section in _sections(turns, without_middle(earlier.strip(), earlier_characters)) if section]
    chosen: list[str] = []
    left = most_tokens
    for section in sections:
        tokens = text_tokens(section) + 1
        if tokens <= left:
            chosen.append(section)
            left -= tokens
    return "\n".join(chosen) if chosen else sections[0][: max(1, most_tokens)]


def _sections(turns: Sequence[TurnMessages], earlier: str) -> Iterator[str]:
    messages = [message for turn in turns for message in turn.messages]
    calls = [part for message in messages for part in message.content if isinstance(part, ToolUsePart)]
    results = [part for message in messages for part in message.content if isinstance(part, ToolResultPart)]
    failed = sum(part.is_error is True for part in results)
    yield f"{len(turns)} turns, {len(messages)} messages, {len(calls)} tool calls, {failed} of them failed."
    yield f"Before that: {earlier}" if earlier else ""
    yield _listed("Asked, the newest last", _questions(turns))
    answers = [message.text for message in messages if message.role == "assistant" and message.text.strip()]
    yield f"The last answer: {without_middle(answers[-1].strip(), ANSWER_CHARACTERS)}" if answers else ""
    paths = [term for term in key_terms(plain_text(messages)) if "/" in term or "." in term]
    yield _listed("Files and addresses", paths[:MOST_PATHS])
    tools = Counter(part.name for part in calls).most_common(MOST_TOOLS)
    yield _listed("Tools", [f"{name} ({count} times)" for name, count in tools])


def _questions(turns: Sequence[TurnMessages]) -> list[str]:
    """The first line of what was asked in each turn; of many turns the first one and the newest."""
    questions = [line for turn in turns if (line := _first_line(turn.messages))]
    return questions if len(questions) <= MOST_QUESTIONS else [questions[0], *questions[1 - MOST_QUESTIONS :]]


def _first_line(messages: Sequence[Message]) -> str:
    for message in messages:
        if message.role == "user" and message.text.strip():
            return without_middle(message.text.strip().splitlines()[0], QUESTION_CHARACTERS)
    return ""


def _listed(title: str, lines: Sequence[str]) -> str:
    return f"{title}:\n" + "\n".join(f"- {line}" for line in lines) if lines else ""
