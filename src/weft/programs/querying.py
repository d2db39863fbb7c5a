"""Information found by its type, its tags, a place in its content, and its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.enums import InfoType, ProgramKind
from weft.kernel.errors import InvalidInput
from weft.kernel.words import tokens
from weft.programs.json_paths import found_at, parse_path
from weft.programs.model import Program
from weft.programs.reading import list_programs
from weft.store.port import ReadTxn


class InformationQuery(Struct, frozen=True, kw_only=True):
    """What is asked for; whatever is given must hold."""

    text: str | None = None
    info_type: str | None = None
    tags: Sequence[str] = ()
    path: str | None = None
    equals: Any | UnsetType = UNSET
    archived: bool = False
    """Also what is a draft, or put away."""


def ask(txn: ReadTxn, question: InformationQuery) -> list[Program]:
    """By name. What is in use counts, and with `archived` all of it."""
    if question.info_type is not None and question.info_type not in tuple(InfoType):
        raise InvalidInput(f"type is {question.info_type!r:.80}", f"one of {', '.join(InfoType)}")
    if question.equals is not UNSET and question.path is None:
        raise InvalidInput("a value is compared at a path", "name the path, too")
    states = () if question.archived else ("validated", "active")
    return [one for one in list_programs(txn, ProgramKind.INFORMATION, states) if fits(one, question)]


def fits(program: Program, question: InformationQuery) -> bool:
    config = program.config if isinstance(program.config, dict) else {}
    if question.info_type is not None and config.get("infoType") != question.info_type:
        return False
    if not set(question.tags) <= set(program.tags):
        return False
    if question.path is not None:
        values = list(found_at(config.get("content"), parse_path(question.path)))
        if not values or (question.equals is not UNSET and question.equals not in values):
            return False
    return question.text is None or _has_words(program, config, question.text)


def _has_words(program: Program, config: dict[str, Any], text: str) -> bool:
    """All of the words, anywhere in its name and what it says; the last may be a beginning."""
    wanted = [token.word for token in tokens(text)]
    if not wanted:
        raise InvalidInput(f"{text!r:.80} has no words to look for", "give letters or digits")
    there = {token.word for piece in (program.name, *_texts(config)) for token in tokens(piece)}
    return set(wanted[:-1]) <= there and any(word.startswith(wanted[-1]) for word in there)


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for name, inner in value.items() for text in (name, *_texts(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [] if value is None else [str(value)]
