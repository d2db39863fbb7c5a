"""What models are sent of a result that holds secrets: a mark in the place of each, in all of its texts.

The rules are given a result in several writings: its texts as they are, without the escapes of JSON, with the names of
their fields, and across the border between two texts. What they find is looked for in every text and name. The result
that comes of it is given to them again; texts in which they still find something are left out whole.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from weft.kernel.errors import Unsupported
from weft.ledger.model import SentResult
from weft.ledger.secrets.built_in_rules import RULES as BUILT_IN
from weft.ledger.secrets.built_in_rules import built_in_secrets
from weft.ledger.secrets.scan import without_escapes
from weft.ledger.secrets.scanner import LONG, Kingfisher, load_scanner

CONTEXT_CHARACTERS = 4096
"""A text of at most so many is looked at together with the name that it has in a result, and with its neighbours."""
KNOWN_SECRETS = 200
"""So many, the newest, are looked for again in later results, where no rule may know them."""
MOST_SECRETS = 200
"""Of a result with more of them, texts that hold one are left out whole: to look for each in all of it takes long."""
ROUNDS = 3
"""So often what is left is given to the rules again."""
_ascii_escapes = re.compile(r"(?<!\\)\\++u(00[0-7][0-9A-Fa-f])")
Ignored = Callable[[Sequence[str]], Collection[str]]
"""Which of some credentials a person said are none."""


class ResultRules(Protocol):
    """Finds credentials in a text."""

    @property
    def name(self) -> str:
        """Names the rules and their version."""

    def secrets(self, text: str) -> Iterable[tuple[str, str]]:
        """Each credential as it stands in the text, with its kind before it."""


class KnownRules:
    """Our own rules, and kingfisher's where they are installed."""

    def __init__(self, kingfisher: Kingfisher | None) -> None:
        self._kingfisher = kingfisher

    @property
    def name(self) -> str:
        """See `ResultRules`."""
        return BUILT_IN if self._kingfisher is None else f"{BUILT_IN}/{self._kingfisher.name}"

    def secrets(self, text: str) -> Iterator[tuple[str, str]]:
        """See `ResultRules`."""
        yield from built_in_secrets(text)
        if self._kingfisher is not None:
            yield from self._kingfisher.secrets(text)


@cache
def load_rules(folder: Path | None) -> KnownRules:
    """All rules that there are; `folder` is where compiled ones are kept."""
    try:
        return KnownRules(load_scanner(folder))
    except Unsupported:  # not installed, which `weft doctor` says
        return KnownRules(None)


class KnownSecrets:
    """Credentials that were found before, by their kinds, the latest last. Threads share it."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kinds)

    def among(self, text: str) -> dict[str, str]:
        """Those that stand in a text."""
        with self._lock:
            kinds = list(self._kinds.items())
        return {secret: kind for secret, kind in kinds if secret in text}

    def remember(self, kinds: Mapping[str, str]) -> None:
        """A short one may be a word that means something else elsewhere."""
        fresh = {secret: kind for secret, kind in kinds.items() if len(secret) >= LONG}
        with self._lock:
            before = ((secret, kind) for secret, kind in self._kinds.items() if secret not in fresh)
            self._kinds = dict([*before, *fresh.items()][-KNOWN_SECRETS:])


def mark_secrets(result: Any, rules: ResultRules, known: KnownSecrets, ignored: Ignored) -> SentResult | None:
    """What is sent in the place of a result; None where nothing is found in it. What is found is remembered."""
    sent, kinds, passed = result, dict[str, str](), set[str]()
    for _ in range(ROUNDS):
        fresh = {secret: kind for secret, kind in _found(rules, sent, known).items() if secret not in passed}
        passed |= set(ignored(list(fresh))) if fresh else set()
        fresh = {secret: kind for secret, kind in fresh.items() if secret not in passed}
        if not fresh:
            break
        kinds |= fresh
        if len(kinds) > MOST_SECRETS:
            sent = _withheld(sent, rules, passed)
            break
        sent = _without(sent, kinds)
    else:
        sent = _withheld(sent, rules, passed)
    known.remember(kinds)
    return SentResult(sent, rules.name) if kinds else None


def _found(rules: ResultRules, result: Any, known: KnownSecrets) -> dict[str, str]:
    found = known.among("".join(_texts(result)))
    for text in _looked_at(result):
        for kind, secret in rules.secrets(text):
            found.setdefault(secret, kind)
    return found


def mark_of(kind: str) -> str:
    return f"[secret: {kind}]"


def _texts(value: Any) -> Iterator[str]:
    """Every text in a result but the names of its fields, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _named_texts(value: Any) -> Iterator[tuple[str, str]]:
    """Names of fields with their texts, where these are short; long names have themselves as texts."""
    if isinstance(value, dict):
        for name, item in value.items():
            if isinstance(item, str) and len(item) <= CONTEXT_CHARACTERS:
                yield name, item
            else:
                yield name, ""
                yield from _named_texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _named_texts(item)


