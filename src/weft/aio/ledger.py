"""The ledger and its groups of verbs, awaited.

`make docs` writes this module from the synchronous API, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec import UNSET, UnsetType

from weft.aio import crossing
from weft.aio.objects import AsyncFullThreads, AsyncImportWriter, AsyncListReader, AsyncThread, AsyncTurnWriter
from weft.ledger.api.base import WAIT
from weft.ledger.api.inbox import OPEN, WAITING, Approvals, Inbox, Policies
from weft.ledger.arguments import checked_count, checked_seconds
from weft.ledger.broker.inbox import DEFAULT_LIMITS, Admission, InboxMessage, QueueLimits
from weft.ledger.model import (
    DEFAULT_AGENT,
    AppliedSubstitution,
    Branch,
    Codeblock,
    Compaction,
    ErrorInput,
    HeadMove,
    Message,
    MessagesInput,
    RecordedTurn,
    RevisionTarget,
    Session,
    SessionAlias,
    SessionMove,
    StoredContent,
    ToolCall,
    ToolCallInput,
    Turn,
    UsageInput,
)
from weft.ledger.room_records import (
    ROOM_LIMITS,
    AgentProfile,
    Invitation,
    Participant,
    PersonProfile,
    PostedMessage,
    ReachedAgent,
    Room,
    RoomHit,
    RoomLimits,
    RoomMessage,
)

if TYPE_CHECKING:
    from weft.kernel.authority import Authority, LedgerTrust
    from weft.kernel.events import PolicyTests, Receipt
    from weft.ledger.api.ledger import Ledger
    from weft.ledger.api.merges import Compactions, Imports, Merges
    from weft.ledger.api.reading import Tree
    from weft.ledger.api.recording import Heads, Labels
    from weft.ledger.api.reports import AuditReports, UsageReports
    from weft.ledger.api.resources import Resources
    from weft.ledger.api.rooms import Rooms
    from weft.ledger.api.upkeep import Erasures, Secrets, Upkeep
    from weft.ledger.broker.session_stream import StreamItem, StreamPosition
    from weft.ledger.erasing import Erasure, ErasurePlan
    from weft.ledger.imports import ProvisionalTurn, SourceRange
    from weft.ledger.read.content_uses import Tombstone
    from weft.ledger.read.contexts import Context, VouchedMessage, Voucher
    from weft.ledger.read.search_index import PreparedWords
    from weft.ledger.read.search_matches import Hit
    from weft.ledger.read.session_list import Touch
    from weft.ledger.read.sessions import Page
    from weft.ledger.read.turn_lookups import RelatedTurns
    from weft.ledger.read.turns import ThreadDiff
    from weft.ledger.reports.audit import ActorEvent, AuditChoice, AuditFinding, AuditTally, SuggestedGrant
    from weft.ledger.reports.usage import (
        AbandonedUsage,
        BranchUsage,
        Prices,
        UsageChoice,
        UsageReport,
        UsageTree,
        WorkReport,
    )
    from weft.ledger.resource_reading import Resource, Snapshot
    from weft.ledger.secrets import SecretMatch, SecretReport, SecretScanner
    from weft.ledger.upkeep import facts_file
    from weft.ledger.upkeep.ledger_copy import PackResult
    from weft.ledger.upkeep.verify import Problem
    from weft.ledger.views.rows import StoredEvent
    from weft.ledger.write.approvals import Approval, CallDecision, Policy
    from weft.ledger.write.session_merges import Provenance, Unification


class AsyncLedger(crossing.Mirror["Ledger"]):
    """One ledger, open. Use it as a context manager, or close it."""

    _sync: Ledger

    def __init__(self, sync: Ledger, pool: crossing.Pool) -> None:
        super().__init__(sync, pool)
        self._news = crossing.News(pool, sync.newest)
        self._is_original = True

    @property
    def sync(self) -> Ledger:
        """The ledger whose verbs this one awaits."""
        return self._sync

    @property
    def crossing(self) -> crossing.Pool:
        """The threads in which its verbs run."""
        return self._pool

    def acting_as(self, who: Authority | str) -> Self:
        """The same open ledger, changed in the name of somebody else, as the synchronous one. Reads nothing."""
        ledger = type(self)(self._sync.acting_as(who), self._pool)
        ledger._is_original = False
        return ledger

    def originals(self) -> Self:
        """The same open ledger, which shows what was recorded, as the synchronous one. Reads nothing."""
        ledger = type(self)(self._sync.originals(), self._pool)
        ledger._is_original = False
        return ledger

    def follow(
        self, session: str, *, after: StreamPosition | str | None = None, wait: float | None = None
    ) -> AsyncIterator[StreamItem]:
        """As the synchronous one; the text of a turn that runs in this process comes piece by piece, at once."""
        from weft.runtime.answer_streams import follow

        return follow(self, session, after=after, wait=wait)

    async def __aenter__(self) -> AsyncLedger:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Everything that was begun ends first, awaited or not; then as the synchronous one."""
        if self._is_original:
            await self._pool.close(self._sync.close)

    @property
    def path(self) -> str:
        return self._sync.path

    @property
    def replica(self) -> str:
        return self._sync.replica

    @property
    def trust(self) -> LedgerTrust:
        """Whether this ledger may act for whoever opened it."""
        return self._sync.trust

    @property
    def authority(self) -> Authority:
        """In whose name this ledger is read and changed, and with which rights."""
        return self._sync.authority

    async def session(self, name: str) -> Session:
        """By label, by alias, or by id."""
        return await self._run(partial(self._sync.session, name=name))

    async def resolve(self, name: str) -> str:
        """The id of the turn that these words mean: labels, `main~2`, `main@{3}`, id ends, digest beginnings."""
        return await self._run(partial(self._sync.resolve, name=name))

    async def point(self, name: str) -> RevisionTarget:
        """The same, and which event inside the turn they mean: by its id, or as the place where a session stands."""
        return await self._run(partial(self._sync.point, name=name))

    async def search(
        self,
        words: str = "",
        *,
        session: str | None = None,
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        model: str | None = None,
        project: str | None = None,
        origin: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        rank: bool = False,
    ) -> Page[Hit]:
        """Messages and tool calls that hold all these words, the newest first.

        `"a phrase"` stands together, as does what is typed without a space; the last word may be the beginning of one.
        `since` and `until` are Unix milliseconds, or words such as 'yesterday'; a day means all of it. With `rank` the
        best come first, by the engine's own idea of it; these have no further pages, since what is recorded meanwhile
        changes the order."""
        return await self._run(
            partial(
                self._sync.search,
                words=words,
                session=session,
                role=role,
                tool=tool,
                path=path,
                since=since,
                until=until,
                model=model,
                project=project,
                origin=origin,
                limit=limit,
                after=after,
                rank=rank,
            )
        )

    async def search_sessions(
        self,
        words: str,
        *,
        session: str | None = None,
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        model: str | None = None,
        project: str | None = None,
        origin: str | None = None,
        limit: int | None = None,
    ) -> list[Hit]:
        """Sessions whose title or project holds all these words, those with a title so first, then the latest first.

        Each is a hit with place `title` or `project`, at the turn where the session stands. Filters are those of
        `search`; one that speaks of messages or calls (session, role, tool, path, model) leaves nothing."""
        return await self._run(
            partial(
                self._sync.search_sessions,
                words=words,
                session=session,
                role=role,
                tool=tool,
                path=path,
                since=since,
                until=until,
                model=model,
                project=project,
                origin=origin,
                limit=limit,
            )
        )

    async def related_turns(self, text: str, *, also: Sequence[str] = ()) -> RelatedTurns:
        """Turns that share words with a text, each with the words that it shares; a bounded number of them.

        Only turns that a message can be routed to: the newest version of a turn, of a session that is active, not
        completed and no subagent's. `also` names further turns by their ids, such as those with a similar meaning; ids
        of turns that cannot be read are passed over."""
        return await self._run(partial(self._sync.related_turns, text=text, also=also))

    async def find_turns(
        self,
        *,
        parent: str | None = None,
        agent: str | None = None,
        type: str | None = None,
        status: str | None = None,
        role: str | None = None,
        source_event: str | None = None,
        has_children: bool | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        limit: int | None = None,
        after: str | None = None,
        persona: str | None = None,
    ) -> Page[Turn]:
        """Turns, the newest first; `parent` is a turn. Pages are as those of `log`. `persona` is an earlier spelling of
        `agent`."""
        return await self._run(
            partial(
                self._sync.find_turns,
                parent=parent,
                agent=agent,
                type=type,
                status=status,
                role=role,
                source_event=source_event,
                has_children=has_children,
                since=since,
                until=until,
                limit=limit,
                after=after,
                persona=persona,
            )
        )

    async def find_messages(
        self,
        *,
        session: str | None = None,
        role: str | None = None,
        tool: str | None = None,
        path: str | None = None,
        since: int | str | None = None,
        until: int | str | None = None,
        model: str | None = None,
        project: str | None = None,
        origin: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[Message]:
        """Messages, the newest first; by the filters of `search`."""
        return await self._run(
            partial(
                self._sync.find_messages,
                session=session,
                role=role,
                tool=tool,
                path=path,
                since=since,
                until=until,
                model=model,
                project=project,
                origin=origin,
                limit=limit,
                after=after,
            )
        )

    async def find_tool_calls(
        self,
        *,
        tool: str | None = None,
        message: str | None = None,
        spawned: str | None = None,
        limit: int | None = None,
        after: str | None = None,
    ) -> Page[ToolCall]:
        """Tool calls by the tool's whole name, the newest first; of one message; or that which started a session."""
        return await self._run(
            partial(self._sync.find_tool_calls, tool=tool, message=message, spawned=spawned, limit=limit, after=after)
        )

    async def find_sessions(
        self,
        *,
        agent: str | None = None,
        parent: str | None = None,
        origin: str | None = None,
        routing_key: str | None = None,
        since: int | str | None = None,
        limit: int | None = None,
        after: str | None = None,
        persona: str | None = None,
    ) -> Page[Session]:
        """Sessions, the latest changed first; `parent` is a session. Pages are as those of `sessions`. `persona` is an
        earlier spelling of `agent`."""
        return await self._run(
            partial(
                self._sync.find_sessions,
                agent=agent,
                parent=parent,
                origin=origin,
                routing_key=routing_key,
                since=since,
                limit=limit,
                after=after,
                persona=persona,
            )
        )

    async def turn(self, name: str) -> Turn:
        return await self._run(partial(self._sync.turn, name=name))

    async def thread(self, name: str) -> AsyncThread:
        """A turn with all its ancestry."""
        return AsyncThread(await self._run(partial(self._sync.thread, name=name)), self._pool)

    async def full_threads(self, *names: str, trees: bool = False, requests: bool = False) -> AsyncFullThreads:
        """Threads in full, each turn once. `trees`: all that shares their roots; `requests`: what events tell, too."""
        return AsyncFullThreads(
            await self._run(partial(self._sync.full_threads, *names, trees=trees, requests=requests)), self._pool
        )

    async def messages(self, turn: str) -> list[Message]:
        """The messages of one turn."""
        return await self._run(partial(self._sync.messages, turn=turn))

    async def message(self, message: str) -> Message:
        return await self._run(partial(self._sync.message, message=message))

    async def tool_calls(self, turn: str) -> list[ToolCall]:
        return await self._run(partial(self._sync.tool_calls, turn=turn))

    async def files(self, path: str) -> list[Touch]:
        """Every turn's note of a file, the newest first: that it was read, written, referred to or attached. A path
        that does not begin with `/` is the end of one."""
        return await self._run(partial(self._sync.files, path=path))

    async def codeblocks(self, message: str) -> list[Codeblock]:
        """The code blocks of an assistant's message."""
        return await self._run(partial(self._sync.codeblocks, message=message))

    async def context(self, turn: str | None = None, *, session: str | None = None) -> Context:
        """What an agent saw at a turn; or, of a session, what its next turn would see."""
        return await self._run(partial(self._sync.context, turn=turn, session=session))

    async def vouchers(self, turn: str | None = None, *, session: str | None = None) -> list[VouchedMessage]:
        """Who vouches for each part of the same context, message by message: a person here, an agent, a tool, an
        import or a peer."""
        return await self._run(partial(self._sync.vouchers, turn=turn, session=session))

    async def strangers(self, turn: str) -> list[Voucher]:
        """The import or the peer that a turn came from; nothing where it was written here."""
        return await self._run(partial(self._sync.strangers, turn=turn))

    async def diff(self, left: str, right: str) -> ThreadDiff:
        """Where two threads part, and what each has alone."""
        return await self._run(partial(self._sync.diff, left=left, right=right))

    async def log(
        self,
        limit: int | None = None,
        *,
        after: str | None = None,
        thread: str | None = None,
        session: str | None = None,
    ) -> Page[Turn]:
        """Turns of all sessions, the newest first. `thread`: only the turn of this name and its ancestors; `session`:
        only turns that this session made.

        Pages show what was there when the first one was read: turns that arrive later are not in them, and a turn that
        another version replaces meanwhile still is, as not current."""
        return await self._run(partial(self._sync.log, limit=limit, after=after, thread=thread, session=session))

    async def events(self, turn: str, *, limit: int | None = None, after: str | None = None) -> Page[StoredEvent]:
        """The events of a turn, in order."""
        return await self._run(partial(self._sync.events, turn=turn, limit=limit, after=after))

    def changes(self, after: int = 0, *, wait: float = 0.0) -> AsyncIterator[StoredEvent]:
        """Every event beyond arrival number `after`, in order and without a gap; waits so long for the first."""

        async def found() -> AsyncIterator[StoredEvent]:
            seconds = checked_seconds(wait, "wait")
            if seconds:
                await self._news.beyond(checked_count(after, "after"), seconds)
            async for change in self._each(partial(self._sync.changes, after)):
                yield change

        return found()

    async def newest(self) -> int:
        """The arrival number of the newest event; 0 where there is none."""
        return await self._run(self._sync.newest)

    def read_content(self, ref: str) -> AsyncIterator[bytes]:
        """A content's bytes in pieces of at most 1 MiB, checked against its reference. Each piece is read in a moment
        of its own: whoever stops half-way holds nobody up."""
        return self._each(partial(self._sync.read_content, ref=ref))

    async def create_session(
        self,
        label: str,
        *,
        agent: str | None = None,
        persona: str = DEFAULT_AGENT,
        routing_key: str | None = None,
        origin: str | None = None,
        origin_session_id: str | None = None,
        parent_session: str | None = None,
        parent_turn_id: str | None = None,
        spawn_tool_call_id: str | None = None,
        task_description: str | None = None,
    ) -> Session:
        """A session before its first turn. `persona` is an earlier spelling of `agent`."""
        return await self._run(
            partial(
                self._sync.create_session,
                label=label,
                agent=agent,
                persona=persona,
                routing_key=routing_key,
                origin=origin,
                origin_session_id=origin_session_id,
                parent_session=parent_session,
                parent_turn_id=parent_turn_id,
                spawn_tool_call_id=spawn_tool_call_id,
                task_description=task_description,
            )
        )

    async def sessions(
        self, *, every: bool = False, limit: int | None = None, after: str | None = None
    ) -> Page[Session]:
        """Active sessions, the latest changed first; `every` adds archived and deleted ones.

        Pages show the sessions in the order of their first page: one that changes meanwhile keeps its place, and those
        made meanwhile are not in them."""
        return await self._run(partial(self._sync.sessions, every=every, limit=limit, after=after))

    async def listing(self) -> AsyncListReader:
        """What lists of sessions and turns show, read a few statements at a time."""
        return AsyncListReader(await self._run(self._sync.listing), self._pool)

    async def fork(
        self,
        at: str,
        *,
        label: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        persona: str | None = None,
    ) -> Session:
        """A new session whose head stands at a turn, at an event inside one, or wherever a name leads; without a label
        it gets one. `persona` is an earlier spelling of `agent`."""
        return await self._run(
            partial(self._sync.fork, at=at, label=label, session=session, agent=agent, persona=persona)
        )

    async def move_head(
        self, session: str, *, new: str | None, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """Compare and swap: move the head, if it stands at `expected`, to a turn or to an event inside one, by their
        ids; else HeadMoved."""
        return await self._run(
            partial(self._sync.move_head, session=session, new=new, expected=expected, reason=reason)
        )

    async def reflog(self, session: str, *, limit: int | None = None) -> list[HeadMove]:
        return await self._run(partial(self._sync.reflog, session=session, limit=limit))

    async def record_turn(
        self,
        *,
        session: str | None = None,
        query: MessagesInput = None,
        response: MessagesInput = None,
        system: MessagesInput = None,
        model: str | None = None,
        provider: str | None = None,
        params: Any = None,
        usage: UsageInput = None,
        tool_calls: Sequence[ToolCallInput] | None = (),
        tools_spec: Any = None,
        finish_reason: str | None = None,
        error: ErrorInput | None = None,
        permissions_used: Any = None,
        agent: str | None = None,
        persona: str = DEFAULT_AGENT,
        role: str = "unified",
        reason: str | None = None,
        toolset: str | None = None,
        tools_available: Sequence[str] | None = None,
        permissions_granted: Any = None,
        thinking_config: Any = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        wait: float = WAIT,
        key: str | None = None,
    ) -> RecordedTurn:
        """Record a whole turn, durably, and move the session's head to it.

        `query`, `response` and `system` are text, a message, or a list of them; messages, tool calls and usage of
        OpenAI's and Anthropic's APIs are taken as they come. A whole answer of theirs as the `response` also tells the
        model, the usage and the finish reason, unless these are given. A turn with `error` is a failed one: it stays,
        and the head does not move. `parent` and `expected` say where the session must stand, or the turn is
        refused with HeadMoved. Others who write to the session are waited for, `wait` seconds at most.
        With `key`, a retry key, it is recorded once: the same call again gives the first answer and writes nothing,
        another call with that key raises KeyTaken. `persona` is an earlier spelling of `agent`."""
        asked = partial(
            self._sync.record_turn,
            session=session,
            query=query,
            response=response,
            system=system,
            model=model,
            provider=provider,
            params=params,
            usage=usage,
            tool_calls=tool_calls,
            tools_spec=tools_spec,
            finish_reason=finish_reason,
            error=error,
            permissions_used=permissions_used,
            agent=agent,
            persona=persona,
            role=role,
            reason=reason,
            toolset=toolset,
            tools_available=tools_available,
            permissions_granted=permissions_granted,
            thinking_config=thinking_config,
            effective_config=effective_config,
            workspace=workspace,
            source_event_id=source_event_id,
            parent=parent,
            expected=expected,
            wait=0,
            key=key,
        )
        return await crossing.patiently(self._pool, wait, asked)

    async def record_turns(self, turns: Sequence[Mapping[str, Any]], *, wait: float = WAIT) -> list[RecordedTurn]:
        """Record several turns in one transaction: all of them, or none.

        Each is a mapping of the arguments of `record_turn`, without `wait`. A turn follows what its session is at by
        then; one in no session, without `parent`, follows the turn before it in the list."""
        asked = partial(self._sync.record_turns, turns=turns, wait=0)
        return await crossing.patiently(self._pool, wait, asked)

    async def begin_turn(
        self,
        *,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        expected: str | UnsetType | None = UNSET,
        agent: str | None = None,
        persona: str = DEFAULT_AGENT,
        role: str = "unified",
        reason: str | None = None,
        toolset: str | None = None,
        tools_available: Sequence[str] | None = None,
        permissions_granted: Any = None,
        thinking_config: Any = None,
        effective_config: Any = None,
        workspace: str | None = None,
        source_event_id: str | None = None,
        wait: float = WAIT,
    ) -> AsyncTurnWriter:
        """Begin a turn under the session's lease; the parent is pinned, others wait or get SessionBusy. `persona` is an
        earlier spelling of `agent`."""
        return AsyncTurnWriter(
            await crossing.begun(
                self._pool,
                wait,
                partial(
                    self._sync.begin_turn,
                    session=session,
                    parent=parent,
                    expected=expected,
                    agent=agent,
                    persona=persona,
                    role=role,
                    reason=reason,
                    toolset=toolset,
                    tools_available=tools_available,
                    permissions_granted=permissions_granted,
                    thinking_config=thinking_config,
                    effective_config=effective_config,
                    workspace=workspace,
                    source_event_id=source_event_id,
                    wait=0,
                ),
            ),
            self._pool,
        )

    async def record_late_result(
        self,
        turn: str,
        call_id: str,
        result: Any = UNSET,
        *,
        error: ErrorInput | None = None,
        status: str | None = None,
    ) -> None:
        """The outcome of a tool call that its turn did not wait for; the turn's digest stays as it is. A turn that is
        parked until the outcome comes goes on."""
        await self._run(
            partial(
                self._sync.record_late_result, turn=turn, call_id=call_id, result=result, error=error, status=status
            )
        )

    async def substitute(
        self, event: str, with_: Any = UNSET, *, with_event: str | None = None, reason: str | None = None
    ) -> AppliedSubstitution:
        """Have a message, a model's answer or the result of a tool shown with other words, or as another event of its
        kind tells it; `with_event` the event itself takes that back. Contexts, exports and searches go by it from now
        on. What was recorded stays, as does the digest of its turn; `originals` shows it. The event goes by the
        beginning of its id, by the id of its message, by that of its tool call, or by a turn, for its answer. Returns
        what is noted of it."""
        return await self._run(
            partial(self._sync.substitute, event=event, with_=with_, with_event=with_event, reason=reason)
        )

    async def put_content(self, data: bytes | Iterable[bytes] | Any) -> StoredContent:
        """Stream bytes, chunks or a binary file in; the result stands wherever a text is taken."""
        return await self._run(partial(self._sync.put_content, data=data))

    def verify(
        self, *, facts: bool = True, views: bool = True, receipt: Receipt | None = None, progress: Any = None
    ) -> AsyncIterator[Problem]:
        """Every problem there is; an empty list is a sound ledger."""
        return self._each(
            partial(
                self._sync.verify, facts=facts, views=views, receipt=receipt, progress=crossing.in_event_loop(progress)
            )
        )

    @cached_property
    def heads(self) -> AsyncHeads:
        return AsyncHeads(self._sync.heads, self._pool)

    @cached_property
    def labels(self) -> AsyncLabels:
        return AsyncLabels(self._sync.labels, self._pool)

    @cached_property
    def tree(self) -> AsyncTree:
        return AsyncTree(self._sync.tree, self._pool)

    @cached_property
    def compactions(self) -> AsyncCompactions:
        return AsyncCompactions(self._sync.compactions, self._pool)

    @cached_property
    def merges(self) -> AsyncMerges:
        return AsyncMerges(self._sync.merges, self._pool)

    @cached_property
    def imports(self) -> AsyncImports:
        return AsyncImports(self._sync.imports, self._pool)

    @cached_property
    def usage(self) -> AsyncUsageReports:
        return AsyncUsageReports(self._sync.usage, self._pool)

    @cached_property
    def audit(self) -> AsyncAuditReports:
        return AsyncAuditReports(self._sync.audit, self._pool)

    @cached_property
    def secrets(self) -> AsyncSecrets:
        return AsyncSecrets(self._sync.secrets, self._pool)

    @cached_property
    def erasure(self) -> AsyncErasures:
        return AsyncErasures(self._sync.erasure, self._pool)

    @cached_property
    def inbox(self) -> AsyncInbox:
        return AsyncInbox(self._sync.inbox, self._pool)

    @cached_property
    def approvals(self) -> AsyncApprovals:
        return AsyncApprovals(self._sync.approvals, self._pool)

    @cached_property
    def policies(self) -> AsyncPolicies:
        return AsyncPolicies(self._sync.policies, self._pool)

    @cached_property
    def rooms(self) -> AsyncRooms:
        return AsyncRooms(self._sync.rooms, self._pool)

    @cached_property
    def resources(self) -> AsyncResources:
        return AsyncResources(self._sync.resources, self._pool)

    @cached_property
    def upkeep(self) -> AsyncUpkeep:
        return AsyncUpkeep(self._sync.upkeep, self._pool)


class AsyncHeads(crossing.Mirror["Heads"]):
    """`ledger.heads`: puts heads back to where they were, and says where they stood."""

    _sync: Heads

    async def reset(
        self, session: str, *, expected: str | UnsetType | None = UNSET, reason: str | None = None
    ) -> Session:
        """No head: the next turn is a new root. Nothing is lost, the reflog remembers."""
        return await self._run(partial(self._sync.reset, session=session, expected=expected, reason=reason))

    async def restore(self, session: str, number: int | None = None, *, reason: str | None = None) -> Session:
        """Move the head back to where it stood `number` moves ago: by default 1, of a session that was deleted or
        archived 0. Such a session becomes active again."""
        return await self._run(partial(self._sync.restore, session=session, number=number, reason=reason))

    async def at(self, session: str, when: int | str) -> str | None:
        """The turn a session stood at, at a time (Unix ms, or words such as 'yesterday')."""
        return await self._run(partial(self._sync.at, session=session, when=when))


class AsyncLabels(crossing.Mirror["Labels"]):
    """`ledger.labels`: renames, archives and deletes sessions; nothing that they contain goes."""

    _sync: Labels

    async def rename(self, session: str, label: str) -> Session:
        return await self._run(partial(self._sync.rename, session=session, label=label))

    async def add_alias(self, alias: str, session: str, *, reason: str = "manual") -> Session:
        """Another name for a session. Lookups go by label, then alias, and never chain."""
        return await self._run(partial(self._sync.add_alias, alias=alias, session=session, reason=reason))

    async def aliases(self, session: str | None = None) -> list[SessionAlias]:
        """The other names of a session, or of all sessions, in the order of the names."""
        return await self._run(partial(self._sync.aliases, session=session))

    async def promote(self, session: str, key: str) -> Session:
        """From now on the key of a person or an agent leads to this session, as an alias with the reason
        `identity_promotion`. Refused where it leads to another one; repeated, it changes nothing."""
        return await self._run(partial(self._sync.promote, session=session, key=key))

    async def archive(self, session: str, *, reason: str | None = None) -> Session:
        return await self._run(partial(self._sync.archive, session=session, reason=reason))

    async def archivable(
        self,
        names: str | Sequence[str] = (),
        *,
        tree: bool = False,
        older_than: int | str | None = None,
        back: bool = False,
    ) -> list[Session]:
        """Sessions that archiving together would mean: those named, with `tree` all in the same trees, with
        `older_than` (Unix ms, or words such as '90 days ago') only those that have not changed since; `back`: those to
        be made active again."""
        return await self._run(partial(self._sync.archivable, names=names, tree=tree, older_than=older_than, back=back))

    async def delete(self, session: str, *, reason: str | None = None) -> Session:
        """The pointer goes, its turns stay; `ledger.heads.restore` by its id brings it back."""
        return await self._run(partial(self._sync.delete, session=session, reason=reason))

    async def unarchive(self, session: str, *, reason: str | None = None) -> Session:
        return await self._run(partial(self._sync.unarchive, session=session, reason=reason))


class AsyncTree(crossing.Mirror["Tree"]):
    """`ledger.tree`: how turns hang together."""

    _sync: Tree

    async def children(self, turn: str) -> list[Turn]:
        return await self._run(partial(self._sync.children, turn=turn))

    async def heads(self) -> list[Turn]:
        """Turns without a completed child: the tips of all trees, labelled or not."""
        return await self._run(self._sync.heads)

    async def common_ancestor(self, left: str, right: str) -> str | None:
        return await self._run(partial(self._sync.common_ancestor, left=left, right=right))

    async def turns(self, turn: str) -> list[Turn]:
        """Every turn of the tree that this one belongs to, parents before children."""
        return await self._run(partial(self._sync.turns, turn=turn))

    async def sessions_containing(self, turn: str) -> list[Session]:
        """Every session whose thread has ever contained this turn."""
        return await self._run(partial(self._sync.sessions_containing, turn=turn))

    async def moves_to(self, turn: str) -> list[SessionMove]:
        """Every movement of a session's head to this very turn, in order."""
        return await self._run(partial(self._sync.moves_to, turn=turn))


class AsyncCompactions(crossing.Mirror["Compactions"]):
    """`ledger.compactions`: summaries that stand for turns, and which one a session goes by."""

    _sync: Compactions

    async def record(
        self,
        *,
        summary: str,
        session: str | None = None,
        parent: str | UnsetType | None = UNSET,
        through: str | None = None,
        first_kept: str | None = None,
        model: str = "unknown",
        provider: str | None = None,
        compaction_type: str = "summary",
        trigger: str | None = None,
        metadata: Any = None,
        tokens_before: int | None = None,
        tokens_after: int | None = None,
        summary_tokens: int | None = None,
        summarization_input_tokens: int | None = None,
        summarization_output_tokens: int | None = None,
        duration_ms: int | None = None,
        usage: UsageInput = None,
        wait: float = WAIT,
    ) -> RecordedTurn:
        """A compaction turn: `summary` stands for all turns through `through`; turns from `first_kept` on are kept.
        `usage` is what a provider reported for writing the summary: reports of usage count it."""
        asked = partial(
            self._sync.record,
            summary=summary,
            session=session,
            parent=parent,
            through=through,
            first_kept=first_kept,
            model=model,
            provider=provider,
            compaction_type=compaction_type,
            trigger=trigger,
            metadata=metadata,
            tokens_before=tokens_before,
            tokens_after=tokens_after,
            summary_tokens=summary_tokens,
            summarization_input_tokens=summarization_input_tokens,
            summarization_output_tokens=summarization_output_tokens,
            duration_ms=duration_ms,
            usage=usage,
            wait=0,
        )
        return await crossing.patiently(self._pool, wait, asked)

    async def choose(self, session: str, compaction: str | None) -> None:
        """Let a session go by another compaction of its thread; None: by none, the whole history is seen."""
        await self._run(partial(self._sync.choose, session=session, compaction=compaction))

    async def get(self, turn: str) -> Compaction:
        return await self._run(partial(self._sync.get, turn=turn))

    async def of_thread(self, name: str) -> list[Compaction]:
        """The compactions of a session's thread or a turn's, the oldest first: those on it, and those beside it, which
        a session can choose."""
        return await self._run(partial(self._sync.of_thread, name=name))


class AsyncMerges(crossing.Mirror["Merges"]):
    """`ledger.merges`: brings back what a branch found, makes two sessions one, joins what replicas moved apart."""

    _sync: Merges

    async def cherry_pick(
        self,
        turns: str | Sequence[str],
        *,
        onto: str,
        expected: str | UnsetType | None = UNSET,
        key: str | None = None,
        wait: float = WAIT,
    ) -> list[Turn]:
        """New turns on a session that say what these turns said, by the same contents, each naming its source. All of
        them, or none. A retry with the same `key` gives the turns that were made then."""
        asked = partial(self._sync.cherry_pick, turns=turns, onto=onto, expected=expected, key=key, wait=0)
        return await crossing.patiently(self._pool, wait, asked)

    async def summarize(
        self,
        branch: str,
        *,
        into: str,
        text: str,
        expected: str | UnsetType | None = UNSET,
        key: str | None = None,
        wait: float = WAIT,
    ) -> Turn:
        """A new turn on a session with a text about a branch, which it names by the branch's last turn."""
        asked = partial(self._sync.summarize, branch=branch, into=into, text=text, expected=expected, key=key, wait=0)
        return await crossing.patiently(self._pool, wait, asked)

    async def unify(
        self, session: str, *, into: str, summary: str | None = None, key: str | None = None
    ) -> Unification:
        """One session out of two that belong together, in one transaction. `session` is archived; its label and its
        aliases lead to `into`, where a new turn tells what is to be known of it: `summary`, or without one when it was
        used, what was asked there and what is unresolved. No tree is rewritten. Refused while a turn of either is being
        recorded."""
        return await self._run(partial(self._sync.unify, session=session, into=into, summary=summary, key=key))

    async def separate(self, session: str) -> Session:
        """Undo `unify`: the archived session, by its id or by the label that it has now, is active again and has its
        label and aliases back. The summary stays where it is, and so do turns that came since."""
        return await self._run(partial(self._sync.separate, session=session))

    async def provenance(self, turn: str) -> list[Provenance]:
        """Which turns a turn was made from, by picking or summing up; then what was made from it."""
        return await self._run(partial(self._sync.provenance, turn=turn))

    async def branches(self, session: str | None = None) -> list[Branch]:
        """Where other replicas' branches stand, of one session or of all: those that moved it elsewhere."""
        return await self._run(partial(self._sync.branches, session=session))

    async def settle(
        self,
        session: str,
        *,
        to: str | None = None,
        ours: bool = False,
        theirs: bool = False,
        fork: str | None = None,
        reason: str | None = None,
    ) -> Session:
        """Join the branches of a session: at a turn, where this ledger stands, where the other one stands, or as two
        sessions, of which `fork` labels the other's. Every replica follows once it has synced."""
        return await self._run(
            partial(self._sync.settle, session=session, to=to, ours=ours, theirs=theirs, fork=fork, reason=reason)
        )


class AsyncImports(crossing.Mirror["Imports"]):
    """`ledger.imports`: the way in for other tools' history, and what was kept of its sources."""

    _sync: Imports

    async def writer(
        self, origin: str, mapping: int, *, remap: bool = False, words: PreparedWords | None = None
    ) -> AsyncImportWriter:
        """The way in for one origin's history; `mapping` numbers how its records become turns. `words` takes what
        search will ask for, as far as turns come with it."""
        return AsyncImportWriter(
            await self._run(partial(self._sync.writer, origin=origin, mapping=mapping, remap=remap, words=words)),
            self._pool,
        )

    async def index(self, words: PreparedWords | None = None, *, beyond: int | None = None) -> None:
        """Let search catch up where more events than `beyond` came since it last did, many where it is not given, or
        where no more `words` for it have room."""
        await self._run(partial(self._sync.index, words=words, beyond=beyond))

    async def kept_sources(self, session_or_file: str) -> list[SourceRange]:
        """What was kept verbatim of the sources of a session, or of one source file, in order."""
        return await self._run(partial(self._sync.kept_sources, session_or_file=session_or_file))

    async def provisional(self, session: str | None = None) -> list[ProvisionalTurn]:
        """Turns that other tools are still writing, as they were last read: of a session, or of all, the latest first.
        They are no facts: they have no id, and go once they are turns or their source is gone."""
        return await self._run(partial(self._sync.provisional, session=session))

    async def share_with(self, other: AsyncLedger) -> None:
        """From now on imports here get the same ids as there. Whoever holds both ledgers can compare what they hold."""
        await self._run(partial(self._sync.share_with, other=crossing.behind(other)))


class AsyncUsageReports(crossing.Mirror["UsageReports"]):
    """`ledger.usage`: tokens and cost."""

    _sync: UsageReports

    async def lag(self) -> int:
        """How many events the totals that reports read have not counted. Reports count these by themselves; one that
        may write lets the totals catch up first."""
        return await self._run(self._sync.lag)

    async def report(self, by: str = "day", **only: Unpack[UsageChoice]) -> UsageReport:
        """What was spent, by day, week, month, project, session, model or origin; every response counts once."""
        return await self._run(partial(self._sync.report, by=by, **only))

    async def work(
        self,
        *,
        since: int | str | None = None,
        until: int | str | None = None,
        prices: Prices = None,
        about: bool = True,
    ) -> WorkReport:
        """What was worked on in a period: projects, sessions, agents, files and cost, the latest first. Without `about`
        nothing is told of what each session is called, was asked to do and spent: that takes the longest."""
        return await self._run(partial(self._sync.work, since=since, until=until, prices=prices, about=about))

    async def branch(self, session: str, *, prices: Prices = None) -> BranchUsage:
        return await self._run(partial(self._sync.branch, session=session, prices=prices))

    async def tree(self, turn: str, *, prices: Prices = None) -> UsageTree:
        """What a turn has cost, with its workers' turns and those of their workers."""
        return await self._run(partial(self._sync.tree, turn=turn, prices=prices))

    async def abandoned(self, *, prices: Prices = None) -> AbandonedUsage:
        return await self._run(partial(self._sync.abandoned, prices=prices))


class AsyncAuditReports(crossing.Mirror["AuditReports"]):
    """`ledger.audit`: what agents did, and whether it was allowed."""

    _sync: AuditReports

    def findings(
        self, *names: str, tally: AuditTally | None = None, **only: Unpack[AuditChoice]
    ) -> AsyncIterator[AuditFinding]:
        """Tools used without being allowed, as they are met; then, by session, turn or persona, what was not known and
        what was granted or there and never used. `names` are sessions (the turns they made) or turns; none: all.
        `tally` is told what was looked at."""
        return self._each(partial(self._sync.findings, *names, tally=tally, **only))

    async def suggest(self, *names: str, **only: Unpack[AuditChoice]) -> list[SuggestedGrant]:
        """The smallest grant that the calls of each agent would have needed."""
        return await self._run(partial(self._sync.suggest, *names, **only))

    def actor_history(
        self, actor: str | None = None, *, since: int | str | None = None, until: int | str | None = None
    ) -> AsyncIterator[ActorEvent]:
        """Every event by an actor, an agent's name or id, in order of arrival; None: by anybody."""
        return self._each(partial(self._sync.actor_history, actor=actor, since=since, until=until))


class AsyncSecrets(crossing.Mirror["Secrets"]):
    """`ledger.secrets`: credentials in contents and names, and which findings are none."""

    _sync: Secrets

    async def find(
        self,
        *,
        session: str | None = None,
        origin: str | None = None,
        project: str | None = None,
        since: int | str | None = None,
        fingerprints: Sequence[str] = (),
        ignored: bool = False,
        anew: bool = False,
        again: bool = False,
        scanner: SecretScanner | None = None,
        progress: Any = None,
    ) -> SecretReport:
        """Credentials in contents and names, none of them shown. Looks at contents that came since the last time, then
        tells of all that was ever found; `anew` looks at everything again. With `again` the same words are looked for
        where no rule knows them, which reads every content. Erase them by their contents: `erase(secret.contents)`.

        `scanner` comes from `load_scanner`. Its rules are compiled once something is to be looked at that they may find
        something in: some seconds, unless it is given a folder where an earlier process kept them."""
        return await self._run(
            partial(
                self._sync.find,
                session=session,
                origin=origin,
                project=project,
                since=since,
                fingerprints=fingerprints,
                ignored=ignored,
                anew=anew,
                again=again,
                scanner=scanner,
                progress=crossing.in_event_loop(progress),
            )
        )

    async def matches(self, report: SecretReport, *, scanner: SecretScanner | None = None) -> list[SecretMatch]:
        """The credentials of a report themselves, one match in each content, with the words around it."""
        return await self._run(partial(self._sync.matches, report=report, scanner=scanner))

    async def remainders(self, report: SecretReport, *, scanner: SecretScanner | None = None) -> dict[str, str]:
        """By reference what is left of each content of a report without its credentials, for `erasure.erase`. A content
        that they cannot be taken out of, such as a copy of an imported source, is not among them."""
        return await self._run(partial(self._sync.remainders, report=report, scanner=scanner))

    async def ignore(self, fingerprint: str, *, undo: bool = False) -> str:
        """Tell of this finding no more, or with `undo` again; returns the whole fingerprint. Local to this ledger."""
        return await self._run(partial(self._sync.ignore, fingerprint=fingerprint, undo=undo))


class AsyncErasures(crossing.Mirror["Erasures"]):
    """`ledger.erasure`: takes contents away for good."""

    _sync: Erasures

    async def plan(
        self, what: str | Sequence[str], *, tree: bool = False, everywhere: bool = False, progress: Any = None
    ) -> ErasurePlan:
        """What `erase` would take, what it would leave and why, and which copies hold it.

        A content is named by its reference, a session by its label or id, a turn by any name of it. `tree` means all
        turns of the tree and the sessions in it; `everywhere` also takes contents that other turns use too."""
        return await self._run(
            partial(
                self._sync.plan, what=what, tree=tree, everywhere=everywhere, progress=crossing.in_event_loop(progress)
            )
        )

    async def erase(
        self,
        what: str | Sequence[str] | ErasurePlan,
        *,
        reason: str,
        tree: bool = False,
        everywhere: bool = False,
        remainders: Mapping[str, str] | None = None,
        progress: Any = None,
    ) -> Erasure:
        """Erase contents for good. A plan is carried out as it stands, or refused if it no longer holds. `remainders`
        are texts, by the reference of the content that each is shown in place of."""
        return await self._run(
            partial(
                self._sync.erase,
                what=what,
                reason=reason,
                tree=tree,
                everywhere=everywhere,
                remainders=remainders,
                progress=crossing.in_event_loop(progress),
            )
        )

    async def finish(self) -> bool:
        """Go on with an erasure that could not be finished, since somebody read what was there before. True when
        nothing is left to be done; opening a ledger for writing tries it, too."""
        return await self._run(self._sync.finish)

    async def done(self) -> list[Tombstone]:
        """Who erased what, when and why; the newest first."""
        return await self._run(self._sync.done)

    async def pending(self) -> list[Tombstone]:
        """Erasures of other ledgers that came with their facts, of contents that are still here."""
        return await self._run(self._sync.pending)


class AsyncUpkeep(crossing.Mirror["Upkeep"]):
    """`ledger.upkeep`: rebuilds, copies, packs and measures a ledger."""

    _sync: Upkeep

    async def rebuild(self, *, progress: Any = None) -> int:
        """Make every view anew from the facts; returns how many rows were wrong."""
        return await self._run(partial(self._sync.rebuild, progress=crossing.in_event_loop(progress)))

    async def catch_up(self, *, progress: Any = None) -> None:
        """Bring every lagging view up to the newest fact."""
        await self._run(partial(self._sync.catch_up, progress=crossing.in_event_loop(progress)))

    async def export_facts(self, target: str | Path | Any, *, progress: Any = None) -> int:
        """Write every fact as a JSON line, to a new file or an open binary one; returns the number of lines."""
        return await self._run(
            partial(self._sync.export_facts, target=target, progress=crossing.in_event_loop(progress))
        )

    async def import_facts(
        self, source: str | Path | Any, *, excerpts: bool = False, progress: Any = None
    ) -> facts_file.ImportedFacts:
        """Bring facts in from a file of JSON lines; known ones are passed over. With `excerpts`, events of another
        ledger's own stream may come without those before them, as bundles bring them."""
        return await self._run(
            partial(
                self._sync.import_facts, source=source, excerpts=excerpts, progress=crossing.in_event_loop(progress)
            )
        )

    async def backup(
        self, target: str | Path, *, progress: Any = None, beside: Callable[[], object] | None = None
    ) -> None:
        """Copy a consistent state to a new file while readers and writers go on; opened for writing, the copy goes by
        a replica id of its own. `beside` is called once the copy is written and before it has its name, so that what
        belongs beside it is there first; where it fails, there is no copy."""
        await self._run(
            partial(self._sync.backup, target=target, progress=crossing.in_event_loop(progress), beside=beside)
        )

    async def note_export(self, target: str | Path, *, turn: str | None = None) -> None:
        """Remember that a file holds what was said here, so that an erasure names it; not if open for reading. `turn`:
        the one whose thread it shows, recorded as its Materialization where the ledger is trusted and has room."""
        await self._run(partial(self._sync.note_export, target=target, turn=turn))

    async def disk_bytes(self) -> int:
        """How much room the ledger takes: its file and the log beside it, or its tables in a server."""
        return await self._run(self._sync.disk_bytes)

    async def stats(self) -> dict[str, Any]:
        return await self._run(self._sync.stats)

    async def pack(
        self,
        what: str | Sequence[str] = (),
        *,
        older_than: int | str | None = None,
        dry_run: bool = False,
        progress: Any = None,
    ) -> PackResult:
        """Compress the contents of whole trees: of those that these names lead to, or of all; with `older_than` (Unix
        ms, or words such as '90 days ago') only where nothing happened since. Everything reads as before."""
        return await self._run(
            partial(
                self._sync.pack,
                what=what,
                older_than=older_than,
                dry_run=dry_run,
                progress=crossing.in_event_loop(progress),
            )
        )

    async def unpack(self, what: str | Sequence[str] = (), *, progress: Any = None) -> PackResult:
        """Put contents back where a plain SQL shell reads them: of these trees, or all."""
        return await self._run(partial(self._sync.unpack, what=what, progress=crossing.in_event_loop(progress)))

    async def search_lag(self) -> int:
        """How many events search has yet to index; until then it looks through them each time."""
        return await self._run(self._sync.search_lag)


class AsyncInbox(crossing.Mirror["Inbox"]):
    """`ledger.inbox`: messages that wait for a turn, and what became of them."""

    _sync: Inbox

    async def admit(
        self,
        message: MessagesInput,
        *,
        session: str | None = None,
        turn: str | None = None,
        agent: str | None = None,
        mode: str = "followup",
        priority: int = 0,
        overrides: Any = None,
        route: Any = None,
        source_event_id: str | None = None,
        key: str | None = None,
        limits: QueueLimits = DEFAULT_LIMITS,
        persona: str | None = None,
    ) -> Admission:
        """Write a message to an inbox, durably: that of a session, made if there is none; of the session whose head a
        turn is, else of a new one that begins there; or of an agent, where it works or in its main session.

        `overrides` say how the model is asked for this message. With `key`, a retry key, it is admitted once.
        `persona` is an earlier spelling of `agent`."""
        return await self._run(
            partial(
                self._sync.admit,
                message=message,
                session=session,
                turn=turn,
                agent=agent,
                mode=mode,
                priority=priority,
                overrides=overrides,
                route=route,
                source_event_id=source_event_id,
                key=key,
                limits=limits,
                persona=persona,
            )
        )

    async def get(self, message: str) -> InboxMessage:
        return await self._run(partial(self._sync.get, message=message))

    async def list(
        self, *, session: str | None = None, states: Sequence[str] = WAITING, limit: int = 100, after: int = 0
    ) -> list[InboxMessage]:
        """Messages in these states, the oldest first; `after` is the arrival number of the last one of a page."""
        return await self._run(partial(self._sync.list, session=session, states=states, limit=limit, after=after))

    async def cancel(self, message: str, *, reason: str | None = None) -> None:
        """Take a message out of its inbox that no turn has taken yet."""
        await self._run(partial(self._sync.cancel, message=message, reason=reason))

    async def send_again(
        self, message: str, *, key: str | None = None, limits: QueueLimits = DEFAULT_LIMITS
    ) -> Admission:
        """Send a dead message once more, to the same session."""
        return await self._run(partial(self._sync.send_again, message=message, key=key, limits=limits))

    async def interrupt(self, session: str, *, reason: str = "canceled") -> str:
        """Ask for the turn that a broker runs in a session, in any process, to be cut short; the turn's id. It ends
        with what it has, as soon as its broker hears of it. Raises NotApplicable where none runs there."""
        return await self._run(partial(self._sync.interrupt, session=session, reason=reason))

    async def retry(
        self, turn: str, *, afresh: bool = False, key: str | None = None, limits: QueueLimits = DEFAULT_LIMITS
    ) -> Admission:
        """Have a failed turn tried again: by a child of it, which sees its results, or `afresh` by one beside it.
        What it was asked is admitted once more: to its session, or to a fork where something came after it."""
        return await self._run(partial(self._sync.retry, turn=turn, afresh=afresh, key=key, limits=limits))


class AsyncApprovals(crossing.Mirror["Approvals"]):
    """`ledger.approvals`: tool calls that wait for a person, and what people answered."""

    _sync: Approvals

    async def get(self, approval: str) -> Approval:
        """A request by its id, or the beginning of it."""
        return await self._run(partial(self._sync.get, approval=approval))

    async def decisions(self, turn: str) -> list[CallDecision]:
        """What was decided about the tool calls of a turn, in order."""
        return await self._run(partial(self._sync.decisions, turn=turn))

    async def list(
        self, *, session: str | None = None, states: Sequence[str] = OPEN, limit: int = 100, after: int = 0
    ) -> list[Approval]:
        """Requests in these states, the oldest first; `after` is the arrival number of the last one of a page."""
        return await self._run(partial(self._sync.list, session=session, states=states, limit=limit, after=after))

    async def grant(
        self, approval: str, *, plan_digest: str | None = None, scope: str = "once", reason: str | None = None
    ) -> Approval:
        """Allow the call, once. `plan_digest` is the hash that was shown: another one is refused. With the scope
        `session` the same use of the tool needs no answer for the rest of the session. Only people answer."""
        return await self._run(
            partial(self._sync.grant, approval=approval, plan_digest=plan_digest, scope=scope, reason=reason)
        )

    async def deny(self, approval: str, *, abort: bool = False, reason: str | None = None) -> Approval:
        """Refuse the call. The model is told so and goes on; with `abort` its turn ends. Only people answer."""
        return await self._run(partial(self._sync.deny, approval=approval, abort=abort, reason=reason))


class AsyncPolicies(crossing.Mirror["Policies"]):
    """`ledger.policies`: the programs that decide about tool calls."""

    _sync: Policies

    async def list(self, *, states: Sequence[str] = ()) -> list[Policy]:
        """Policies in these states, or all; the oldest first."""
        return await self._run(partial(self._sync.list, states=states))

    async def get(self, policy: str) -> Policy:
        """A policy by its id or the end of it, else the newest of its name."""
        return await self._run(partial(self._sync.get, policy=policy))

    async def active(self, agent: str | None = None) -> Policy | None:
        """The policy in force for an agent, by its id; without an agent the one for all of them."""
        return await self._run(partial(self._sync.active, agent=agent))

    async def propose(
        self,
        name: str,
        source: str,
        *,
        agent: str | None = None,
        docstring: str | None = None,
        notes: str | None = None,
        tests: PolicyTests | None = None,
    ) -> Policy:
        """Propose a policy, for one agent or for all; `tests` says how its own tests ended."""
        return await self._run(
            partial(
                self._sync.propose, name=name, source=source, agent=agent, docstring=docstring, notes=notes, tests=tests
            )
        )

    async def activate(self, policy: str, *, digest: str, tests: PolicyTests, notes: str | None = None) -> Policy:
        """Put a policy in force in place of the one before. `digest` is that of the source that was read; `tests` must
        have passed. Only people do that."""
        return await self._run(partial(self._sync.activate, policy=policy, digest=digest, tests=tests, notes=notes))

    async def reject(self, policy: str, *, reason: str | None = None) -> Policy:
        """Refuse a proposed policy. Only people do that."""
        return await self._run(partial(self._sync.reject, policy=policy, reason=reason))

    async def roll_back(self, policy: str, *, digest: str, reason: str | None = None) -> Policy:
        """Put a policy in force again that was replaced. Only people do that."""
        return await self._run(partial(self._sync.roll_back, policy=policy, digest=digest, reason=reason))


class AsyncResources(crossing.Mirror["Resources"]):
    """`ledger.resources`: directories, files, volumes, containers, images and uris beside the conversations."""

    _sync: Resources

    async def get(self, resource: str) -> Resource:
        """By its id or the end of it, its name, or its place."""
        return await self._run(partial(self._sync.get, resource=resource))

    async def snapshots(self, resource: str, *, limit: int = 100) -> list[Snapshot]:
        """Of one resource, the newest first."""
        return await self._run(partial(self._sync.snapshots, resource=resource, limit=limit))

    async def snapshot(self, snapshot: str) -> Snapshot:
        return await self._run(partial(self._sync.snapshot, snapshot=snapshot))

    async def snapshots_of_turn(self, turn: str) -> list[Snapshot]:
        """What resources were like after a turn: of each the last snapshot, taken in it or in the nearest turn
        before it that has one of that resource."""
        return await self._run(partial(self._sync.snapshots_of_turn, turn=turn))

    async def snapshots_before_turn(self, turn: str) -> list[Snapshot]:
        """What resources were like before a turn changed them."""
        return await self._run(partial(self._sync.snapshots_before_turn, turn=turn))

    async def migrate(self, resource: str, *, session: str, former: str | None = None) -> Resource:
        """Let another session own it; NotApplicable where it cannot change hands, or where `former` is named and does
        not own it by now."""
        return await self._run(partial(self._sync.migrate, resource=resource, session=session, former=former))

    async def discard(self, resource: str) -> Resource:
        """Let nobody own or use it any more. What it is stays where it is."""
        return await self._run(partial(self._sync.discard, resource=resource))

    async def attach(
        self, resource: str, *, mode: str = "rw", session: str | None = None, run: str | None = None
    ) -> Resource:
        """Attach it to a session, a run, or whoever acts: to write to its owner alone, read-only to others too where it
        can be shared."""
        return await self._run(partial(self._sync.attach, resource=resource, mode=mode, session=session, run=run))

    async def detach(self, resource: str, *, session: str | None = None, run: str | None = None) -> Resource:
        return await self._run(partial(self._sync.detach, resource=resource, session=session, run=run))

    async def list(
        self, *, session: str | None = None, kind: str | None = None, include_discarded: bool = False
    ) -> list[Resource]:
        """Those that somebody owns, the oldest first; with a session, its own."""
        return await self._run(
            partial(self._sync.list, session=session, kind=kind, include_discarded=include_discarded)
        )


class AsyncRooms(crossing.Mirror["Rooms"]):
    """`ledger.rooms`: conversations of people and agents."""

    _sync: Rooms

    async def get(self, room: str) -> Room:
        """A conversation by its id, the end of it, or its title."""
        return await self._run(partial(self._sync.get, room=room))

    async def participants(self, room: str, *, removed: bool = False) -> list[Participant]:
        """Who takes part, and with `removed` who did; an agent is `thinking` while it has something to answer."""
        return await self._run(partial(self._sync.participants, room=room, removed=removed))

    async def messages(
        self, room: str, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[RoomMessage]:
        """What was said, the oldest first: the newest before a position, or with `after` the first behind one."""
        return await self._run(partial(self._sync.messages, room=room, before=before, after=after, limit=limit))

    async def invitations(self, room: str | None = None) -> list[Invitation]:
        """People who were mentioned and take no part: in one conversation, or wherever the reader sees it."""
        return await self._run(partial(self._sync.invitations, room=room))

    async def pending(self, room: str, message: str | None = None) -> list[ReachedAgent]:
        """What agents have still to answer: all of it, or what goes back to one message of a person, by its id."""
        return await self._run(partial(self._sync.pending, room=room, message=message))

    async def list(self, *, status: str | None = "active", limit: int = 100) -> list[Room]:
        """Those that whoever reads takes or took part in; where somebody spoke last comes first."""
        return await self._run(partial(self._sync.list, status=status, limit=limit))

    async def search(
        self, words: str, *, room: str | None = None, limit: int = 20, after: str | None = None
    ) -> Page[RoomHit]:
        """Messages that hold all these words, as `ledger.search` reads them: of the newest room first, and there the
        newest message first; of one room where it is named. A page may have fewer than `limit` hits and a further page
        all the same, since a bounded number of messages is looked through for each."""
        return await self._run(partial(self._sync.search, words=words, room=room, limit=limit, after=after))

    async def posted_as(self, hits: Sequence[Hit]) -> tuple[str | None, ...]:
        """For each hit of `ledger.search` the id of the message of a room whose text an agent was sent there, or
        answered with; None for any other."""
        return await self._run(partial(self._sync.posted_as, hits=hits))

    async def agent(self, name: str) -> AgentProfile:
        """What an agent tells of itself, by its name or id. A private one is there for those it works for."""
        return await self._run(partial(self._sync.agent, name=name))

    async def person(self, name: str) -> PersonProfile:
        """What a person tells of themselves, by their name or id."""
        return await self._run(partial(self._sync.person, name=name))

    async def create(
        self,
        title: str | None = None,
        *,
        agents: Sequence[str] = (),
        people: Sequence[str] = (),
        history: str = "joined",
        key: str | None = None,
    ) -> Room:
        """Make a conversation with these agents and people. `history` says what those read who join it later: `joined`,
        what is said from then on, or `all`. Only people do that."""
        return await self._run(
            partial(self._sync.create, title=title, agents=agents, people=people, history=history, key=key)
        )

    async def post(
        self,
        room: str,
        message: MessagesInput,
        *,
        mode: str = "followup",
        meta: Any = None,
        key: str | None = None,
        limits: RoomLimits = ROOM_LIMITS,
    ) -> PostedMessage:
        """Say something. Agents that it mentions are to answer; one that mentions nobody goes to the triage agent.
        `mode` is the queue mode in which they take it. With `key`, a retry key, it is posted once."""
        return await self._run(
            partial(self._sync.post, room=room, message=message, mode=mode, meta=meta, key=key, limits=limits)
        )

    async def add(self, room: str, agent: str) -> Room:
        """Let an agent in that works for whoever acts. Only people do that."""
        return await self._run(partial(self._sync.add, room=room, agent=agent))

    async def invite(self, room: str, person: str) -> Room:
        """Let a person in; that confirms an invitation where there is one. Only participants do that."""
        return await self._run(partial(self._sync.invite, room=room, person=person))

    async def decline(self, room: str, person: str) -> None:
        """End an invitation without anybody joining."""
        await self._run(partial(self._sync.decline, room=room, person=person))

    async def remove(self, room: str, who: str) -> None:
        """Take an agent or a person out. People are removed by whoever made the conversation; system agents stay."""
        await self._run(partial(self._sync.remove, room=room, who=who))

    async def leave(self, room: str) -> None:
        """Whoever acts takes part no longer."""
        await self._run(partial(self._sync.leave, room=room))

    async def retitle(self, room: str, title: str) -> Room:
        return await self._run(partial(self._sync.retitle, room=room, title=title))

    async def archive(self, room: str) -> Room:
        """Take no more messages, and leave the lists. Whoever made it does that."""
        return await self._run(partial(self._sync.archive, room=room))

    async def restore(self, room: str) -> Room:
        """Take messages again."""
        return await self._run(partial(self._sync.restore, room=room))

    async def fork(self, room: str, at: int | None = None, *, title: str | None = None) -> Room:
        """A new conversation that goes on from a message, by its position, else from the newest one. The agents that
        were there come along, with forks of their sessions; of the people only whoever forks."""
        return await self._run(partial(self._sync.fork, room=room, at=at, title=title))

    async def mark_read(self, room: str, position: int | None = None) -> int:
        """Remember up to which message whoever acts has read; without a position, all of it. Returns the position."""
        return await self._run(partial(self._sync.mark_read, room=room, position=position))
