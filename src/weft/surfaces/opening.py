"""Opening a ledger by its path or address: which backend that means; open, copy, restore,
examine and salvage; and what `open` gives, a ledger with its graph and its programs, which are
loaded when they are first used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from datetime import timezone, tzinfo
from functools import cached_property, partial
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, cast

from weft.kernel.authority import (
    EVERYTHING,
    MACHINE_RIGHT,
    Authority,
    LedgerTrust,
    Principal,
    PrincipalKind,
    Rights,
    Vouched,
)
from weft.kernel.clock import Clock, RandomBytes, SystemClock, UlidSource, system_random
from weft.kernel.errors import (
    Action,
    CopyUnfinished,
    InvalidInput,
    LedgerMissing,
    LedgerTooOld,
    StoreError,
    Unsupported,
)
from weft.kernel.typed_names import Site, ensure_plain_path, needs_psycopg, scheme_of
from weft.ledger.api import RepositoryOf, writer_of
from weft.ledger.api.base import LEASE_TTL
from weft.ledger.api.ledger import Ledger
from weft.ledger.arguments import (
    checked_call,
    checked_file,
    checked_flag,
    checked_paths,
    checked_place,
    checked_progress,
    checked_seconds,
    checked_zone,
    path_error,
)
from weft.ledger.model import DEFAULT_AGENT
from weft.store.port import (
    Diagnosis,
    DiagnosisSeverity,
    Progress,
    Store,
    as_far_as_it_goes,
    error,
    mend_of,
    older_schema,
)
from weft.store.replicas import MADE, TrustStore, is_copy, is_unfinished, process_owner
from weft.store.sqlite import MemoryStore, SqliteStore

if TYPE_CHECKING:
    from weft.graph.graph import Graph
    from weft.ledger.api import Context
    from weft.ledger.model import Message
    from weft.ledger.upkeep.ledger_copy import CopyResult, SalvageResult
    from weft.ledger.write.transaction import LedgerWriter
    from weft.programs.similarity import Similarity
    from weft.runtime.egress.credentials import Credential
    from weft.runtime.egress.execution_context import ExecutionContext
    from weft.store.postgres import PostgresStore
    from weft.store.sqlite.examination import RestoreResult
    from weft.surfaces.acting_ledger import AnsweredTurn, Approve, OnError, StreamPart
    from weft.surfaces.cli.work.sandbox_access import ActingResources, LedgerMachine, NoMachine
    from weft.surfaces.program_handles import Invoker, LedgerPrograms


# --- Contexts as providers take them.


def _as_provider_takes(dialect: str, messages: Sequence[Message]) -> Any:
    from weft.runtime.inference.dialects.model_clients import written_for
    from weft.runtime.inference.model_requests import Dialect

    return written_for(Dialect(dialect), messages)


# --- An open ledger with its graph and its programs: `ledger.programs["researcher"].invoke("hello")`.


class OpenLedger(Ledger):
    """What `weft.open` gives: the ledger, its graph, what means nearly the same in it, and its programs, which can be
    invoked."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        ulids: UlidSource,
        *,
        owner: str,
        lease_ttl: float = LEASE_TTL,
        zone: tzinfo = timezone.utc,  # noqa: UP017
        trust: LedgerTrust | None = None,
        variable: Callable[[str], str | None] | None = None,
        repository_of: RepositoryOf | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> None:
        super().__init__(
            store,
            clock,
            ulids,
            owner=owner,
            lease_ttl=lease_ttl,
            zone=zone,
            trust=trust,
            repository_of=repository_of,
            progress=progress,
        )
        self._invoker = InvokerSlot(variable)

    @cached_property
    def graph(self) -> Graph:
        from weft.graph.graph import Graph

        return Graph(self)

    def context(self, turn: str | None = None, *, session: str | None = None) -> Context:
        from weft.ledger.api import translate_by

        translate_by(_as_provider_takes)
        return super().context(turn, session=session)

    @property
    def resources(self) -> ActingResources:
        from weft.surfaces.cli.work.sandbox_access import ActingResources

        return ActingResources(self)

    @cached_property
    def similarity(self) -> Similarity:
        """By the model that comes with Weft; `weft.Similarity(ledger, embedder)` is by another one."""
        from weft.programs.similarity import LazyMiniLM, Similarity

        return Similarity(self, LazyMiniLM())

    @property
    def machine(self) -> LedgerMachine | NoMachine:
        """What verbs reach beside the ledger: folders, containers, git. They are in reach of its owner alone."""
        from weft.surfaces.cli.user_files import trust_store
        from weft.surfaces.cli.work.sandbox_access import LedgerMachine, NoMachine

        if not (self.authority.is_local and self.authority.allows(MACHINE_RIGHT)):
            return NoMachine(self.authority)
        return LedgerMachine(self, trust_store())

    def _through(self, store: Store, writer: LedgerWriter) -> Self:
        ledger = super()._through(store, writer)
        vars(ledger).pop("similarity", None)  # it reads in the other name
        return ledger

    def send(
        self,
        text: str,
        *,
        session: str | None = None,
        agent: str | None = None,
        thread: str | None = None,
        smart: bool = False,
        model: str | None = None,
        situation: str | None = None,
        thinking: str | None = None,
        toolset: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        approve: Approve | None = None,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        sandbox: str | None = None,
        credentials: Sequence[str] = (),
        workspace: str | None = None,
        returns: Any = None,
        key: str | None = None,
    ) -> AnsweredTurn:
        """Send a message as the command line does, and wait for the answer: to a session, made if there is none, by
        default main; to an agent, where it works; after a turn; or with `smart` to the thread that it belongs to. What
        is configured is narrowed by `allow`, `deny`, `sandbox` and `credentials`, for this once. `tools` are functions
        of this program, which run in its process. `approve` is called with each `weft.PendingCall` and gives
        `weft.allow()` or `weft.deny()`; without it such a call raises ApprovalNeeded, and the turn stays parked.
        `workspace` is the folder that is worked in. `returns` is a type: the answer is asked for as one, in `value`. A
        caller that is interrupted has the turn cut short."""
        from weft.surfaces.program_handles import programs_message

        message = programs_message(
            text,
            session=session,
            agent=agent,
            thread=thread,
            smart=smart,
            model=model,
            situation=situation,
            thinking=thinking,
            toolset=toolset,
            tools=tools,
            approve=approve,
            allow=allow,
            deny=deny,
            sandbox=sandbox,
            credentials=credentials,
            workspace=workspace,
            returns=returns,
            key=key,
        )
        return self._used_invoker.send(self, message)

    def stream(
        self,
        text: str,
        *,
        session: str | None = None,
        agent: str | None = None,
        thread: str | None = None,
        smart: bool = False,
        model: str | None = None,
        situation: str | None = None,
        thinking: str | None = None,
        toolset: str | None = None,
        tools: Sequence[Callable[..., Any]] = (),
        approve: Approve | None = None,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
        sandbox: str | None = None,
        credentials: Sequence[str] = (),
        workspace: str | None = None,
        returns: Any = None,
        key: str | None = None,
    ) -> Generator[StreamPart, None, None]:
        """Send a message as `send` does, and give what comes of it as it comes: `weft.TextAdded`, `weft.AttemptReset`,
        `weft.ToolStarted`, `weft.ToolFinished`, `weft.PendingCall`, and at the end the `weft.AnsweredTurn`. Whoever
        takes no more of it has the turn cut short."""
        from weft.surfaces.program_handles import programs_message

        message = programs_message(
            text,
            session=session,
            agent=agent,
            thread=thread,
            smart=smart,
            model=model,
            situation=situation,
            thinking=thinking,
            toolset=toolset,
            tools=tools,
            approve=approve,
            allow=allow,
            deny=deny,
            sandbox=sandbox,
            credentials=credentials,
            workspace=workspace,
            returns=returns,
            key=key,
        )
        return self._used_invoker.stream(self, message)

    def broker(
        self, *, tools: Sequence[Callable[..., Any]] = (), on_error: OnError | None = None
    ) -> AbstractContextManager[None]:
        """Meanwhile answer the messages of every session, rooms and triggers among them, and finish the turns that
        run. With `tools`, also turns that were given the same functions. `on_error` hears what failed beside
        answering; without it that is logged."""
        return self._used_invoker.serving(self, tools, on_error)

    @property
    def programs(self) -> LedgerPrograms:
        from weft.surfaces.program_handles import LedgerPrograms

        return LedgerPrograms(self, self._invoker.open(self))

    @property
    def _used_invoker(self) -> Invoker:
        """What acts for this ledger, in an event loop of its own; started when it is first used."""
        return self._invoker.open(self)

    def __enter__(self) -> OpenLedger:
        return self

    def close(self) -> None:
        """Invocations end first, then the ledger is closed."""
        try:
            if self._is_original:
                self._invoker.close()
        finally:
            super().close()


