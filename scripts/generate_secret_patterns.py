"""Writes what a text must hold for a rule of the installed kingfisher to match: words, and a looser pattern in Python.

    python -m scripts.generate_secret_patterns

Of a rule's expression the beginning is kept, up to the first repeat that may be long: whatever the rule matches begins
with a match of that. What only restricts (`\\b`, `$`) is left out. So a text without a match of the looser patterns has
none of the rules', and a pattern takes linear time. The rules are those of kingfisher (Apache License 2.0), betterleaks
(MIT) and veles (Apache License 2.0).
"""

from __future__ import annotations

import json
import re
from re import _constants as kind  # type: ignore[attr-defined, unused-ignore]
from re import _parser as parser  # type: ignore[attr-defined, unused-ignore]
from typing import Any

from weft.ledger.secrets.scan import COMPONENTS, PATTERNS, in_short

SHORT_REPEAT = 256
"""A repeat of up to so many, or of exactly so many as it says, is kept."""
MOST_WORDS, MOST_SETS = 64, 4
SEPARATORS = frozenset(" \t\r\n\f\v_.:=-'\"")
_flags = re.compile(r"\(\?([a-z]*(?:-[a-z]+)?)\)")
_classes = {"[:alnum:]": "a-zA-Z0-9", "[:alpha:]": "a-zA-Z", "[:digit:]": "0-9", "[:xdigit:]": "0-9a-fA-F"}
Words = frozenset[str]


def main() -> None:
    import kingfisher_sdk

    catalog = kingfisher_sdk.Rules(cache=False)
    rules = {
        rule["id"]: looser(catalog.detail(rule["id"])["detection_regex"]) | {"kind": in_short(rule["name"])}
        for rule in catalog.metadata()
        if rule["visible"] or rule["id"] in COMPONENTS
    }
    made = {"version": kingfisher_sdk.__version__, "count": len(catalog), "rules": dict(sorted(rules.items()))}
    PATTERNS.write_text(json.dumps(made, indent=1, ensure_ascii=True) + "\n")
    print(f"{PATTERNS}: {len(rules)} rules")


def looser(expression: str) -> dict[str, Any]:
    tree = parser.parse(python_expression(expression))
    return {"words": [sorted(words) for words in required_words(tree)], "pattern": written_part(tree)[0]}


def python_expression(expression: str) -> str:
    """Rust's expression as Python reads it: flags in its midst hold to the end of their group."""
    for name, letters in _classes.items():
        expression = expression.replace(name, letters)
    expression = expression.replace(r"\z", r"\Z")
    written, opened, at = [], [0], 0
    while at < len(expression):
        if expression[at] == "\\":
            written.append(expression[at : at + 2])
            at += 2
        elif expression[at] == "[":
            end = class_end(expression, at)
            written.append("[" + expression[at + 1 : end].replace("[", "\\["))
            at = end
        elif expression[at] == "(" and (flags := _flags.match(expression, at)):
            written.append(f"(?{flags[1]}:")
            opened[-1] += 1
            at = flags.end()
        else:
            if expression[at] == "(":
                opened.append(0)
            elif expression[at] == ")":
                written.append(")" * opened.pop())
            elif expression[at] == "|" and opened[-1]:
                # The flags hold beyond this bar as well; Python has no such form. All flags end here, and begin anew.
                flags_again = [part for part in written if _opens_flags(part)][-opened[-1] :]
                written.append(")" * opened[-1] + "|" + "".join(flags_again))
                at += 1
                continue
            written.append(expression[at])
            at += 1
    return "".join(written) + ")" * opened.pop()


def _opens_flags(part: str) -> bool:
    return part.startswith("(?") and part.endswith(":") and len(part) > len("(?:")


def class_end(expression: str, at: int) -> int:
    """Where a class of characters ends."""
    at += 2 if expression[at + 1] == "^" else 1
    while expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at


def required_words(tree: Any) -> list[Words]:
    """Sets of words in small letters, of each of which every match holds one; the longest words first."""
    items, sets = list(tree), set[Words]()
    for start in range(len(items)):
        longest: Words = frozenset()
        for end in range(start + 1, len(items) + 1):
            words = whole_words(items[start:end])
            if words is None:
                break
            longest = max(longest, words, key=shortest)
        sets.add(longest)
    for op, value in items:
        if op is kind.SUBPATTERN:
            sets.update(required_words(value[-1]))
        elif op is kind.BRANCH:
            best = [next(iter(required_words(branch)), frozenset[str]()) for branch in value[1]]
            sets.add(frozenset().union(*best) if all(best) else frozenset())
        elif op in (kind.MAX_REPEAT, kind.MIN_REPEAT) and value[0]:
            sets.update(required_words(value[2]))
    useful: list[Words] = []
    for words in sorted(filter(shortest, sets), key=lambda words: (-shortest(words), sorted(words))):
        if not any(follows(words, longer) for longer in useful):
            useful.append(words)
    return useful[:MOST_SETS]


