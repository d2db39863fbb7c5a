"""Mentions as they are typed, `@name` or `@"two words"`, turned into mentions that name an id.

A name counts where exactly one participant has it, or nobody who takes part and exactly one other. It is looked for as
it is written, then without regard to case. Anything else stays text, and so does what stands in code, behind a letter
(`me@example.org`) or behind a backslash.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from msgspec import Struct

from weft.kernel.mentions import find_mentions, prose_places, write_mention

_TYPED = re.compile(r'(?<![\w@])@(?:"([^"\n]{1,200})"|([^\s@"\[\]()<>{}`\\]{1,200}))')


class Addressee(Struct, frozen=True, kw_only=True):
    """Somebody whom a message can mention."""

    kind: str
    """`user` or `agent`."""
    id: str
    name: str
    is_present: bool
    """Whether they take part in the room."""


class TypedMentions(Struct, frozen=True, kw_only=True):
    """A text with its mentions written out, and the names that stayed text."""

    text: str
    unknown: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()


class _Names:
    """Who has a name. A name in another case means somebody only if nobody has it as it is written."""

    def __init__(self, addressees: Iterable[Addressee]) -> None:
        self._exact: dict[str, list[Addressee]] = {}
        self._folded: dict[str, list[Addressee]] = {}
        for addressee in addressees:
            self._exact.setdefault(_composed(addressee.name), []).append(addressee)
            self._folded.setdefault(_composed(addressee.name).casefold(), []).append(addressee)
        self.longest = max((len(unicodedata.normalize("NFD", name)) for name in self._folded), default=0)
        """No more letters than these can be typed for any of the names."""

    def matching(self, name: str) -> Sequence[Addressee]:
        """Those who take part, else the others."""
        composed = _composed(name)
        all_matching = self._exact.get(composed) or self._folded.get(composed.casefold()) or []
        distinct = list({(one.kind, one.id): one for one in all_matching}.values())
        return [one for one in distinct if one.is_present] or distinct


def write_typed_mentions(text: str, addressees: Iterable[Addressee]) -> TypedMentions:
    """The text with every typed mention of exactly one addressee written out. Mentions that are written out already
    stay as they are."""
    if "@" not in text:
        return TypedMentions(text=text)
    names, is_prose = _Names(addressees), prose_places(text)
    written = {place for mention in find_mentions(text) for place in range(mention.start, mention.end)}
    pieces: list[str] = []
    unknown: dict[str, None] = {}
    ambiguous: dict[str, None] = {}
    end = 0
    for match in _TYPED.finditer(text):
        if match.start() in written or not is_prose(match.start()):
            continue
        name, matching = _name_and_matching(match, names)
        if len(matching) == 1:
            pieces += [text[end : match.start()], write_mention(matching[0].kind, matching[0].id, matching[0].name)]
            end = match.end() if match[1] is not None else match.start(2) + len(name)
        elif name:
            (ambiguous if matching else unknown)[name] = None
    return TypedMentions(text="".join((*pieces, text[end:])), unknown=tuple(unknown), ambiguous=tuple(ambiguous))


def _name_and_matching(match: re.Match[str], names: _Names) -> tuple[str, Sequence[Addressee]]:
    """A quoted name whole. Of an unquoted one the longest beginning that somebody has and that no letter or digit
    follows; where there is none, all of it without the punctuation at its end."""
    if match[1] is not None:
        return match[1].strip(), names.matching(match[1].strip())
    typed = match[2]
    for length in range(min(len(typed), names.longest), 0, -1):
        is_end = length == len(typed) or not _is_word(typed[length])
        if is_end and (matching := names.matching(typed[:length])):
            return typed[:length], matching
    while typed and not _is_word(typed[-1]):
        typed = typed[:-1]
    return typed, ()


def _is_word(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LNM"


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)
