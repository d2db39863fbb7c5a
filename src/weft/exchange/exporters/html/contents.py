"""The contents of a page: a line for each turn that leads to it, branches nested under the turn that they leave."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from weft.exchange.exporters.captions import counted, goes_on, on_one_line
from weft.exchange.exporters.port import Story
from weft.ledger.api import TurnLine, TurnRange

LONGEST_LINE_CHARS = 120
LINES_UNFOLDED = 25
"""A longer list is folded."""
DEEPEST_NESTED = 12
"""Branches of branches deeper than this are listed beside each other: browsers nest no further than some hundreds."""


class _Listing(NamedTuple):
    """A strand to be listed in place."""

    strand: TurnRange
    level: int
    """How many branches deep."""
    is_nested: bool = False
    """In a list of its own; else in the one that is open."""
    is_branch: bool = True
    """Else it goes on where the strand before it ends."""


def contents(story: Story) -> Iterator[str]:
    """Nothing for a single turn, or where nobody knows the lines."""
    turns = sum(strand.count for strand in story.strands)
    if story.lines_of is None or turns < 2:
        return
    begun = sum(strand.parent is None for strand in story.strands)
    is_tree = begun == 1 and any(strand.parent is not None for strand in story.strands)
    is_open = " open" if turns <= LINES_UNFOLDED else ""
    title = "Tree" if is_tree else "Contents"
    yield f'<nav class="contents" aria-label="{title}"><details{is_open}><summary>{title}: {turns:,} turns</summary>'
    yield '\n<ol class="prompts">\n'
    tree = _Tree(story, is_one=begun == 1)
    for strand in story.strands:
        if strand.parent is None:
            yield from tree.lines(strand)
    yield "</ol></details></nav>\n"


class _Tree:
    def __init__(self, story: Story, *, is_one: bool) -> None:
        self._story, self._is_one = story, is_one
        self._session = story.tips[0].session if len(story.tips) == 1 else None
        self._children: dict[tuple[int, str], list[TurnRange]] = {}
        for strand in story.strands:
            if strand.parent is not None and strand.leaves is not None:
                self._children.setdefault((strand.parent, strand.leaves), []).append(strand)

    def lines(self, root: TurnRange) -> Iterator[str]:
        """The lines of a strand and of all that leave it; a stack instead of recursion, since trees may be deep."""
        listings = [self._strand(_Listing(root, 0, is_branch=False))]
        while listings:
            piece = next(listings[-1], None)
            if piece is None:
                listings.pop()
            elif isinstance(piece, str):
                yield piece
            else:
                listings.append(self._strand(piece))

    def _strand(self, listing: _Listing) -> Iterator[str | _Listing]:
        strand, level = listing.strand, listing.level
        assert self._story.lines_of is not None
        following: list[TurnRange] = []
        for line in self._story.lines_of(strand):
            if line.depth == strand.low:
                yield self._opening(listing, line)
            children = self._children.get((strand.number, line.turn_id), [])
            following = [child for child in children if goes_on(child, strand) and child.number == strand.number + 1]
            branches = [child for child in children if child not in following]
            yield f"<li>{_link(line)}" if line.is_prompted else f'<li class="unprompted">{_link(line)}'
            if level < DEEPEST_NESTED:
                yield from (_Listing(child, level + 1, is_nested=True) for child in branches)
                branches = []
            yield "</li>\n"
            yield from (_Listing(child, level) for child in branches)
        yield from (_Listing(child, level, is_branch=False) for child in following)
        if listing.is_nested:
            yield "</ol>"

    def _opening(self, listing: _Listing, first: TurnLine) -> str:
        """What a branch is called, or one of several conversations, and the list that it stands in."""
        strand = listing.strand
        if not listing.is_branch and (self._is_one or strand.parent is not None):
            return ""
        session = "" if first.session in (None, self._session) else f" {escape(on_one_line(str(first.session)))}"
        kind = "Conversation" if strand.parent is None else "Branch"
        name = f"{kind}{session}, {counted(strand.count, 'turn')}"
        if listing.is_nested:
            return f'<ol class="prompts branch"><li class="name">{name}</li>\n'
        place = f", from turn {strand.leaves_at}" if listing.is_branch else ""
        return f'<li class="name">{name}{place}</li>\n'


def _link(line: TurnLine) -> str:
    words = on_one_line(line.subject[: 4 * LONGEST_LINE_CHARS])
    if len(words) > LONGEST_LINE_CHARS:
        words = f"{words[:LONGEST_LINE_CHARS]}…"
    if line.is_compaction:
        words = f"Summary of what came before: {words}" if words else "Summary of what came before"
    number = f'<span class="number">{line.depth}</span>'
    return f'{number} <a href="#t-{escape(line.turn_id)}" dir="auto">{escape(words) or "(no text)"}</a>'
