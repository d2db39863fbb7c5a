"""A labelled set for smart routing, made from the corpus beside the checkout at every run; nothing of it is kept.

Sessions are imported, and each is cut before one of its later messages. What comes before is recorded in a ledger; the
message is a query, and its session the right answer. Three cuts of a session make three sets. A tenth of the sessions
is left out whole: their first messages, and made-up ones about other things, belong nowhere.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

LEAST_WORDS = 4
"""Fewer say too little about any thread: "yes", "go on"."""
LONGEST_LETTERS = 2_000
"""What is longer was pasted, or written by a tool."""
NOT_TYPED = ("[Request interrupted", "Caveat:", "This session is being continued", "<", "▣", "# AGENTS.md")
ONE_IN = 10
"""So many sessions one is left out of."""
MADE_UP_KIND, LEFT_OUT, LATER = "made up", "left out", "later message"
TOOL_LETTERS = 20_000
FURTHER_SESSIONS = "growth-series"
"""The same session again and again, at different lengths."""

MADE_UP = (
    "Which ferry goes from Split to Hvar on a Sunday afternoon in October?",
    "Draft a wedding toast for my cousin who met her husband while kayaking",
    "How long does sourdough need to proof in a cold kitchen overnight?",
    "Compare the tax deduction for a home office in Austria and in Bavaria",
    "Plan a four week training schedule for a half marathon with hills",
    "My tomato leaves curl and turn yellow, is it too much water or a fungus?",
    "Translate the lease clause about the security deposit into Portuguese",
    "Suggest three chess openings for black against the Catalan",
    "What is the boiling point of ethanol at 2000 metres of altitude?",
    "Write a limerick about a lighthouse keeper who hates seagulls",
    "Our kindergarten needs a packing list for the forest week",
    "Explain the difference between a viola da gamba and a cello",
    "Configure the autoclave alarm so that the night nurse gets a pager message",
    "The payroll run rounds the overtime of the ferry crews wrongly, correct the union surcharge",
    "Calibrate the spectrometer before we measure the olive oil samples",
    "Add a seismograph widget to the volcano observatory kiosk",
    "Port the greenhouse irrigation controller from Zigbee to LoRaWAN",
    "The knitting pattern generator drops a stitch at every cable crossing",
    "Move the parish register from Filemaker to a Lotus Approach archive",
    "Write a Verilog testbench for the SPI slave of the hydrophone",
    "Refactor the COBOL batch that prints the cemetery invoices",
    "Migrate the beekeeping inventory from Oracle Forms to Delphi",
    "Tune the PID loop of the sous vide bath, it overshoots by two degrees",
    "Render the tide table of Saint-Malo as a sundial engraving",
    "Schedule the orchestra rehearsals around the tram strike",
    "Estimate how much gravel the driveway of the vicarage needs",
    "Rewrite the obituary of the mayor in a warmer tone",
    "Generate crossword clues about Byzantine emperors",
    "Which vaccination does a ferret need before crossing into Norway?",
    "Write the umpire rota of the cricket club for the monsoon season",
)


@dataclass(frozen=True, slots=True)
class CorpusTurn:
    at: int
    typed: str
    """What a person wrote, without what tools put there."""
    query: str
    response: str
    calls: tuple[tuple[str, str, str], ...]
    """Each with the tool, its arguments and its result."""

    @property
    def is_query(self) -> bool:
        words = {word.lower() for word in self.typed.split() if any(map(str.isalpha, word))}
        return len(words) >= LEAST_WORDS and len(self.typed) <= LONGEST_LETTERS and not self.typed.startswith(NOT_TYPED)


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    session: str | None
    """The right one; null where it belongs nowhere."""
    kind: str


@dataclass(slots=True)
class LabelledSet:
    """What is in the ledger, and what is asked."""

    recorded: list[tuple[str, CorpusTurn]] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)


def labelled_sets(corpus: Path, place: Path, folder: str, rounds: int) -> list[LabelledSet]:
    """Imports the corpus, or one folder of it, and cuts its sessions in so many ways."""
    _import(place, corpus, folder)
    sessions = list(_sessions(place))
    return [_cut(sessions, turn) for turn in range(rounds)]


def _cut(sessions: list[tuple[str, list[CorpusTurn]]], round_number: int) -> LabelledSet:
    cut = LabelledSet(queries=[Query(text, None, MADE_UP_KIND) for text in MADE_UP])
    for label, turns in sessions:
        if _chance(label, "whole") % ONE_IN == round_number:
            if turns[0].is_query:
                cut.queries.append(Query(turns[0].typed, None, LEFT_OUT))
            continue
        places = [place for place, turn in enumerate(turns) if place and turn.is_query]
        end = places[_chance(label, f"round {round_number}") % len(places)] if places else len(turns)
        cut.recorded += ((label, turn) for turn in turns[:end])
        if places:
            cut.queries.append(Query(turns[end].typed, label, LATER))
    cut.recorded.sort(key=lambda item: item[1].at)
    return cut


def _chance(label: str, purpose: str) -> int:
    """The same number at every run."""
    return int.from_bytes(sha256(f"{purpose} {label}".encode()).digest()[:4], "big")


def _import(place: Path, corpus: Path, folder: str) -> None:
    import weft
    from weft.exchange.importers.port import load_importers
    from weft.exchange.importing.run import ImportRun
    from weft.kernel.clock import FixedClock

    folders = [corpus / folder] if folder else [each for each in sorted(corpus.iterdir()) if each.is_dir()]
    with weft.open(place) as ledger:
        wanted = [each for each in folders if each.name != FURTHER_SESSIONS]
        ImportRun(ledger, load_importers(), FixedClock(10**13)).run(wanted)


MESSAGES = """
SELECT s.label, t.id, t.started_at, m.role, m.content FROM messages m JOIN turn t ON t.id = m.turn_id
JOIN session s ON s.n = t.session WHERE t.current = 1 AND s.parent_session IS NULL AND s.parent_turn IS NULL
AND m.role IN ('user', 'assistant') AND m.content IS NOT NULL ORDER BY s.n, t.n, m.sequence
"""
CALLS = "SELECT turn_id, tool_name, params_json, result_json FROM tool_calls ORDER BY turn_id, sequence"


def _sessions(place: Path) -> Iterator[tuple[str, list[CorpusTurn]]]:
    """Sessions that are no subagents', with their turns in order."""
    connection = sqlite3.connect(f"{place.as_uri()}?mode=ro", uri=True)
    try:
        calls: dict[str, list[tuple[str, str, str]]] = {}
        for turn, *call in connection.execute(CALLS):
            tool, arguments, result = (str(value or "")[:TOOL_LETTERS] for value in call)
            calls.setdefault(turn, []).append((tool, arguments, result))
        for label, rows in groupby(connection.execute(MESSAGES), key=lambda row: row[0]):
            turns = [_turn(list(some), calls.get(id, [])) for id, some in groupby(rows, key=lambda row: row[1])]
            yield str(label), turns
    finally:
        connection.close()


def _turn(rows: list[Any], calls: list[tuple[str, str, str]]) -> CorpusTurn:
    from weft.ledger.api import message_passages

    user_texts = [text for _, _, _, role, text in rows if role == "user"]
    typed = [piece.text for text in user_texts for piece in message_passages(text) if not piece.is_injected]
    answered = [text for _, _, _, role, text in rows if role == "assistant"]
    return CorpusTurn(rows[0][2], "\n".join(typed).strip(), "\n".join(user_texts), "\n".join(answered), tuple(calls))