class InvokerSlot:
    """What invokes the programs of an open ledger, whoever acts; loaded when it is first used."""

    def __init__(self, variable: Callable[[str], str | None] | None) -> None:
        self._variable, self._lock = variable, Lock()
        self._invoker: Invoker | None = None

    def open(self, ledger: Ledger) -> Invoker:
        from weft.surfaces.program_handles import Invoker

        with self._lock:
            self._invoker = self._invoker or Invoker(ledger, self._variable)
            return self._invoker

    def close(self) -> None:
        if self._invoker is not None:
            self._invoker.close()


# --- The environment, one variable at a time, and the execution context of an entry point.


def environment_variable(name: str) -> str | None:
    """A variable of the environment. Looked up one by one: nobody gets the whole environment."""
    return os.environ.get(name)


OWNER = Principal(PrincipalKind.HUMAN, DEFAULT_AGENT)


def context_from_env(
    principal: Principal = OWNER,
    *,
    variable: Callable[[str], str | None] | None = environment_variable,
    credentials: Iterable[Credential] = (),
    rights: Rights = EVERYTHING,
    config: Mapping[str, Any] = MappingProxyType({}),
) -> ExecutionContext:
    """The execution context of an entry point: whoever acts, with keys that are found in the environment. `variable`
    looks one variable up by its name; with None there is none. `credentials` say which of them are for which server."""
    from weft.runtime.egress.credentials import Keyring
    from weft.runtime.egress.execution_context import context_for

    return context_for(principal, keyring=Keyring(credentials, variable), rights=rights, config=config)


