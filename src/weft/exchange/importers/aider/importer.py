"""aider: how blocks of its chat history become sessions and turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from weft.exchange.importers.aider.history import HEADER, Block, Kind, Notes, Settings, blocks, notes_of
from weft.exchange.importers.aider.logs import NAME as INPUTS
from weft.exchange.importers.aider.logs import Times, inputs, is_log, read_log
from weft.exchange.importers.port import NativeMessage, NativeSession, NativeTurn, Place, Report, Source, Transcript
from weft.exchange.importers.records.jsonl import BOM
from weft.exchange.importers.records.values import canonical, present
from weft.kernel.enums import MessageRole, MessageSource
from weft.ledger.model import TextPart

HISTORY = ".aider.chat.history.md"
ASKING = frozenset({"/ask", "/code", "/architect", "/context", "/help"})
"""Commands whose words go to the model."""


class Aider:
    origin = "aider"
    mapping = 1

    def places(self, home: Path, environment: Mapping[str, str]) -> list[Place]:
        """Histories lie in the repositories they are about; one may lie at home."""
        folder = environment.get("AIDER_CHAT_HISTORY_FILE")
        return [Place(home / folder if folder else home / HISTORY, "aider")]

    def recognises(self, source: Source) -> bool:
        return is_history(source.head) or is_log(source.head) or is_inputs(source)

    def is_part(self, source: Source) -> bool:
        """The times of prompts come with the chat history that lies beside them."""
        return is_inputs(source) and source.path.with_name(HISTORY).is_file()

    def whole(self, source: Source) -> Path | None:
        return source.path.with_name(HISTORY)

    def parts(self, path: Path) -> list[Path]:
        return []

    def read(self, source: Source, report: Report) -> Iterator[Transcript]:
        folder = PurePath(source.name.replace("!", "/")).parent.name
        if is_log(source.head):
            yield from read_log(source, f"{folder}/llm", report)
        elif is_inputs(source):
            yield _typed(source, f"{folder}/inputs", report)
        else:
            yield from _sessions(source, folder, report)


def is_history(head: bytes) -> bool:
    lines = head.removeprefix(BOM).decode("utf-8", "replace").splitlines()[:200]
    return any(HEADER.fullmatch(line) for line in lines)


def is_inputs(source: Source) -> bool:
    lines = source.head.lstrip(b"\n").split(b"\n")
    return source.path.name.endswith(INPUTS) and lines[0].startswith(b"# ") and any(line[:1] == b"+" for line in lines)


class TurnDraft(Struct):
    """A session on its way: its blocks by turns."""

    id: str
    started: str | None
    """When, in the local time of the machine."""
    turns: list[list[Block]] = field(default_factory=list)
    waiting: list[Block] = field(default_factory=list)
    """Blocks that belong to the turn that comes next: what is printed first, and commands."""
    is_commanded: bool = False
    end: int = 0

    def take(self, block: Block) -> None:
        self.end = block.end
        if block.kind is Kind.PROMPT and is_command(block.text):
            self.waiting.append(block)
            self.is_commanded = True
        elif block.kind is Kind.PROMPT or (block.kind is Kind.ANSWER and (self.is_commanded or not self.turns)):
            self.turns.append([*self.waiting, block])
            self.waiting, self.is_commanded = [], False
        elif self.is_commanded or not self.turns:
            self.waiting.append(block)
        else:
            self.turns[-1].append(block)

    def finish(self) -> None:
        """Commands that no prompt followed are a turn of their own; what was printed alone is none."""
        if any(block.kind is Kind.PROMPT for block in self.waiting):
            self.turns.append(self.waiting)


def is_command(words: str) -> bool:
    first, _, rest = words.partition(" ")
    return words.startswith("!") or (words.startswith("/") and not (first in ASKING and rest.strip()))


def _sessions(source: Source, folder: str, report: Report) -> Iterator[Transcript]:
    times, taken = Times(source.path), dict[str, int]()
    draft = TurnDraft(f"{folder}/before", None)
    for block in blocks(source.path):
        report.found += 1
        report.mapped[block.kind] += 1
        if block.kind is not Kind.HEADER:
            draft.take(block)
            continue
        if draft.end:
            yield _transcript(draft, source, times, until=block.offset)
        started = block.text
        taken[started] = taken.get(started, 0) + 1
        id = f"{folder}/{started}" + (f"~{taken[started]}" if taken[started] > 1 else "")
        draft = TurnDraft(id, started, end=block.end)
    if draft.end:
        yield _transcript(draft, source, times, until=None)


def _transcript(draft: TurnDraft, source: Source, times: Times, until: int | None) -> Transcript:
    draft.finish()
    settings = Settings()
    made = []
    for number, turn in enumerate(draft.turns):
        is_last = until is None and number == len(draft.turns) - 1
        maker = _TurnBlocks(draft, settings, times)
        made.append(maker.made(turn, number, is_last, workspace_of(source)))
        settings = maker.settings
    for block in draft.waiting:
        for line in block.lines:
            settings = settings.changed(line.strip())
    session = NativeSession(
        id=draft.id,
        workspace=workspace_of(source),
        version=settings.version,
        metadata=present(started=draft.started, repository=settings.repository),
    )
    return Transcript(session=session, turns=made, until=until)


def workspace_of(source: Source) -> str | None:
    """The history lies in the folder it is about; one that was unpacked does not."""
    return str(source.path.parent) if str(source.path) == source.name else None


class _TurnBlocks:
    """One turn."""

    def __init__(self, draft: TurnDraft, settings: Settings, times: Times) -> None:
        self._draft, self.settings, self._times = draft, settings, times
        self._items: list[NativeMessage] = []
        self._answer: int | None = None
        self._commits: list[dict[str, str]] = []
        self._is_stopped = False
        self._literal: str | None = None
        self._ahead: Notes | None = None
        """What the next answer cost."""

    def made(self, turn: list[Block], number: int, is_last: bool, workspace: str | None) -> NativeTurn:
        records = []
        for place, block in enumerate(turn):
            records.append(canonical([str(block.kind), block.text]))
            self._take(block, f"{self._draft.id}#{number}.{place}")
        return NativeTurn(
            key=f"{self._draft.id}#{number}",
            records=(canonical([self._draft.started, number]), *records),
            items=tuple(self._items),
            parent=number - 1 if number else None,
            closed=not is_last,
            interrupted=self._is_stopped,
            literal_time=self._literal or self._draft.started,
            workspace=workspace,
            version=self.settings.version,
            config=self.settings.config(),
            metadata=present(commits=self._commits),
            offset=turn[0].offset,
            end=turn[-1].end,
        )

    def _take(self, block: Block, native: str) -> None:
        if block.kind is Kind.PROMPT:
            literal = self._times.of(block.text, self._draft.started)
            self._literal = literal or self._literal
            self._add(block, MessageRole.USER, source=MessageSource.HUMAN, literal_time=literal)
        elif block.kind is Kind.ANSWER:
            self._answer = len(self._items)
            self._is_stopped = False
            self._add(block, MessageRole.ASSISTANT, native=native, model=self.settings.model)
            ahead, self._ahead = self._ahead, None
            if ahead is not None:
                self._cost(ahead)
        else:
            self._output(block)

    def _add(self, block: Block, role: MessageRole, **more: Any) -> None:
        self._items.append(NativeMessage(role=role, parts=(TextPart(block.text),) if block.text else (), **more))

    def _output(self, block: Block) -> None:
        for line in block.lines:
            self.settings = self.settings.changed(line.strip())
        found = notes_of(block.lines)
        self._add(block, MessageRole.SYSTEM, source=MessageSource.EVENT)
        self._commits += found.commits
        self._is_stopped |= found.is_stopped
        if self._answer is None:
            self._items[-1] = replace(self._items[-1], files=tuple(found.files))
        else:
            answer = self._items[self._answer]
            self._items[self._answer] = replace(answer, files=(*answer.files, *found.files))
        if found.tokens is not None:
            self._cost(found)

    def _cost(self, notes: Notes) -> None:
        """Of the answer before it; older versions tell it before the answer."""
        answer = None if self._answer is None else self._items[self._answer]
        if answer is None or self._answer is None or answer.tokens is not None:
            self._ahead = notes
            return
        fields = present(cost=notes.cost, rounded=True)
        self._items[self._answer] = replace(answer, tokens=notes.tokens, metadata=fields)


def _typed(source: Source, session: str, report: Report) -> Transcript:
    """Prompts of which nothing else is left."""
    turns = []
    with source.path.open("rb") as file:
        typed = list(inputs(file))
    for number, each in enumerate(typed):
        report.found += 1
        report.mapped["input"] += 1
        message = NativeMessage(
            role=MessageRole.USER,
            parts=(TextPart(each.text),) if each.text else (),
            literal_time=each.literal,
            source=MessageSource.HUMAN,
        )
        turns.append(
            NativeTurn(
                key=f"{session}#{number}",
                records=(canonical(["input", each.literal, number, each.text]),),
                items=(message,),
                parent=number - 1 if number else None,
                literal_time=each.literal,
                workspace=workspace_of(source),
                offset=each.offset,
                end=each.end,
            )
        )
    return Transcript(session=NativeSession(id=session, workspace=workspace_of(source)), turns=turns)
