"""Files that grow as tools write them: in pieces that end anywhere, sometimes rewritten, sometimes replaced."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from tests.exchange.corpus import CORPUS
from tests.exchange.fixtures.claude_code.story import story
from tests.exchange.fixtures.codex import rollouts
from weft import Ledger
from weft.exchange.importers.port import Importer, load_importers

LIVE = ("claude-code", "codex")


def live_importers() -> list[Importer]:
    return [importer for origin in LIVE for importer in load_importers(origin)]


def material(chance: random.Random, count: int, limit: int) -> list[tuple[str, bytes]]:
    """Names and contents: real sessions where a corpus lies beside the checkout, and always the made ones."""
    found = list(_made())
    for origin in LIVE:
        files = sorted(path for path in (CORPUS / origin).rglob("*.jsonl") if 2000 < path.stat().st_size < limit)
        for path in chance.sample(files, min(count, len(files))):
            data = path.read_bytes()
            if _tells_records_apart(data):
                found.append((f"{origin}/{path.parent.name[:20]}-{len(found)}/{path.name}", data))
    return found


def _tells_records_apart(data: bytes) -> bool:
    """Not where somebody replaced every id by one text: such records cannot be known again."""
    ids = re.findall(rb'"uuid":\s*"([^"]*)"', data)
    return 2 * len(set(ids)) > len(ids) or not ids


def _made() -> Iterator[tuple[str, bytes]]:
    yield "claude-code/made/5e55.jsonl", _lines(story().lines)
    one, two = rollouts.turn_id(1), rollouts.turn_id(2)
    lines = [rollouts.meta()]
    for turn, words in ((one, "first the question"), (two, "then the other")):
        lines += [rollouts.started(turn), rollouts.context(turn), rollouts.user(words), rollouts.complete(turn)]
    yield f"codex/made/rollout-{rollouts.SESSION}.jsonl", _lines(lines)


def _lines(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(line) + b"\n" for line in lines)


class Growing:
    """One file and what it will be."""

    def __init__(self, path: Path, target: bytes) -> None:
        self.path, self.target, self.done = path, target, 0

    @property
    def is_whole(self) -> bool:
        return self.done >= len(self.target)

    def grow(self, size: int) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(self.target[self.done : self.done + size])
        self.done = min(len(self.target), self.done + size)

    def replace(self) -> None:
        """As it is, in a file of its own that takes its place."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(f"{self.path.name}.tmp")
        aside.write_bytes(self.target[: self.done])
        os.replace(aside, self.path)

    def redact(self, chance: random.Random) -> None:
        """A word that was written is taken back, wherever it stands in the file up to here."""
        word = chance.choice([b" the ", b" a ", b" to ", b" is "])
        self.target = self.target[: self.done].replace(word, b" *** ") + self.target[self.done :]
        self.replace()

    def act(self, chance: random.Random, piece: int) -> None:
        """What a tool does next."""
        what = chance.random()
        if what < 0.06 and self.done:
            self.replace()
        elif what < 0.09 and self.done:
            self.redact(chance)
        else:
            self.grow(chance.randint(1, piece))


def standing(ledger: Ledger) -> dict[str, Any]:
    """All that a reader sees of imported history, and nothing of when it came."""
    sessions = ledger.sessions(every=True)
    told = ("head", "title", "origin", "status", "parent_session", "task_description", "agent", "workspace_path")
    return {
        "turns": {
            turn.id: (turn.digest, turn.parent_id, turn.started_at if turn.time_known else None, turn.model)
            for turn in ledger.log()
        },
        "sessions": {each.label: {name: getattr(each, name, None) for name in told} for each in sessions},
        "usage": [ledger.usage.report(by) for by in ("session", "model", "origin")],
        "said": {
            each.label: [message.text for message in ledger.thread(each.label).messages]
            for each in sessions
            if each.head
        },
        "provisional": ledger.imports.provisional(),
    }
