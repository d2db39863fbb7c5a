"""The programs of a ledger, and what is similar in it, awaited.

`make docs` writes this module from the synchronous API, and a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from weft.aio import crossing
from weft.programs.programs import Programs
from weft.programs.similarity import FEW, Embedded, Embedder, ModelCount, Similar, Similarity

if TYPE_CHECKING:
    from weft.aio.ledger import AsyncLedger
    from weft.kernel.authority import Authority
    from weft.ledger.api import Firing, Lease, MissedTimes
    from weft.programs.program_changes import PlannedProgram, WantedProgram
    from weft.programs.program_records import (
        CriterionVerdict,
        Difference,
        PendingItem,
        PersonRequest,
        Program,
        ProgramChange,
        RecordedVerdict,
        TaggedNode,
    )
    from weft.programs.tasks import CriterionObservations, RunCommand
    from weft.store.port import Progress


class AsyncPrograms(crossing.Mirror["Programs"]):
    """Programs of one open ledger, changed in the name that the ledger acts in."""

    _sync: Programs

    def __init__(self, ledger: AsyncLedger, hold: Lease | None = None) -> None:
        super().__init__(Programs(ledger._sync, hold=hold), ledger._pool)
        self.ledger = ledger

    async def get(self, name: str, *kinds: str) -> Program:
        """By name, ulid, `@(id)`, or `@(id:version)` for that version of its configuration."""
        return await self._run(partial(self._sync.get, name, *kinds))

    async def pending(
        self, *names: str, kind: str | None = None, source: str | None = None, decided: bool = False
    ) -> list[PendingItem]:
        """What waits, by arrival; with `decided` what was taken over or refused instead. `kind` is a kind of program,
        `approval` or `erasure`; `source` a replica that wrote it or brought it here."""
        return await self._run(partial(self._sync.pending, *names, kind=kind, source=source, decided=decided))

    async def take_over(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Let these count here: by id or name, or all of a kind or a source. Returns what was taken over."""
        return await self._run(partial(self._sync.take_over, *names, kind=kind, source=source))

    async def refuse(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Do not let these count, and do not list them as waiting any more."""
        return await self._run(partial(self._sync.refuse, *names, kind=kind, source=source))

    async def reconsider(self, *names: str, kind: str | None = None, source: str | None = None) -> list[PendingItem]:
        """Forget what was decided about these: they wait again. An erasure that was carried out stays so."""
        return await self._run(partial(self._sync.reconsider, *names, kind=kind, source=source))

    async def step_trigger(
        self, trigger: str, verb: str, *, reason: str | None = None, key: str | None = None
    ) -> Program:
        """pause or resume. What sets a paused trigger off is passed over."""
        return await self._run(partial(self._sync.step_trigger, trigger=trigger, verb=verb, reason=reason, key=key))

    async def trigger_firings(self, trigger: str, *, limit: int = 20) -> list[Firing]:
        """For what a trigger fired here, the newest first, with what became of its messages."""
        return await self._run(partial(self._sync.trigger_firings, trigger=trigger, limit=limit))

    async def missed_times(self, trigger: str, *, limit: int = 20) -> list[MissedTimes]:
        """Times of its schedule at which a trigger did not fire here, the newest first."""
        return await self._run(partial(self._sync.missed_times, trigger=trigger, limit=limit))

    async def validate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """A draft that fits its schema; else SchemaMismatch, and it stays a draft."""
        return await self._run(partial(self._sync.validate, name=name, reason=reason, key=key))

    async def activate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return await self._run(partial(self._sync.activate, name=name, reason=reason, key=key))

    async def archive(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return await self._run(partial(self._sync.archive, name=name, reason=reason, key=key))

    async def query(
        self,
        text: str | None = None,
        *,
        info_type: str | None = None,
        tagged: Sequence[str] = (),
        path: str | None = None,
        equals: Any | UnsetType = UNSET,
        archived: bool = False,
    ) -> list[Program]:
        """Information by its words, type, tags and what stands at a path of its content; all of them must hold."""
        return await self._run(
            partial(
                self._sync.query,
                text=text,
                info_type=info_type,
                tagged=tagged,
                path=path,
                equals=equals,
                archived=archived,
            )
        )

    async def set_presence(self, human: str, presence: str, *, key: str | None = None) -> Program:
        return await self._run(partial(self._sync.set_presence, human=human, presence=presence, key=key))

    async def notify(
        self,
        human: str,
        text: str,
        *,
        asks: bool = False,
        program: str | None = None,
        data: Any = None,
        key: str | None = None,
    ) -> PersonRequest:
        """What a person is to be told, or with `asks` to decide. It is kept; reaching them is somebody else's work."""
        return await self._run(
            partial(self._sync.notify, human=human, text=text, asks=asks, program=program, data=data, key=key)
        )

    async def approve(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        """Yes, by the person who was asked and who has the permission to approve."""
        return await self._run(partial(self._sync.approve, request=request, reason=reason, key=key))

    async def reject(self, request: str, *, reason: str | None = None, key: str | None = None) -> PersonRequest:
        return await self._run(partial(self._sync.reject, request=request, reason=reason, key=key))

    async def request(self, request: str) -> PersonRequest:
        return await self._run(partial(self._sync.request, request=request))

    async def requests(self, human: str | None = None, *, status: str | None = None) -> list[PersonRequest]:
        """What people were told and asked, the oldest first."""
        return await self._run(partial(self._sync.requests, human=human, status=status))

    async def add_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        """Tags on anything that has an id; all that it has then."""
        return await self._run(partial(self._sync.add_tags, node, *given, key=key))

    async def remove_tags(self, node: str, *given: str, key: str | None = None) -> list[str]:
        return await self._run(partial(self._sync.remove_tags, node, *given, key=key))

    async def tags(self, node: str) -> list[str]:
        return await self._run(partial(self._sync.tags, node=node))

    async def tagged(self, *given: str) -> list[TaggedNode]:
        """Everything that has all of these tags."""
        return await self._run(partial(self._sync.tagged, *given))

    async def assign(self, agent: str, task: str, *, session: str | None = None, key: str | None = None) -> Program:
        """An idle agent gets a task, and a session for it: its own of this label, made if there is none, else a new
        one. Where a broker runs, it begins with the work. Returns the agent."""
        return await self._run(partial(self._sync.assign, agent=agent, task=task, session=session, key=key))

    async def give_up(self, agent: str, message: str, *, code: str) -> Program:
        """The agent's task fails, and the agent stands in an error that says why. Returns the agent."""
        return await self._run(partial(self._sync.give_up, agent=agent, message=message, code=code))

    async def stop_work(self, agent: str, *, reason: str, key: str | None = None) -> Program:
        """The agent's task fails where it is not over, and the agent is idle, whoever runs it. Messages of the work
        that wait are taken back, and its turn is cut short. Returns the agent."""
        return await self._run(partial(self._sync.stop_work, agent=agent, reason=reason, key=key))

    async def assign_task(self, task: str, assignee: str | None, *, key: str | None = None) -> Program:
        """A task becomes an agent's or a person's, without anybody beginning it. Returns the task."""
        return await self._run(partial(self._sync.assign_task, task=task, assignee=assignee, key=key))

    async def share_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for one more person or agent, by its creator's word. Returns the agent."""
        return await self._run(partial(self._sync.share_agent, agent=agent, principal=principal, key=key))

    async def unshare_agent(self, agent: str, principal: str, *, key: str | None = None) -> Program:
        """A private agent works for that person or agent no longer. Returns the agent."""
        return await self._run(partial(self._sync.unshare_agent, agent=agent, principal=principal, key=key))

    async def step_agent(self, agent: str, verb: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """think, execute, wait, pause, resume, complete or reset, as its state allows. Who resets an agent that another
        one runs takes it from them."""
        return await self._run(partial(self._sync.step_agent, agent=agent, verb=verb, reason=reason, key=key))

    async def hold_agent(self, agent: str, *, task: str | None = None) -> Lease:
        """Take the agent's lease, for a task or in general: what is done with `acting_as(…, hold)` is done while it
        lasts, or not at all. Each such step renews it; AgentBusy where somebody else holds it."""
        return await crossing.held(
            self._pool, partial(self._sync.hold_agent, agent=agent, task=task), self._sync.release_agent
        )

    async def renew_agent(self, hold: Lease) -> None:
        """Say that its holder is alive, while something takes its time."""
        await self._run(partial(self._sync.renew_agent, hold=hold))

    async def release_agent(self, hold: Lease) -> None:
        """Let it go, where it is still held."""
        await self._run(partial(self._sync.release_agent, hold=hold))

    async def fail_agent(
        self, agent: str, message: str, *, code: str = "failed", details: Any = None, key: str | None = None
    ) -> Program:
        return await self._run(
            partial(self._sync.fail_agent, agent=agent, message=message, code=code, details=details, key=key)
        )

    async def save_checkpoint(self, agent: str, state: Any, *, key: str | None = None) -> Program:
        """What an agent needs to go on from here."""
        return await self._run(partial(self._sync.save_checkpoint, agent=agent, state=state, key=key))

    async def load_checkpoint(self, agent: str) -> Any:
        """What was saved last; None where nothing was. It tells of a session: it is for the agent itself, and for
        whoever may give it tasks."""
        return await self._run(partial(self._sync.load_checkpoint, agent=agent))

    async def start_task(self, task: str, *, reason: str | None = None, key: str | None = None) -> Program:
        """Work begins; while something it waits for is not done, it is blocked."""
        return await self._run(partial(self._sync.start_task, task=task, reason=reason, key=key))

    async def check_task(self, task: str, seen: CriterionObservations) -> list[CriterionVerdict]:
        """Its success criteria held against what is there. Nothing is recorded."""
        return await self._run(partial(self._sync.check_task, task=task, seen=seen))

    async def complete_task(
        self,
        task: str,
        *,
        answer: str | None = None,
        workspace: str | Path | None = None,
        run: RunCommand | None = None,
        seen: CriterionObservations | None = None,
        agent: str | None = None,
        turn: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Done, if every success criterion holds; else CriteriaUnmet. What was observed is recorded either way. `agent`
        has worked on it, and is idle with the end of the task. `turn`, by its id, gave the answer."""
        return await self._run(
            partial(
                self._sync.complete_task,
                task=task,
                answer=answer,
                workspace=workspace,
                run=run,
                seen=seen,
                agent=agent,
                turn=turn,
                key=key,
            )
        )

    async def fail_task(self, task: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return await self._run(partial(self._sync.fail_task, task=task, reason=reason, key=key))

    async def checks(self, task: str) -> list[RecordedVerdict]:
        """Every verdict on its criteria that was recorded, the oldest first."""
        return await self._run(partial(self._sync.checks, task=task))

    async def step_session(
        self, session: str, verb: str, *, reason: str | None = None, key: str | None = None
    ) -> Program:
        """pause, resume or complete, as its lifecycle allows."""
        return await self._run(partial(self._sync.step_session, session=session, verb=verb, reason=reason, key=key))

    async def create(
        self,
        kind: str,
        name: str,
        config: dict[str, Any],
        *,
        draft: bool = False,
        tagged: Sequence[str] = (),
        key: str | None = None,
    ) -> Program:
        """A new program, in use unless it is to stay a draft. Sent again with the same key it is made once."""
        return await self._run(
            partial(self._sync.create, kind=kind, name=name, config=config, draft=draft, tagged=tagged, key=key)
        )

    async def ensure(self, kind: str, name: str, config: dict[str, Any], *, key: str | None = None) -> Program:
        """A program as it is said here: made where none has the name, configured where it is otherwise. Nothing is
        recorded where it is so already."""
        return await self._run(partial(self._sync.ensure, kind=kind, name=name, config=config, key=key))

    async def create_session(
        self,
        label: str | None = None,
        *,
        model: str | None = None,
        owner: str | None = None,
        config: dict[str, Any] | None = None,
        key: str | None = None,
    ) -> Program:
        """A session of the ledger, with a model of its own; without a label it gets one."""
        return await self._run(
            partial(self._sync.create_session, label=label, model=model, owner=owner, config=config, key=key)
        )

    async def all(self, kind: str | None = None, *, states: Sequence[str] = (), deleted: bool = False) -> list[Program]:
        """Living programs by kind and name, sessions last; with `deleted` also those that are hidden."""
        return await self._run(partial(self._sync.all, kind=kind, states=states, deleted=deleted))

    async def configure(
        self,
        name: str,
        config: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Another configuration, whole; with `expected` only if it is still at this version, else VersionConflict."""
        return await self._run(
            partial(self._sync.configure, name=name, config=config, expected=expected, reason=reason, key=key)
        )

    async def change(
        self,
        name: str,
        changes: dict[str, Any],
        *,
        expected: int | None = None,
        reason: str | None = None,
        key: str | None = None,
    ) -> Program:
        """Some fields of its configuration; None takes one away, objects are changed field by field.
        A provider that moves to another server leaves its keys behind, unless they are given anew."""
        return await self._run(
            partial(self._sync.change, name=name, changes=changes, expected=expected, reason=reason, key=key)
        )

    async def publish(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return await self._run(partial(self._sync.publish, name=name, reason=reason, key=key))

    async def deprecate(self, name: str, *, reason: str | None = None, key: str | None = None) -> Program:
        return await self._run(partial(self._sync.deprecate, name=name, reason=reason, key=key))

    async def delete(
        self, name: str, *, expected: int | None = None, reason: str | None = None, key: str | None = None
    ) -> Program:
        """Hidden and deprecated; its name is free, its history stays. A session is deleted as one."""
        return await self._run(partial(self._sync.delete, name=name, expected=expected, reason=reason, key=key))

    async def revert(
        self, name: str, version: int, *, expected: int | None = None, reason: str | None = None, key: str | None = None
    ) -> Program:
        """The configuration of an earlier version again; the versions between stay in its history."""
        return await self._run(
            partial(self._sync.revert, name=name, version=version, expected=expected, reason=reason, key=key)
        )

    async def history(self, name: str) -> list[ProgramChange]:
        """Everything that happened to it, newest first."""
        return await self._run(partial(self._sync.history, name=name))

    async def diff(self, name: str, before: int | None = None, after: int | None = None) -> list[Difference]:
        """Where two versions of its configuration differ: by default the last two."""
        return await self._run(partial(self._sync.diff, name=name, before=before, after=after))

    def acting_as(self, who: Authority | str, hold: Lease | None = None) -> AsyncPrograms:
        """The same programs, changed in the name of somebody else: an authority, or the name of an agent or a person;
        with a hold of an agent, only while it lasts."""
        return AsyncPrograms(self.ledger.acting_as(who), hold=hold)

    async def apply(
        self, wanted: Sequence[WantedProgram], *, prune: bool = False, dry_run: bool = False, key: str | None = None
    ) -> list[PlannedProgram]:
        """Many programs as files describe them (`weft.programs.program_changes`), in one append; what was done, or
        would be."""
        return await self._run(partial(self._sync.apply, wanted=wanted, prune=prune, dry_run=dry_run, key=key))


class AsyncSimilarity(crossing.Mirror["Similarity"]):
    """Similar nodes of one ledger, by one model. Thread-safe."""

    _sync: Similarity

    def __init__(self, ledger: AsyncLedger, embedder: Embedder, *, few: int = FEW) -> None:
        super().__init__(Similarity(ledger._sync, embedder=embedder, few=few), ledger._pool)
        self.ledger = ledger

    async def get(self, name: str, *kinds: str) -> Program:
        """By name, ulid, `@(id)`, or `@(id:version)` for that version of its configuration."""
        return await self._run(partial(self._sync.get, name, *kinds))

    async def embed(self, name: str, *, text: str | None = None) -> Embedded:
        """Give a node a vector: of its own text, or of this one."""
        return await self._run(partial(self._sync.embed, name=name, text=text))

    async def embed_missing(self, kind: str, *, limit: int | None = None, progress: Progress | None = None) -> int:
        """Give all nodes of a kind a vector that have none yet, the newest first; returns how many."""
        return await self._run(
            partial(self._sync.embed_missing, kind=kind, limit=limit, progress=crossing.in_event_loop(progress))
        )

    async def count_missing(self, kind: str) -> int:
        """How many nodes of a kind have no vector of this model yet; none where the newest of them have no words, as
        those that stay behind once all is embedded."""
        return await self._run(partial(self._sync.count_missing, kind=kind))

    async def find_similar_to_node(self, name: str, *, limit: int = 10, kind: str | None = None) -> list[Similar]:
        """The nodes nearest to one that has a vector."""
        return await self._run(partial(self._sync.find_similar_to_node, name=name, limit=limit, kind=kind))

    async def find_similar(self, vector: Sequence[float], *, limit: int = 10, kind: str | None = None) -> list[Similar]:
        """The nodes nearest to a vector of this model, of any length."""
        return await self._run(partial(self._sync.find_similar, vector=vector, limit=limit, kind=kind))

    async def find_similar_to_text(
        self, text: str, *, limit: int = 10, kind: str | None = None, words: bool = False
    ) -> list[Similar]:
        """The nodes nearest to a text; with `words`, those that also hold its words come further forward."""
        return await self._run(partial(self._sync.find_similar_to_text, text=text, limit=limit, kind=kind, words=words))

    async def nearest_turns(self, text: str, *, limit: int = 50) -> dict[str, float]:
        """The turns nearest to a text that can be read, by their own vectors or those of their messages, each with its
        cosine. Where nothing was embedded with this model it is empty, and the text is not embedded either."""
        return await self._run(partial(self._sync.nearest_turns, text=text, limit=limit))

    async def stats(self) -> list[ModelCount]:
        """For each model: how many nodes of which kinds."""
        return await self._run(self._sync.stats)

    async def forget(self, name: str | None = None) -> int:
        """Take away one node's vector, or all of this model; returns how many there were."""
        return await self._run(partial(self._sync.forget, name=name))
