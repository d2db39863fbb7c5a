"""What the verbs of the ledger return that has verbs of its own, awaited.

`make docs` writes this module from the synchronous API, and a test compares the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from weft.aio import crossing
from weft.ledger.write.turn_events import MAIN_LIST

if TYPE_CHECKING:
    from weft.kernel.contents import ImportSecret
    from weft.ledger.imports.import_writer import ImportWriter
    from weft.ledger.imports.imported_turns import EncodedEvents, NativeSession, NativeTurn
    from weft.ledger.imports.sources import ImportCounts, ImportSource, OpenTail, RawFile, TranscriptTurn
    from weft.ledger.model import FileNote, Message, RecordedTurn, Turn
    from weft.ledger.read.contexts import PromptChange
    from weft.ledger.read.full_threads import FullThreads, FullTurn, ThreadsSpan, TurnLine, TurnRange
    from weft.ledger.read.session_list import ListReader, SessionFilter, SessionList
    from weft.ledger.read.sessions import Page
    from weft.ledger.read.turns import Thread
    from weft.ledger.write.turn_writer import TurnWriter


class AsyncTurnWriter(crossing.Mirror["TurnWriter"]):
    """An open turn. Leaving its `with` block by an exception fails it; without an end it is interrupted."""

    _sync: TurnWriter

    async def __aenter__(self) -> AsyncTurnWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self._run(partial(self._sync.__exit__, kind, error, trace)))

    @property
    def id(self) -> str:
        return self._sync.id

    @property
    def session(self) -> str | None:
        return self._sync.session

    async def message(self, message: Any, *, role: str = "user", history: str = MAIN_LIST) -> str:
        """A message enters the turn's history. Returns its id. One of Anthropic's that holds results of tools and words
        of the user becomes two; the id is that of the words."""
        return await self._run(partial(self._sync.message, message=message, role=role, history=history))

    async def request(
        self,
        model: str,
        *,
        provider: str | None = None,
        params: Any = None,
        input: Any = None,
        tools_spec: Any = None,
        attempt: int | None = None,
    ) -> str:
        """The model is about to be asked. `input` says what it is sent: a context, message ids, or {base, keep, then};
        without it, the turn's context and what the turn has said and done so far. Returns the event, a base for later
        inputs."""
        return await self._run(
            partial(
                self._sync.request,
                model=model,
                provider=provider,
                params=params,
                input=input,
                tools_spec=tools_spec,
                attempt=attempt,
            )
        )

    async def response(
        self,
        message: Any = None,
        *,
        usage: Any = None,
        finish_reason: str | None = None,
        model: str | None = None,
        latency_ms: int | None = None,
    ) -> str | None:
        """The model answered. Returns the message's id. An API's answer as it comes tells its usage, its model and its
        finish reason, where they are not given."""
        return await self._run(
            partial(
                self._sync.response,
                message=message,
                usage=usage,
                finish_reason=finish_reason,
                model=model,
                latency_ms=latency_ms,
            )
        )

    async def tool_call(
        self,
        name: str | Any,
        arguments: Any = None,
        *,
        id: str | None = None,
        server: str | None = None,
        number: int | None = None,
    ) -> str:
        """A tool is about to run: the intent, before the effect. Returns the call id to give its result under. A tool
        call of OpenAI's or Anthropic's stands for name, arguments and id."""
        return await self._run(
            partial(self._sync.tool_call, name=name, arguments=arguments, id=id, server=server, number=number)
        )

    async def tool_result(
        self,
        call: str | Any,
        result: Any = UNSET,
        *,
        error: Any = None,
        status: str | None = None,
        spawned_session: str | None = None,
        duration_ms: int | None = None,
    ) -> None:
        """A tool ended. `call` is what `tool_call` returned, with or without the turn's id before it, or the provider's
        own id where that is not another call's; or OpenAI's or Anthropic's message with the result."""
        await self._run(
            partial(
                self._sync.tool_result,
                call=call,
                result=result,
                error=error,
                status=status,
                spawned_session=spawned_session,
                duration_ms=duration_ms,
            )
        )

    async def renew(self) -> None:
        """Say that this writer is alive, while a model or a tool takes its time."""
        await self._run(self._sync.renew)

    async def finish(self, *, usage: Any = None, permissions_used: Any = None) -> RecordedTurn:
        """The turn is complete; the session's head moves to it in the same transaction. Should facts from elsewhere
        have moved the head meanwhile, the turn is complete beside it and the answer names no session."""
        return await self._run(partial(self._sync.finish, usage=usage, permissions_used=permissions_used))

    async def fail(self, error: Any) -> RecordedTurn:
        """The turn ended badly: it stays, addressable, and the head does not move."""
        return await self._run(partial(self._sync.fail, error=error))

    async def interrupt(self, reason: str = "canceled") -> RecordedTurn:
        """The turn was cut short: completed with what it had, open calls closed as interrupted, head moved."""
        return await self._run(partial(self._sync.interrupt, reason=reason))


