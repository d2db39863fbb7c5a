"""Patterns of paths: `*` and `?` within a name, `[a-z]` for one character, `**` for any folders, `{a,b}` for choices.

A path is matched part by part, with all states of the pattern at once, and a name without going back further than to
the last `*`. So no pattern takes more than its length times that of the path. A walk asks after each folder whether
anything below it can still match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from weft.kernel.authority import pattern_matcher
from weft.runtime.tools.calls import ToolFailure

LONGEST_PATTERN = 1000
MOST_CHOICES = 64
ANY_FOLDERS = "**"
States = frozenset[tuple[int, int]]
"""Pairs of a choice and of how many of its parts have been matched."""
NameMatcher = Callable[[str], bool]
_Sign = Callable[[str], bool] | None
"""What one character of a name must be; None stands for `*`."""


class PathPattern:
    """A pattern over whole paths, from the folder that it is used in."""

    def __init__(self, pattern: str) -> None:
        if not pattern or len(pattern) > LONGEST_PATTERN or "\0" in pattern:
            raise ToolFailure("invalid_pattern", f"a pattern has 1 to {LONGEST_PATTERN} characters")
        self._choices = [_parts(choice) for choice in choices_of(pattern)]
        self.start = self._closed((choice, 0) for choice in range(len(self._choices)))

    def after(self, states: States, name: str) -> States:
        """The states after one more part of a path. Without any, nothing at or below it matches."""
        return self._closed(
            (choice, index + (part is not None))
            for choice, index in states
            if index < len(self._choices[choice])
            for part in (self._choices[choice][index],)
            if part is None or part(name)
        )

    def is_match(self, states: States) -> bool:
        return any(index == len(self._choices[choice]) for choice, index in states)

    def matches(self, parts: Sequence[str]) -> bool:
        states = self.start
        for part in parts:
            states = self.after(states, part)
        return self.is_match(states)

    def _closed(self, states: Iterable[tuple[int, int]]) -> States:
        """With the states that are reached without a part: `**` stands for no folder as well."""
        reached = set(states)
        pending = list(reached)
        while pending:
            choice, index = pending.pop()
            parts = self._choices[choice]
            following = (choice, index + 1)
            if index < len(parts) and parts[index] is None and following not in reached:
                reached.add(following)
                pending.append(following)
        return frozenset(reached)


def _parts(pattern: str) -> list[NameMatcher | None]:
    """A matcher for each part, None for `**`."""
    names = [name for name in pattern.split("/") if name not in ("", ".")]
    if ".." in names:
        raise ToolFailure("invalid_pattern", f"the pattern {pattern!r} goes back: name the folder as path")
    return [None if name == ANY_FOLDERS else name_matcher(name) for name in names]


def choices_of(pattern: str) -> list[str]:
    """`a{b,c}d` as `abd` and `acd`. A brace without its other stands for itself."""
    choices, complete = [pattern], list[str]()
    while choices:
        choice = choices.pop()
        span = _first_braces(choice)
        if span is None:
            complete.append(choice)
        else:
            begin, end = span
            inner = _split_choices(choice[begin + 1 : end])
            choices += [choice[:begin] + option + choice[end + 1 :] for option in reversed(inner)]
        if len(choices) + len(complete) > MOST_CHOICES:
            raise ToolFailure("invalid_pattern", f"a pattern stands for at most {MOST_CHOICES} choices")
    return complete


def _first_braces(pattern: str) -> tuple[int, int] | None:
    """Where the first braces with a comma begin and end."""
    opened: list[int] = []
    commas: set[int] = set()
    pairs: list[tuple[int, int]] = []
    for position, sign in enumerate(pattern):
        if sign == "{":
            opened.append(position)
        elif sign == "," and opened:
            commas.add(opened[-1])
        elif sign == "}" and opened and (begin := opened.pop()) in commas:
            pairs.append((begin, position))
    return min(pairs, default=None)


def _split_choices(text: str) -> list[str]:
    options, depth, begin = [], 0, 0
    for position, sign in enumerate(text):
        depth += (sign == "{") - (sign == "}")
        if sign == "," and depth == 0:
            options.append(text[begin:position])
            begin = position + 1
    return [*options, text[begin:]]


@lru_cache(maxsize=1024)
def name_matcher(pattern: str) -> NameMatcher:
    """Whether a whole name fits. `\\` before a sign takes its meaning away."""
    if "[" not in pattern and "\\" not in pattern:
        return pattern_matcher(pattern)
    signs = _signs(pattern)
    return lambda name: _fits(signs, name)


def _fits(signs: Sequence[_Sign], name: str) -> bool:
    """Back to the last `*` alone: an earlier one cannot match what a later one does not."""
    at, position = 0, 0
    star, star_position = -1, 0
    while position < len(name):
        sign = signs[at] if at < len(signs) else None
        if at < len(signs) and sign is None:
            star, star_position = at, position
            at += 1
        elif sign is not None and sign(name[position]):
            at, position = at + 1, position + 1
        elif star >= 0:
            star_position += 1
            at, position = star + 1, star_position
        else:
            return False
    return all(sign is None for sign in signs[at:])


def _signs(pattern: str) -> list[_Sign]:
    signs: list[_Sign] = []
    position = 0
    while position < len(pattern):
        sign = pattern[position]
        end = _set_end(pattern, position) if sign == "[" else -1
        if sign == "*":
            signs.append(None)
        elif sign == "?":
            signs.append(lambda _: True)
        elif end > 0:
            signs.append(_one_of(pattern[position + 1 : end]))
            position = end
        else:
            if sign == "\\" and position + 1 < len(pattern):
                position += 1
            signs.append(pattern[position].__eq__)
        position += 1
    return signs


def _set_end(pattern: str, begin: int) -> int:
    """Where the set that begins here ends; a `]` that comes first belongs to it."""
    first = begin + 1 + (pattern[begin + 1 : begin + 2] in ("!", "^"))
    return pattern.find("]", first + 1)


def _one_of(text: str) -> Callable[[str], bool]:
    is_negated = text[:1] in ("!", "^")
    signs = text[is_negated:]
    ranges: list[tuple[str, str]] = []
    position = 0
    while position < len(signs):
        if signs[position + 1 : position + 2] == "-" and position + 2 < len(signs):
            ranges.append((signs[position], signs[position + 2]))
            position += 3
        else:
            ranges.append((signs[position], signs[position]))
            position += 1
    return lambda sign: any(low <= sign <= high for low, high in ranges) != is_negated