def follows(words: Words, longer: Words) -> bool:
    """Whether a text that holds one of the longer words holds one of these as well."""
    return all(any(word in other for word in words) for other in longer)


def shortest(words: Words) -> int:
    return min(map(len, words), default=0)


def whole_words(tree: Any) -> Words | None:
    """All that this part matches, in small letters, where that is a few words."""
    words = {""}
    for op, value in tree:
        if op is kind.AT:
            continue
        parts = word_parts(op, value)
        if parts is None or len(words) * len(parts) > MOST_WORDS:
            return None
        words = {word + part for word in words for part in parts}
    return frozenset(words)


def word_parts(op: Any, value: Any) -> Words | None:
    if op is kind.LITERAL:
        return frozenset({chr(value).lower()})
    if op is kind.IN:
        return frozenset(chr(code).lower() for _, code in value) if all(o is kind.LITERAL for o, _ in value) else None
    if op is kind.SUBPATTERN:
        return whole_words(value[-1])
    if op is kind.BRANCH:
        branches = [whole_words(branch) for branch in value[1]]
        return None if None in branches else frozenset().union(*branches)  # type: ignore[arg-type]
    if op in (kind.MAX_REPEAT, kind.MIN_REPEAT) and value[:2] == (0, 1):
        words = whole_words(value[2])
        return None if words is None else words | {""}
    return None


def written_part(tree: Any) -> tuple[str, bool]:
    """The part as an expression, up to where it may be long; whether that is all of it."""
    written = ""
    for op, value in tree:
        text, is_whole = written_item(op, value)
        written += text
        if not is_whole:
            return written, False
    return written, True


def written_item(op: Any, value: Any) -> tuple[str, bool]:
    if op is kind.SUBPATTERN:
        _, add, drop, inner = value
        text, is_whole = written_part(inner)
        flags = ("i" if add & re.IGNORECASE.value else "") + ("-i" if drop & re.IGNORECASE.value else "")
        return f"(?{flags}:{text})", is_whole
    if op is kind.BRANCH:
        branches = [written_part(branch) for branch in value[1]]
        return f"(?:{'|'.join(text for text, _ in branches)})", all(is_whole for _, is_whole in branches)
    if op in (kind.MAX_REPEAT, kind.MIN_REPEAT):
        return written_repeat(*value)
    return written_letter(op, value), True


def written_letter(op: Any, value: Any) -> str:
    if op is kind.AT:
        return ""
    if op is kind.ANY:
        return r"[\s\S]"
    if op is kind.IN:
        return f"[{''.join(map(class_member, value))}]"
    letter = re.escape(chr(value))
    return {kind.LITERAL: letter, kind.NOT_LITERAL: f"[^{letter}]"}[op]


def written_repeat(least: int, most: int, inner: Any) -> tuple[str, bool]:
    text, is_whole = written_part(inner)
    group = text if len(inner) == 1 and inner[0][0] in (kind.LITERAL, kind.IN, kind.ANY) else f"(?:{text})"
    if not is_whole:
        return (group if least else ""), False
    if most == least:
        return f"{group}{{{least}}}", True
    if most <= SHORT_REPEAT:
        return f"{group}{{{least},{most}}}", True
    if is_separators(inner):
        return group + ("+" if least else "*"), least <= 1
    return f"{group}{{{least}}}", False


def is_separators(tree: Any) -> bool:
    """Whether it is one character that stands between words: a run of them is gone through once."""
    if len(tree) != 1 or tree[0][0] is not kind.IN:
        return False
    return all(
        (op is kind.LITERAL and chr(code) in SEPARATORS) or (op, code) == (kind.CATEGORY, kind.CATEGORY_SPACE)
        for op, code in tree[0][1]
    )


def class_member(member: tuple[Any, Any]) -> str:
    op, value = member
    if op is kind.NEGATE:
        return "^"
    if op is kind.LITERAL:
        return re.escape(chr(value))
    if op is kind.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    return {
        kind.CATEGORY_DIGIT: r"\d", kind.CATEGORY_SPACE: r"\s", kind.CATEGORY_WORD: r"\w",
        kind.CATEGORY_NOT_DIGIT: r"\D", kind.CATEGORY_NOT_SPACE: r"\S", kind.CATEGORY_NOT_WORD: r"\W",
    }[value]  # fmt: skip


if __name__ == "__main__":
    main()