# --- Opening a ledger by its path or address.

StagedProgress = Callable[[str, int, int], None]


def open(
    path: str | Path,
    *,
    create: bool = True,
    read_only: bool = False,
    accept_rollback: bool = False,
    clock: Clock | None = None,
    random_bytes: RandomBytes = system_random,
    lease_ttl: float = LEASE_TTL,
    zone: tzinfo = timezone.utc,  # noqa: UP017
    variable: Callable[[str], str | None] | None = environment_variable,
    trust: TrustStore | None = None,
    acting_as: Authority | str | None = None,
    repository_of: RepositoryOf | None = None,
    progress: StagedProgress | None = None,
) -> OpenLedger:
    """Open the ledger at `path`, or make one there; ":memory:" lives as long as the ledger is open. In a PostgreSQL
    database it is a schema: `postgresql://user@host:port/database?ledger=NAME`. `variable` looks up the variables that
    programs name and that keys are kept in: those of the environment, unless it is another function; with None none is
    set. `trust` knows which ledgers a person trusts: another one can be read and recorded in, and nothing else; a new
    one joins them. `acting_as` names somebody in whose name it is read and changed, as `Ledger.acting_as` does.
    `repository_of` gives the repository of a folder, so that its worktrees are one project; without it, only what
    sessions recorded is used. `progress` is told how far it is with the views that an older version computed by other
    rules, which are made anew once."""
    clock = _checked_clock(clock)
    checked_place(path, "path")
    patience, zone = checked_seconds(lease_ttl, "lease_ttl"), checked_zone(zone)
    flags = {"create": create, "read_only": read_only, "accept_rollback": accept_rollback}
    for name, flag in flags.items():
        checked_flag(flag, name)
    if variable is not None and not callable(variable):
        raise InvalidInput(f"variable is {type(variable).__name__}", "give a function of a variable's name")
    if repository_of is not None and not callable(repository_of):
        raise InvalidInput(f"repository_of is {type(repository_of).__name__}", "give a function of a folder's path")
    if not callable(random_bytes):
        raise InvalidInput(f"random_bytes is {type(random_bytes).__name__}", "give a function of the number of bytes")
    store = _store(str(path), create, read_only, accept_rollback, clock, random_bytes)
    with store.read() as txn:
        is_cut_short = is_unfinished(txn.sql)
    if is_cut_short:
        store.close()
        raise CopyUnfinished(store.path)
    ulids = UlidSource(clock.now_ms, random_bytes)
    ledger = OpenLedger(
        store,
        clock,
        ulids,
        owner=process_owner(),
        lease_ttl=patience,
        zone=zone,
        variable=variable,
        trust=_trust(store, trust),
        repository_of=repository_of,
        progress=checked_progress(progress),
    )
    if acting_as is None:
        return ledger
    acting = ledger.acting_as(acting_as)
    acting._closed_with = ledger
    return acting


