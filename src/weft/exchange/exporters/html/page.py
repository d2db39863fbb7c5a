"""The page around the turns: a policy that allows nothing from outside, one style, one script, and an outline.

Style and script are files of this package, written into the page; the policy names their hashes, so that nothing else
runs, whatever a message says.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

from weft.exchange.exporters.captions import DOT, counted, goes_on, headed, moment, next_of, on_one_line
from weft.exchange.exporters.html.contents import contents
from weft.exchange.exporters.html.texts import shown
from weft.exchange.exporters.html.turns import TurnPieces
from weft.exchange.exporters.port import Report, Story, StoryFacts, Wishes
from weft.ledger.api import TurnRange

THREADS_UNFOLDED = 12
"""More threads than these are listed in a fold."""
CONTROLS = """<form role="search" id="search" hidden>
<label for="words">Search</label> <input id="words" type="search" autocomplete="off" placeholder="words">
<button type="button" id="previous" aria-label="Previous hit">↑</button>
<button type="button" id="next" aria-label="Next hit">↓</button>
<label><input type="checkbox" id="only"> only hits</label>
<output id="found" for="words" aria-live="polite"></output>
</form>
<div class="controls" hidden>
<button type="button" id="unfold" aria-pressed="false">Unfold all</button>
<button type="button" id="theme">Dark or light</button>
<details class="keys"><summary>Keys</summary><p><kbd>/</kbd> search, <kbd>Enter</kbd> next hit, <kbd>Shift Enter</kbd>
the one before, <kbd>Escape</kbd> end of search, <kbd>j</kbd> and <kbd>k</kbd> next and previous turn,
<kbd>f</kbd> fold or unfold all</p></details>
</div>
"""


class Html:
    form = "html"
    suffix = ".html"
    one_thread = False
    wants_requests = False

    def write(self, story: Story, wishes: Wishes, report: Report) -> Iterator[bytes]:
        session = story.tips[0].session if len(story.tips) == 1 else None
        writer = TurnPieces(wishes, report, session)
        yield "".join(_head(story)).encode()
        for line in contents(story):
            yield line.encode()
        yield b'</header>\n<main id="said" tabindex="-1">\n'
        before: TurnRange | None = None
        for strand in story.strands:
            yield "".join(_opening(strand, before)).encode()
            if headed(strand, before):
                writer.begin_strand()
            before = strand
            for full_turn in story.turns_of(strand):
                report.count(full_turn)
                yield "".join(writer.turn(full_turn, next_of(story, strand))).encode()
            yield b"</section>\n"
        yield page_foot().encode()


@cache
def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(name: str) -> str:
    return base64.b64encode(sha256(_file(name).encode()).digest()).decode()


def _policy() -> str:
    return (
        f"default-src 'none'; script-src 'sha256-{_hash('page.js')}'; style-src 'sha256-{_hash('page.css')}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def page_foot() -> str:
    return f"</main>\n<script>{_file('page.js')}</script>\n</body>\n</html>\n"


def page_head(title: str, about: str) -> str:
    """The page up to the list of its contents; its header is still open."""
    return "".join(_page_head(title, about))


def _head(story: Story) -> Iterator[str]:
    yield page_head(story.title, _about(story))
    yield from _threads(story)


def _page_head(name: str, about: str) -> Iterator[str]:
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield f'<meta http-equiv="Content-Security-Policy" content="{_policy()}">\n'
    yield '<meta name="referrer" content="no-referrer">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield '<meta name="color-scheme" content="light dark">\n'
    yield '<meta name="generator" content="weft">\n'
    title = escape(on_one_line(name))
    yield f'<title>{title}</title>\n<link rel="icon" href="data:,">\n<style>{_file("page.css")}</style>\n</head>\n'
    yield '<body>\n<a class="skip" href="#said">To the conversation</a>\n<header class="page">\n'
    yield f'<h1 dir="auto">{title}</h1>\n<p>{escape(about)}</p>\n{CONTROLS}'


def _about(story: Story) -> str:
    if story.is_context:
        return "The context: what the model saw there, or would see next."
    facts = [counted(sum(strand.count for strand in story.strands), "turn")]
    begun, ends = sum(strand.parent is None for strand in story.strands), len(_ends(story))
    if begun > 1:
        facts.append(f"{begun:,} conversations")
    if ends > begun:
        facts.append(f"{ends:,} branches")
    (tip, *others) = story.tips
    if tip.session and not others:
        facts.insert(0, f"Session {on_one_line(tip.session)}")
    return DOT.join([*facts, *(() if story.facts is None else _known_facts(story.facts()))])


def _known_facts(facts: StoryFacts) -> Iterator[str]:
    """When it was, and what it took."""
    if facts.started_at is not None and facts.ended_at is not None:
        start, end = moment(facts.started_at), moment(facts.ended_at)
        yield start if end <= start else f"{start[:16]} to {end[11:] if end[:10] == start[:10] else end}"
    if facts.tokens:
        whose = " in all sessions that made these turns" if facts.is_of_sessions else ""
        yield f"{counted(facts.tokens, 'token')}{DOT}{_cost(facts)}{whose}"
        if facts.cost is not None and facts.unpriced_tokens:
            yield f"{counted(facts.unpriced_tokens, 'token')} without a price"


def _cost(facts: StoryFacts) -> str:
    if facts.cost is None:
        return "cost not known"
    dollars = facts.cost / 1_000_000
    cost = f"${dollars:,.2f}" if facts.cost == 0 or dollars >= 0.1 else f"${dollars:,.4f}"
    return f"at least {cost}" if facts.unpriced_tokens else cost


def _ends(story: Story) -> list[TurnRange]:
    """The strands that no other goes on from at their last turn."""
    left = {(strand.parent, strand.leaves) for strand in story.strands}
    return [strand for strand in story.strands if (strand.number, strand.last) not in left]


def _threads(story: Story) -> Iterator[str]:
    """The threads that were asked for, where there are several; and which of several ends to read."""
    labels = {tip.turn_id: tip.session or tip.name for tip in story.tips}
    yield '<nav class="outline" aria-label="Threads">'
    if len(story.tips) > 1:
        is_long = len(story.tips) > THREADS_UNFOLDED
        yield f"<details><summary>{len(story.tips):,} threads</summary><ul>\n" if is_long else "<ul>\n"
        for tip in story.tips:
            words = on_one_line(DOT.join(word for word in (tip.session or tip.name, tip.title) if word))
            yield f'<li><a href="#t-{escape(tip.turn_id)}">{escape(words)}</a></li>\n'
        yield "</ul></details>\n" if is_long else "</ul>\n"
    ends = _ends(story)
    if len(ends) > 1:
        yield '<p class="reading" hidden><label for="thread">Read</label> <select id="thread">'
        yield '<option value="">all branches</option>\n'
        for strand in ends:
            label = on_one_line(labels.get(strand.last, "")) or f"turn {strand.high}, {strand.last[-8:]}"
            yield f'<option value="{strand.number}">the thread of {escape(label)}</option>\n'
        yield "</select></p>\n"
    yield "</nav>\n"


def _opening(strand: TurnRange, before: TurnRange | None) -> Iterator[str]:
    parent = "" if strand.parent is None else f' data-parent="{strand.parent}" data-leaves="{strand.leaves_at}"'
    yield f'<section class="strand" data-number="{strand.number}"{parent} aria-label="Part {strand.number + 1}">\n'
    if strand.leaves is None:
        yield "" if before is None else "<h2>Another conversation</h2>\n"
        return
    if not headed(strand, before):
        return
    link = f'<a href="#t-{escape(strand.leaves)}">turn {strand.leaves_at}</a>'
    inside = "" if strand.after_events is None else f", after {counted(strand.after_events, 'event')} of it"
    why = "" if strand.link is None else f" ({shown(strand.link)})"
    word = "Goes on from" if goes_on(strand, before) else "Branch after"
    yield f"<h2>{word} {link}{inside}{why}</h2>\n"