def _looked_at(result: Any) -> Iterator[str]:
    """The texts that the rules are given: each text of the result for itself, what it says without the escapes of JSON,
    texts with their names, and what stands across the border between two of them."""
    texts = [text for text in _texts(result) if text]
    plain = "\n".join(texts)
    yield plain
    if (unescaped := _unescaped(plain)) != plain:
        yield unescaped
    named = "\n".join(f'"{name}": "{text}"' for name, text in _named_texts(result))
    if named:
        yield named
    if len(texts) > 1:
        half = CONTEXT_CHARACTERS // 2
        ends = (text if len(text) <= CONTEXT_CHARACTERS else f"{text[:half]}\n{text[-half:]}" for text in texts)
        yield "".join(ends)


def _unescaped(text: str) -> str:
    """What a text says without the escapes of JSON. No credential has letters beyond ASCII."""
    if "\\" not in text:
        return text
    plain = _ascii_escapes.sub(lambda found: chr(int(found[1], 16)), text)
    return without_escapes(plain.encode("utf-8", "surrogatepass")).decode("utf-8", "surrogatepass")


def _without(result: Any, kinds: Mapping[str, str]) -> Any:
    """A result with a mark in the place of each credential, in texts, in names, and across texts."""
    written = [(form, kind) for secret, kind in kinds.items() for form in _forms(secret)]
    written.sort(key=lambda pair: -len(pair[0]))
    texts = list(_texts(result))
    spans = _spans("".join(texts), written)
    return _rebuilt(result, _cut(texts, spans), written)


def _forms(secret: str) -> list[str]:
    """A credential as it may be written: as it is, and with the escapes of JSON or without them."""
    forms = [secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]
    with suppress(ValueError):  # it holds a quote, or a backslash that is no escape
        forms.append(json.loads(f'"{secret}"', strict=False))
    return [form for form in dict.fromkeys(forms) if form]


def _spans(whole: str, written: Sequence[tuple[str, str]]) -> list[tuple[int, int, str]]:
    """Where credentials stand, in order; what overlaps is one."""
    spans: list[tuple[int, int, str]] = []
    for form, kind in written:
        at = whole.find(form)
        while at >= 0:
            spans.append((at, at + len(form), kind))
            at = whole.find(form, at + len(form))
    merged: list[tuple[int, int, str]] = []
    for begin, end, kind in sorted(spans):
        if merged and begin < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]), merged[-1][2])
        else:
            merged.append((begin, end, kind))
    return merged


def _cut(texts: Sequence[str], spans: Sequence[tuple[int, int, str]]) -> Iterator[str]:
    """The texts, of which the spans are places in all of them together, with a mark for what of a span is in one."""
    start = first = 0
    for text in texts:
        end, position, pieces = start + len(text), start, list[str]()
        while first < len(spans) and spans[first][0] < end:
            begin, stop, kind = spans[first]
            pieces += [text[position - start : max(begin, start) - start], mark_of(kind)]
            position = min(stop, end)
            if stop > end:  # the rest of it is in the next text
                break
            first += 1
        yield "".join((*pieces, text[position - start :]))
        start = end


def _rebuilt(value: Any, texts: Iterator[str], written: Sequence[tuple[str, str]]) -> Any:
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, dict):
        items = zip(_names_without(value, written), value.values(), strict=True)
        return {name: _rebuilt(item, texts, written) for name, item in items}
    if isinstance(value, list):
        return [_rebuilt(item, texts, written) for item in value]
    return value


def _names_without(names: Collection[str], written: Sequence[tuple[str, str]]) -> Iterator[str]:
    """No two are the same: of two fields with one name the first would be lost."""
    if not written:
        yield from names
        return
    marked = [_name_without(name, written) for name in names]
    taken = {name for name, new in zip(names, marked, strict=True) if name == new}
    numbers: Counter[str] = Counter()
    for name, new in zip(names, marked, strict=True):
        numbered = new
        while name != new and numbered in taken:
            numbers[new] += 1
            numbered = f"{new} ({numbers[new] + 1})"
        taken.add(numbered)
        yield numbered


def _name_without(name: str, written: Sequence[tuple[str, str]]) -> str:
    for form, kind in written:
        name = name.replace(form, mark_of(kind))
    return name


def _withheld(result: Any, rules: ResultRules, passed: Collection[str]) -> Any:
    """A result that the rules still find something in: texts in which they do are left out whole; where that is not
    enough, all of it is."""

    def left(text: str) -> str:
        read = (text,) if (unescaped := _unescaped(text)) == text else (text, unescaped)
        kinds = [kind for form in read for kind, secret in rules.secrets(form) if secret not in passed]
        return f"[{len(text)} characters left out: {mark_of(kinds[0])}]" if kinds else text

    sent = _rebuilt(result, map(left, list(_texts(result))), ())
    kinds = [kind for text in _looked_at(sent) for kind, secret in rules.secrets(text) if secret not in passed]
    return f"[this result is left out: {mark_of(kinds[0])}]" if kinds else sent
