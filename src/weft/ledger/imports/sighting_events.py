"""Sightings: what a source tells of a turn or a session beside what was said."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from weft.kernel.canonical import MAX_INTEGER
from weft.kernel.enums import AgentRole, CompactionTrigger
from weft.kernel.events import import_stream
from weft.kernel.fields import (
    FileFact,
    LintFact,
    Named,
    SeenCall,
    SeenCompaction,
    SeenContext,
    SeenMessage,
    Usage,
)
from weft.kernel.imported import ImportSecret
from weft.kernel.ledger_events import Sighting
from weft.ledger.dialects.usage import one_hour_part
from weft.ledger.imports.chain import EventDraft, named, put_value
from weft.ledger.imports.natives import (
    EncodedEvents,
    NativeCall,
    NativeCompaction,
    NativeMessage,
    NativeSession,
    NativeTurn,
    Tokens,
)
from weft.ledger.model import IMPORTED_AGENT, FileNote, LintNote
from weft.ledger.views.sightings import is_dated
from weft.ledger.write.append import ContentForms

TRIGGERS = {
    "auto": CompactionTrigger.CONTEXT_LIMIT,
    "manual": CompactionTrigger.MANUAL,
    "overflow": CompactionTrigger.OVERFLOW_RECOVERY,
}
NOTES = 256
"""Files, lints or injected things of one kind that a message keeps as such; a call may have matched thousands. The
verbatim copy has them all."""


class Seeing(Struct, frozen=True):
    """Makes sightings, and puts what was seen into contents."""

    contents: ContentForms
    origin: str
    session: str
    session_ids: Any
    """Native session ids to ours."""
    file: str

    def turn(self, turn_id: str, turn: NativeTurn) -> Sighting:
        return Sighting(
            stream=import_stream(turn_id),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            turn=turn_id,
            started=moment(turn.started),
            ended=moment(turn.ended),
            literal_time=self._text(turn.literal_time),
            workspace=self._text(turn.workspace),
            git_branch=self._text(turn.git_branch),
            version=self._text(turn.version),
            role=UNSET if turn.role == AgentRole.UNIFIED else turn.role,
            toolset=self._name(turn.toolset),
            tools=UNSET if turn.tools is None else put_value(self.contents, list(turn.tools)),
            permissions=self._json(turn.permissions),
            config=self._json(turn.config),
            metadata=self._json(turn.metadata),
            messages=self._messages(turn) or UNSET,
            calls=self._calls(turn) or UNSET,
            compaction=UNSET if turn.compaction is None else self._compaction(turn.compaction),
            file=self.contents.put_text(self.file),
            offset=turn.offset,
            end=turn.end,
        )

    def copy(self, turn_id: str, turn: NativeTurn) -> Sighting:
        """That a session holds a turn which Weft itself wrote there."""
        return Sighting(
            stream=import_stream(turn_id),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            turn=turn_id,
            file=self.contents.put_text(self.file),
            offset=turn.offset,
            end=turn.end,
        )

    def session_sighting(self, session: NativeSession, end: int) -> Sighting:
        """What the source tells of the session itself, up to its `end`."""
        return Sighting(
            stream=import_stream(self.session),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            started=moment(session.created),
            ended=moment(session.told_at),
            title=self._text(session.title),
            workspace=self._text(session.workspace),
            git_branch=self._text(session.git_branch),
            version=self._text(session.version),
            agent=self._name(session.agent),
            parent=UNSET if session.parent is None else self.session_ids(session.parent),
            spawn_call=self._text(session.spawn_call),
            task=self._text(session.task),
            metadata=self._json(session.metadata),
            archived=True if session.archived else UNSET,
            file=self.contents.put_text(self.file),
            end=end,
        )

    def kept(self, raw: bytes, start: int, end: int) -> Sighting:
        """A stretch of the source, compressed."""
        return Sighting(
            stream=import_stream(self.session),
            prev=None,
            actor=IMPORTED_AGENT,
            origin=self.origin,
            session=self.session,
            file=self.contents.put_text(self.file),
            offset=start,
            end=end,
            raw=self.contents.put_bytes(raw),
        )

    def _text(self, text: str | None) -> str | UnsetType:
        return UNSET if text is None else self.contents.put_text(text)

    def _json(self, value: Any) -> str | UnsetType:
        return UNSET if value is None else put_value(self.contents, value)

    def _name(self, name: str | None) -> Named | UnsetType:
        return UNSET if not name else named(self.contents, name)

    def _messages(self, turn: NativeTurn) -> tuple[SeenMessage, ...]:
        """Files and lints of a call belong to the message that made it."""
        messages: list[tuple[NativeMessage, list[FileNote], list[LintNote]]] = []
        for item in turn.items:
            if isinstance(item, NativeMessage):
                messages.append((item, list(item.files), list(item.lints)))
            elif messages:
                messages[-1][1].extend(item.files)
                messages[-1][2].extend(item.lints)
        seen = (self._message(k, *each) for k, each in enumerate(messages))
        return tuple(each for each in seen if each is not None)

    def _message(
        self, k: int, message: NativeMessage, files: list[FileNote], lints: list[LintNote]
    ) -> SeenMessage | None:
        made = SeenMessage(
            k=k,
            at=moment(message.at),
            literal_time=self._text(message.literal_time),
            source=UNSET if message.source is None else message.source,
            model=self._name(message.model),
            provider=self._name(message.provider),
            usage=UNSET if message.tokens is None else usage(message.tokens),
            finish_reason=self._name(message.finish_reason),
            context=self._context(message.context) or UNSET,
            metadata=self._json(message.metadata),
            files=tuple(self._file(note) for note in files[:NOTES]) or UNSET,
            lints=tuple(self._lint(note) for note in lints[:NOTES]) or UNSET,
        )
        return None if made == SeenMessage(k=k) else made

    def _context(self, context: Any) -> tuple[SeenContext, ...]:
        """Thing by thing: the same rules and listings stand beside many messages, and are kept once."""
        if context is None:
            return ()
        things = context if isinstance(context, dict) else {"context": context}
        return tuple(
            SeenContext(name=named(self.contents, name), value=put_value(self.contents, value), listed=listed or UNSET)
            for name, given in things.items()
            for listed, values in [(isinstance(given, list), given if isinstance(given, list) else [given])]
            for value in values[:NOTES]
        )

    def _file(self, note: FileNote) -> FileFact:
        path = self.contents.put_text(note.path)
        return FileFact(kind=note.kind, path=path, line_start=number(note.line_start), line_end=number(note.line_end))

    def _lint(self, note: LintNote) -> LintFact:
        return LintFact(
            path=self._text(note.path),
            message=self._text(note.message),
            source=self._name(note.source),
            start_line=number(note.start_line),
            start_col=number(note.start_col),
            end_line=number(note.end_line),
            end_col=number(note.end_col),
            severity=note.severity or UNSET,
        )

    def _calls(self, turn: NativeTurn) -> tuple[SeenCall, ...]:
        calls = [item for item in turn.items if isinstance(item, NativeCall)]
        seen = (
            SeenCall(
                k=k,
                at=moment(call.at),
                done=moment(call.done),
                detail=self._json(call.detail),
                spawned=UNSET if call.spawned is None else self.session_ids(call.spawned),
            )
            for k, call in enumerate(calls)
        )
        return tuple(each for each in seen if each != SeenCall(k=each.k))

    def _compaction(self, compaction: NativeCompaction) -> SeenCompaction:
        return SeenCompaction(
            model=self._name(compaction.model),
            trigger=TRIGGERS.get(compaction.trigger or "", UNSET),
            tokens_before=count(compaction.tokens_before),
            tokens_after=count(compaction.tokens_after),
            duration_ms=count(compaction.duration_ms),
            metadata=self._json(compaction.metadata),
        )


def encoded_sighting(
    turn: NativeTurn, id: str, *, secret: ImportSecret, origin: str, session: str, file: str
) -> EncodedEvents:
    """What a source tells of a turn with this id."""
    draft = EventDraft(secret)
    draft.add_event(Seeing(draft, origin, session, secret.session_id, file).turn(id, turn))
    return draft.encoded()


def number(value: Any) -> int | UnsetType:
    """A whole number that every reader holds exactly; an origin may have written anything."""
    return value if type(value) is int and abs(value) <= MAX_INTEGER else UNSET


def moment(value: Any) -> int | UnsetType:
    """A time that calendars have; an origin may have counted in other units."""
    return value if type(value) is int and is_dated(value) else UNSET


def count(value: Any) -> int | UnsetType:
    return value if type(value) is int and 0 <= value <= MAX_INTEGER else UNSET


def usage(tokens: Tokens) -> Usage | UnsetType:
    written, one_hour = count(tokens.cache_write), count(tokens.cache_write_1h)
    if one_hour is not UNSET:
        one_hour = one_hour_part(one_hour, None if written is UNSET else written)
    made = Usage(
        input_tokens=count(tokens.input),
        output_tokens=count(tokens.output),
        cached_input_tokens=count(tokens.cached),
        cache_write_tokens=written,
        cache_write_1h_tokens=one_hour,
        reasoning_tokens=count(tokens.reasoning),
    )
    return UNSET if made == Usage() else made
