"""What turns are about, in a line each: what a person asked, not what was put before or beside it.

Tools wrap what they inject in tags (`<system-reminder>`, an opened file, the output of a command) and hand it over as
the user's words. So messages of people come first, tagged blocks before the words are passed over, and a command that
was typed counts only where nothing else was. Of what an agent is sent of a conversation, the message itself counts,
which comes last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from weft.kernel.advice import Action
from weft.kernel.errors import Damaged
from weft.kernel.mentions import show_mentions
from weft.ledger.read.access import access_of
from weft.ledger.views.values import list_in, text_of
from weft.store.port import ReadTxn
from weft.store.sql import AT_ONCE, rows_in

LOOKED_AT = 6
READ = 64 * 1024
BLOCKS = 32
LOOKED_AT_CHARS = 4096
LONGEST_CHARS = 400
"""Of a subject: more than a line of any screen shows."""
_OPENING = re.compile(r"<([A-Za-z][\w.:-]*)(?:\s[^<>]*)?>|<!--")
_ANNOUNCED = re.compile(r"[^\n<]{1,80}:[^\S\n]*\n\s*<([A-Za-z][\w.:-]*)(?:\s[^<>]*)?>")
_RAN = "Ran `"
"""Before a command whose output stands in the lines below it."""
_WEAK = ("/", "! ", _RAN, "[Request interrupted")
"""Commands that were typed or run, and what was called off."""
_NONE = (0, False, 0, "")
_UNTITLED = re.compile(r"(?:New|Child) session - \d{4}-\d\d-\d\d")


def load_subjects(txn: ReadTxn, turns: Sequence[str]) -> dict[str, str]:
    """The subject of each turn that has one; a few statements for hundreds of turns."""
    found: dict[str, str] = {}
    for start in range(0, len(turns), AT_ONCE):
        found |= _load_some(txn, turns[start : start + AT_ONCE])
    return found


class _Candidate(Struct):
    """A message that may tell what its turn is about, best rank first."""

    rank: int
    seq: int
    contents: list[int]


def _load_some(txn: ReadTxn, turns: Sequence[str]) -> dict[str, str]:
    summaries: dict[str, int] = dict(rows_in(txn.sql, "SELECT turn, summary FROM compaction WHERE turn IN", turns))
    candidates: dict[str, list[_Candidate]] = {}
    rows = rows_in(
        txn.sql,
        "SELECT t.id, t.n, m.role, m.source, m.seq, m.text, m.parts FROM turn t JOIN message m"
        f" ON m.turn = t.n WHERE (m.role = 'user' OR m.seq < {LOOKED_AT}) AND t.id IN",
        [turn for turn in turns if turn not in summaries],
    )
    may_read_prompt, of_rooms = access_of(txn).may_read_prompt, _in_rooms(txn, turns)
    for turn, n, role, source, seq, text, parts in rows:
        contents = [] if role == "system" and not may_read_prompt(n) else _texts(text, parts)
        contents = contents[-1:] if turn in of_rooms and role == "user" else contents[:LOOKED_AT]
        if contents:
            candidates.setdefault(turn, []).append(_Candidate(_rank(role, source), seq, contents))
    best = {turn: sorted(some, key=lambda each: (each.rank, each.seq))[:LOOKED_AT] for turn, some in candidates.items()}
    txn.facts.hold([*summaries.values(), *(n for some in best.values() for each in some for n in each.contents)])
    return {turn: in_one_line(text_of(txn, n) or "") for turn, n in summaries.items()} | {
        turn: show_mentions(_best_line(txn, some)) for turn, some in best.items()
    }


def _in_rooms(txn: ReadTxn, turns: Sequence[str]) -> set[str]:
    """Those of these turns that answer messages of conversations."""
    query = "SELECT i.turn FROM inbox i JOIN room_delivery d ON d.message = i.message WHERE i.turn IN"
    return {turn for (turn,) in rows_in(txn.sql, query, turns)}


def _texts(text: int | None, parts: str | None) -> list[int]:
    if text is not None:
        return [text]
    try:
        return [part["text"] for part in list_in(parts) if part["type"] == "text"]
    except (KeyError, TypeError) as error:
        raise Damaged(f"a message's part lacks {error}", Action.VERIFY_AND_REBUILD) from error


def _rank(role: str, source: str | None) -> int:
    """People's words, then what others sent in the user's place, then anything."""
    if role != "user":
        return 2
    return 0 if source in (None, "human") else 1


def _best_line(txn: ReadTxn, candidates: list[_Candidate]) -> str:
    ranked_lines = [(each.rank, best_line(text_of(txn, n) or "" for n in each.contents)) for each in candidates]
    return min(
        ((rank, line.startswith(_WEAK), i, line) for i, (rank, line) in enumerate(ranked_lines) if line), default=_NONE
    )[3]


def best_line(texts: Iterable[str]) -> str:
    """What was said, in one line, over the parts of one message; parts that are one tagged block come last."""
    tagged = ""
    for text in texts:
        words, is_tagged = _without_blocks(text)
        line = first_line(words) if words.startswith(_RAN) else in_one_line(words)
        if line and not is_tagged:
            return line
        tagged = tagged or line
    return tagged


def spoken(text: str) -> str:
    """What was typed or told, without the tagged blocks before it and the tags around it."""
    return _without_blocks(text)[0]


def _without_blocks(text: str) -> tuple[str, bool]:
    """What was typed or told; and whether it stood inside a tagged block, since nothing else was there."""
    text = text[:READ].strip()
    if text.startswith("<command-"):
        words = (_within(text, "command-name"), _within(text, "command-args"))
        return " ".join(word for word in words if word) or text, False
    if text.startswith("<bash-input>"):
        return f"! {_within(text, 'bash-input')}", False
    is_tagged = False
    for _ in range(BLOCKS):
        announced = _ANNOUNCED.match(text)
        opening = announced or _OPENING.match(text)
        if opening is None:
            break
        closing = f"</{opening[1]}>" if opening[1] else "-->"
        end = text.find(closing)
        if end < 0:
            break
        after = "" if announced else text[end + len(closing) :].strip()
        inside = text[opening.end() : end].strip()
        is_tagged = is_tagged or not after
        text = after or _within(inside, "summary") or inside
    return text, is_tagged


def _within(text: str, tag: str) -> str:
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0].strip()


def first_line(text: str) -> str:
    """The first line that says something; only as much of a long text as needed is looked at."""
    return next((line.strip() for line in text[:LOOKED_AT_CHARS].splitlines() if line.strip()), "")


def meaningful_title(title: str | None) -> str | None:
    """A session's title, if it says anything. Some tools put the time of creation there until they know more."""
    return title if title and not _UNTITLED.match(title) else None


def in_one_line(text: str) -> str:
    """The text with a space for every line break and run of blanks; the end of a long one is cut with an ellipsis."""
    line = " ".join(text[:LOOKED_AT_CHARS].split())
    if len(line) <= LONGEST_CHARS and len(text) <= LOOKED_AT_CHARS:
        return line
    return f"{line[:LONGEST_CHARS].rstrip()}…" if line else ""