class AsyncThread(crossing.Mirror["Thread"]):
    """A turn and all its ancestry. Turns and messages are read as they are asked for, 512 turns at a time."""

    _sync: Thread

    @property
    def id(self) -> str:
        return self._sync.id

    @property
    def turn_id(self) -> Coroutine[Any, Any, str]:
        """The turn that it ends at, which is its id, too."""
        return self._run(lambda: self._sync.turn_id)

    @property
    def depth(self) -> int:
        return self._sync.depth

    @property
    def persona(self) -> Coroutine[Any, Any, str]:
        """The agent that answered in its last turn."""
        return self._run(lambda: self._sync.persona)

    @property
    def system_prompt(self) -> Coroutine[Any, Any, str | None]:
        """The system prompt that its last turn was recorded with, or that a turn before it was; None where none was."""
        return self._run(lambda: self._sync.system_prompt)

    @property
    def thread_key(self) -> Coroutine[Any, Any, str | None]:
        """Its address, `LABEL#DEPTH` of the session that made its last turn; None where that names another turn."""
        return self._run(lambda: self._sync.thread_key)

    @property
    def digest(self) -> Coroutine[Any, Any, str]:
        """The id of the thread's last event, which commits to everything before it."""
        return self._run(lambda: self._sync.digest)

    @property
    def total_tokens(self) -> Coroutine[Any, Any, int]:
        """The sum over its turns; of a turn that is shown in part, over the responses that are."""
        return self._run(lambda: self._sync.total_tokens)

    @property
    def transcript(self) -> Coroutine[Any, Any, list[Message]]:
        """Its last turn as a model is told it: each tool call is an assistant's use and a tool's result."""
        return self._run(lambda: self._sync.transcript)

    @property
    def cuts(self) -> Coroutine[Any, Any, dict[str, str]]:
        """Turns that the thread shows in part, by their ids, each with the last event of it that is shown."""
        return self._run(lambda: self._sync.cuts)

    @property
    def turns(self) -> AsyncIterator[Turn]:
        return self._each(lambda: self._sync.turns)

    async def page(self, *, limit: int | None = None, after: str | None = None) -> Page[Turn]:
        """The same turns page by page. The first page decides where the thread ends: a session that moves meanwhile
        changes none of the pages behind it."""
        return await self._run(partial(self._sync.page, limit=limit, after=after))

    @property
    def ancestry(self) -> AsyncIterator[str]:
        """The turn ids from the root to this one."""
        return self._each(lambda: self._sync.ancestry)

    @property
    def messages(self) -> AsyncIterator[Message]:
        return self._each(lambda: self._sync.messages)


class AsyncFullThreads(crossing.Mirror["FullThreads"]):
    """Strands of turns, told one after the other; parents before children."""

    _sync: FullThreads

    @property
    def strands(self) -> tuple[TurnRange, ...]:
        return self._sync.strands

    @property
    def turns(self) -> AsyncIterator[FullTurn]:
        """All of them, strand by strand."""
        return self._each(lambda: self._sync.turns)

    def lines_of(self, strand: TurnRange) -> AsyncIterator[TurnLine]:
        """A line about each turn of a strand, in order."""
        return self._each(partial(self._sync.lines_of, strand=strand))

    async def span(self) -> ThreadsSpan:
        """Over all strands."""
        return await self._run(self._sync.span)

    def turns_of(self, strand: TurnRange) -> AsyncIterator[FullTurn]:
        return self._each(partial(self._sync.turns_of, strand=strand))