def _trust(store: Store, trusted: TrustStore | None) -> LedgerTrust:
    """Whether the store may act; without a trust store the caller vouches for it."""
    if trusted is None or Site.of(store.path) is Site.MEMORY:
        return Vouched()
    trust = trusted.trust_of(store)
    if store.is_new:
        trust.allow(MADE)
    else:
        trust.note_replica(store.former)
    return trust


def _checked_clock(clock: Clock | None) -> Clock:
    if clock is None:
        return SystemClock()
    if not all(callable(getattr(clock, name, None)) for name in ("now_ms", "monotonic", "sleep")):
        raise InvalidInput(f"clock is {type(clock).__name__}", "it has now_ms, monotonic and sleep")
    return clock


def copy(
    source: str | Path | Ledger,
    target: str | Path,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    beside: Callable[[], object] | None = None,
) -> CopyResult:
    """Copy a ledger, by its address or open, to a new address, on whatever backend: same facts, same order, same
    digests, a replica id of its own. One that was cut short is run again and goes on where it was. `beside` is called
    before the copy counts as finished, so that what belongs beside it is there first."""
    clock, beside = clock or SystemClock(), checked_call(beside, "beside")
    if not isinstance(source, Ledger):
        with _open_to_copy(source, clock) as opened:
            return copy(opened, target, progress=progress, clock=clock, beside=beside)
    checked_place(target, "target")
    writer_of(source).ensure_whole("ledger:read")
    store = _store(str(target), True, False, False, clock, system_random)
    from weft.ledger.upkeep.ledger_copy import copy_ledger

    try:
        return copy_ledger(source._store, store, progress, beside)
    finally:
        store.close()


def _open_to_copy(path: str | Path, clock: Clock) -> Ledger:
    """For writing, so that it remembers the copy and an erasure names it. For reading where nothing can be written, and
    where that would make another ledger of it: a backup has a name of its own once it is opened for writing."""
    try:
        reading = open(path, create=False, read_only=True, clock=clock)
    except LedgerTooOld:
        return open(path, create=False, clock=clock)
    try:
        if is_backup(reading):
            return reading
        writing = open(path, create=False, clock=clock)
    except StoreError:
        return reading
    except BaseException:  # whatever it was, nothing stays open
        reading.close()
        raise
    reading.close()
    return writing


def is_backup(ledger: Ledger) -> bool:
    """Whether opening it for writing would make another ledger of it, with a name of its own."""
    with ledger._store.read() as txn:
        return is_copy(txn.sql)


def restore(
    backup: str | Path,
    path: str | Path,
    *,
    progress: Progress | None = None,
    clock: Clock | None = None,
    beside: Callable[[], object] | None = None,
) -> RestoreResult:
    """Put a backup in the place of the ledger at `path`, which nobody has open. What lay there is moved aside. `beside`
    is called before that, once the copy is written: what belongs beside the ledger is then there first."""
    beside = checked_call(beside, "beside")
    from weft.store.sqlite.examination import restore as put_back

    file, copy = checked_file(path, "path", Action.COPY_BACKUP), checked_file(backup, "backup", Action.COPY_BACKUP)
    try:
        return put_back(copy, file, clock or SystemClock(), progress, beside)
    except OSError as error:
        raise path_error(file, error) from error


def salvage(
    damaged: str | Path,
    new: str | Path,
    *,
    others: Sequence[str | Path] = (),
    progress: StagedProgress | None = None,
    clock: Clock | None = None,
) -> SalvageResult:
    """Make a new ledger of everything that still verifies in a damaged file, and in `others`: older copies of it, whose
    facts fill the holes. None of them is touched."""
    from weft.ledger.upkeep.ledger_copy import salvage as save
    from weft.store.sqlite.salvage import SalvagedFacts

    files = [
        checked_file(path, "file", Action.COPY_UNREADABLE_SERVER)
        for path in (damaged, *checked_paths(others, "others"))
    ]
    target = checked_file(new, "new", Action.COPY_UNREADABLE_SERVER)
    for file in files:
        if not os.path.isfile(file):
            raise LedgerMissing(str(file), Action.CHECK_PATH)
    if os.path.exists(target):
        raise StoreError(f"{target} exists already", "choose a new file; what is saved overwrites nothing")
    gathered, clock = SalvagedFacts(), clock or SystemClock()
    try:
        for file in files:
            gathered.search(file, None if progress is None else partial(progress, file.name))
        gathered.prove()
        store = _store(str(target), True, False, False, clock, system_random)
        try:
            aside = target.with_name(target.name + ".unplaced.jsonl")
            return save(gathered, store, aside, None if progress is None else partial(progress, "events"))
        finally:
            store.close()
    finally:
        gathered.close()