class AsyncListReader(crossing.Mirror["ListReader"]):
    """Reads what lists need from one ledger; `parse_time` understands words for a time, `now` is the present one."""

    _sync: ListReader

    async def sessions(
        self, wanted: SessionFilter, *, limit: int | None = None, after: str | None = None
    ) -> SessionList:
        """The latest first; those of subagents below the session that started them. Pages are as those of
        `Ledger.sessions`."""
        return await self._run(partial(self._sync.sessions, wanted=wanted, limit=limit, after=after))

    async def short_labels(self) -> dict[str, str]:
        """By label what listings show of every session that is not deleted."""
        return await self._run(self._sync.short_labels)

    async def subjects(self, turns: Sequence[str]) -> dict[str, str]:
        """What each of these turns is about, by its id."""
        return await self._run(partial(self._sync.subjects, turns=turns))

    async def on_behalf_of(self, turns: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """By turn the names of those on whose behalf it was run, the nearest first; others are left out."""
        return await self._run(partial(self._sync.on_behalf_of, turns=turns))

    async def prompt_changes(self, turn: str) -> list[PromptChange]:
        """Of the requests of a turn, those that did not begin with all of the request before them, and from where on;
        none where it cannot be read."""
        return await self._run(partial(self._sync.prompt_changes, turn=turn))

    async def sources(self) -> dict[str, list[tuple[str, str]]]:
        """Every turn that was picked or summed up and can be read: which way, and from which turns that can."""
        return await self._run(self._sync.sources)

    async def projects(self, folders: Iterable[str]) -> dict[str, str]:
        """The name of the project that each of these folders belongs to."""
        return await self._run(partial(self._sync.projects, folders=folders))

    async def files(self, messages: Iterable[str]) -> dict[str, list[FileNote]]:
        """The files that each of these messages read, wrote, referred to or carried."""
        return await self._run(partial(self._sync.files, messages=messages))


class AsyncImportWriter(crossing.Mirror["ImportWriter"]):
    """One origin's way into one ledger."""

    _sync: ImportWriter

    @property
    def origin(self) -> str:
        return self._sync.origin

    @property
    def mapping(self) -> str:
        return self._sync.mapping

    @property
    def secret(self) -> ImportSecret:
        return self._sync.secret

    async def last_read(self, name: str) -> ImportSource | None:
        """A source as it was when it was last read to its end, by whichever importer."""
        return await self._run(partial(self._sync.last_read, name=name))

    async def is_due(self, source: ImportSource, quiet: bool) -> bool:
        """Is a source that has not changed to be read again: for a newer mapping, or for the turn left open then?"""
        return await self._run(partial(self._sync.is_due, source=source, quiet=quiet))

    async def remember(self, source: ImportSource, *, alike: bool = False) -> None:
        """The source has been read to its end, or is `alike` to what was read then: noted with the next write, or by
        `finish`."""
        await self._run(partial(self._sync.remember, source=source, alike=alike))

    async def finish(self) -> None:
        await self._run(self._sync.finish)

    async def forget_tails(self, is_there: Callable[[str], bool]) -> list[str]:
        """The open tails of sources that are gone go too; the sources' names."""
        return await self._run(partial(self._sync.forget_tails, is_there=is_there))

    async def take(
        self,
        session: NativeSession,
        turns: Iterable[NativeTurn],
        file: str,
        counts: ImportCounts,
        *,
        reread: bool = False,
        raw: RawFile | None = None,
        tail: OpenTail | None = None,
        known: Sequence[TranscriptTurn] = (),
    ) -> list[TranscriptTurn]:
        """One transcript. `session` may be completed while its turns are walked; `raw` is kept along with them. `tail`
        has the turns left out, once all are walked. `known` are turns before these, as an earlier call returned them:
        so it returns them all."""
        return await self._run(
            partial(
                self._sync.take,
                session=session,
                turns=turns,
                file=file,
                counts=counts,
                reread=reread,
                raw=raw,
                tail=tail,
                known=known,
            )
        )

    async def erasures(self) -> int:
        """A number that changes with every erasure: what was known before it may not be there any more."""
        return await self._run(self._sync.erasures)

    async def refuses(self, session: NativeSession) -> bool:
        """Was something of this session passed over, because it was erased?"""
        return await self._run(partial(self._sync.refuses, session=session))

    async def add_apart(self, made: Sequence[EncodedEvents]) -> int:
        """Events that belong to no turn, each once, in one transaction. Returns how many are new."""
        return await self._run(partial(self._sync.add_apart, made=made))

    async def keep(self, session: NativeSession, file: str, piece: bytes, start: int = 0) -> None:
        """A stretch of a source, verbatim: whatever no turn is made of is not lost."""
        await self._run(partial(self._sync.keep, session=session, file=file, piece=piece, start=start))

    def identify(self, turns: Iterable[NativeTurn]) -> AsyncIterator[tuple[NativeTurn, str | None]]:
        """Each turn of a source with the id that it has here; None: it is not here."""
        return self._each(partial(self._sync.identify, turns=turns))

    async def claim(self, turns: Iterable[tuple[NativeTurn, str]]) -> int:
        """A session file that Weft wrote, as this importer reads it: each of its turns with the turn that it was
        written from. Whoever imports that file, grown or not, lands on those. Returns how many links are new."""
        return await self._run(partial(self._sync.claim, turns=turns))