def examine(path: str | Path, *, full: bool = False, clock: Clock | None = None) -> Iterator[Diagnosis]:
    """What is wrong with the ledger at `path` and what to do about it, in whatever state it is, without changing a byte
    of it. Quick, unless `full` verifies everything."""
    file = checked_place(path, "path")
    if Site.of(os.fspath(path)) is not Site.FILE:
        yield from _examine_elsewhere(str(path), clock or SystemClock(), full)
        return
    yield from _undisturbed(file, partial(_examine_file, file, clock or SystemClock(), full))


def _undisturbed(file: Path, look: Callable[[bool], Generator[Diagnosis, None, None]]) -> Iterator[Diagnosis]:
    """What is found; where somebody began to write while a file that nobody had open was looked at, what seems wrong is
    looked at again as one that is in use, and told only then."""
    from weft.store.sqlite.examination import mark_of

    diagnoses, before = list[Diagnosis](), mark_of(file)
    with closing(look(False)) as looked:
        for diagnosis in looked:
            if diagnosis.grade in (DiagnosisSeverity.ERROR, DiagnosisSeverity.WARNING) and mark_of(file) != before:
                break
            diagnoses.append(diagnosis)
            yield diagnosis
        else:
            return
    yield from (diagnosis for diagnosis in look(True) if diagnosis not in diagnoses)


def _examine_file(file: Path, clock: Clock, full: bool, in_use: bool) -> Generator[Diagnosis, None, None]:
    from weft.ledger.upkeep.doctor import examine_ledger
    from weft.store.sqlite.examination import examine_file

    diagnoses, store = examine_file(file, clock, full, in_use)
    yield from diagnoses
    if store is not None:
        try:
            yield from examine_ledger(store, full)
        finally:
            store.close()


def _examine_elsewhere(path: str, clock: Clock, full: bool) -> Iterator[Diagnosis]:
    """A ledger that is no file; one that cannot be opened is a finding, too."""
    from weft.ledger.upkeep.doctor import examine_ledger

    try:
        store = cast("PostgresStore", _store(path, False, True, False, clock, system_random))  # else it is refused
    except Unsupported:
        raise
    except LedgerTooOld as old:
        yield older_schema(old.found, old.known)
        return
    except StoreError as failure:
        yield error("database", str(failure), "it cannot be opened", mend_of(failure))
        return
    try:
        yield from as_far_as_it_goes("structure", lambda: iter(store.examine()))
        yield from examine_ledger(store, full)
    finally:
        store.close()


def _store(
    path: str, create: bool, read_only: bool, accept_rollback: bool, clock: Clock, random_bytes: RandomBytes
) -> Store:
    match Site.of(path):
        case Site.POSTGRESQL:
            return _postgres_store(path, create, read_only, clock, random_bytes)
        case Site.ELSEWHERE:
            hint = "give the path of a SQLite file, :memory:, or postgresql://…"
            raise Unsupported(f"no backend for {scheme_of(path)}://", hint)
        case Site.MEMORY:
            return _memory_store(read_only, clock, random_bytes)
        case Site.FILE:
            if not os.path.exists(path):
                ensure_plain_path(path)
            return SqliteStore(
                path,
                clock=clock,
                random_bytes=random_bytes,
                create=create,
                read_only=read_only,
                accept_rollback=accept_rollback,
            )


def _memory_store(read_only: bool, clock: Clock, random_bytes: RandomBytes) -> Store:
    if read_only:
        raise InvalidInput(
            "a ledger in memory begins empty and cannot be opened for reading only",
            "open it for writing, or name a file",
        )
    return MemoryStore(clock=clock, random_bytes=random_bytes)


def _postgres_store(path: str, create: bool, read_only: bool, clock: Clock, random_bytes: RandomBytes) -> Store:
    """There is no file beside the database, so there is no roll-back to be noticed at open, nor to be accepted."""
    try:
        from weft.store.postgres import PostgresStore
    except ImportError as error:
        raise needs_psycopg(error) from error
    return PostgresStore(path, clock=clock, random_bytes=random_bytes, create=create, read_only=read_only)
