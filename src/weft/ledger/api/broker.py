"""The turns that a broker runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET

from weft.kernel.enums import InterruptionReason
from weft.kernel.errors import NotFound
from weft.kernel.events import Event, EventRef, ModelRequest, Receipt
from weft.ledger.api.base import LedgerBase
from weft.ledger.api.inbox import OPEN
from weft.ledger.broker.admission import interrupt_answer, task_session
from weft.ledger.broker.inbox import (
    DEFAULT_LIMITS,
    QUEUE_SHOWN,
    BrokerLook,
    EndedRun,
    Entry,
    RecordedEvent,
    RunRecord,
    SessionStanding,
    Then,
    TurnRetry,
    WaitingSession,
    answering_turn,
    ensure_works_for,
    is_left,
    message_state,
    next_due,
    parked_turns,
    sessions_to_attend,
    standing,
    waiting_sessions,
)
from weft.ledger.broker.run_writer import AtEnd, RunWriter, adopt_run, begin_run, bury, record_resource_change
from weft.ledger.broker.session_stream import PartialReply, TurnSessions, keep_partial, load_partial, sessions_with_news
from weft.ledger.broker.workers import (
    NewWorker,
    WorkerReply,
    WorkerSession,
    WorkerState,
    find_worker,
    send_to_worker,
    settle_workers,
    spawn,
    top_session,
    work_turns,
    worker_questions,
    worker_reply,
    worker_states,
    workers_below,
    workers_of_session,
)
from weft.ledger.model import Message, NewError, RecordedTurn
from weft.ledger.read.access import access_of, session_owner
from weft.ledger.read.contexts import (
    NO_CUT,
    Context,
    ContextCut,
    InputChain,
    chain_at,
    context_after,
    counted_tokens,
    cut_of_request,
    last_chain,
    messages_named,
    refs_of,
    sent_to_model,
)
from weft.ledger.read.revisions import session_named
from weft.ledger.reports.prices import Spending, turn_spending
from weft.ledger.room_posting import post_answer
from weft.ledger.room_records import participant_question
from weft.ledger.views.rows import json_of, load_session, load_session_number, load_turn, run_events, text_of
from weft.ledger.write.approvals import Approval, listed_approvals, session_grants
from weft.ledger.write.transaction import Append, LeasePatience
from weft.ledger.write.turn_events import RunConfig, compaction_for, main_session
from weft.store.replicas import OWN_NAMES, authored_event, counts, is_written_here
from weft.store.sql import Question

WORKERS_LOOKED_AT = 4096
"""Sessions among which those of workers are looked for."""


def _after_run(append: Append, run: EndedRun) -> None:
    """What else follows from the end of a turn, in the same transaction."""
    post_answer(append, run)
    settle_workers(append, run)


def _asked_after_run(session: str) -> list[Question]:
    """What that asks of a session, by its id."""
    return [OWN_NAMES, participant_question(session), *worker_questions(session)]


AT_END = AtEnd(_after_run, _asked_after_run)


BROKER = "broker"
"""The name by which processes are seen that answer the messages of every session."""


class Runs:
    """What a broker needs of a ledger to answer messages, and to go on where another one stopped. It reads and writes
    everything: no public verb gives it away."""

    def __init__(self, ledger: LedgerBase) -> None:
        self._ledger, self._store, self._writer = ledger, ledger._store, ledger._writer
        self._clock, self._ttl, self._kept_turns = ledger._clock, ledger._ttl, ledger._kept_turns
        self._own_turns: dict[str, bool] = {}

    @property
    def owner(self) -> str:
        """The name under which turns are worked on here."""
        return self._ledger._owner

    def waiting(self, limit: int = 256) -> list[WaitingSession]:
        """Sessions with a turn that can go on, then those where messages wait and no turn is open."""
        patience = LeasePatience(self._writer, 0, self._ttl)
        with self._store.read() as txn:
            return waiting_sessions(txn, self._clock.now_ms(), limit, patience, self._own_turns)

    def parked_turns(self, limit: int = 256) -> list[tuple[WaitingSession, int]]:
        """Sessions whose turn is parked without a time limit, and that nobody holds, with how many events it has."""
        patience = LeasePatience(self._writer, 0, self._ttl)
        with self._store.read() as txn:
            return parked_turns(txn, limit, patience.judge_stale)

    def waiting_workers(self, sessions: Sequence[str]) -> list[WaitingSession]:
        """The same of the workers of sessions, by their ids, and of theirs."""
        with self._store.read() as txn:
            below = workers_below(txn.sql, sessions)
        return [one for one in self.waiting(WORKERS_LOOKED_AT) if one.session in below] if below else []

    def is_left(self, turn: str) -> bool:
        """Whether a turn, by its id, could go on, and nobody who is alive works on it."""
        patience = LeasePatience(self._writer, 0, self._ttl)
        with self._store.read() as txn:
            return is_left(txn, turn, patience.judge_stale)

    def look(self, limit: int, running: Sequence[str]) -> BrokerLook:
        """What there is to do now: at most so many sessions that wait, and what concerns the turns of `running`
        sessions, by their ids."""
        patience = LeasePatience(self._writer, 0, self._ttl)
        with self._store.read() as txn:
            return BrokerLook(
                waiting_sessions(txn, self._clock.now_ms(), limit, patience, self._own_turns) if limit else [],
                sessions_to_attend(txn, running) if running else [],
                next_due(txn),
            )

    def to_attend(self, sessions: Sequence[str]) -> list[str]:
        """Those of the sessions, by their ids, whose open turn is to be told of something."""
        with self._store.read() as txn:
            return sessions_to_attend(txn, sessions)

    def wait_for_news(self, after: int, seconds: float) -> bool:
        """Whether an event beyond `after` comes within so many seconds. Blocks."""
        return self._store.changes(after, seconds)

    def message_state(self, message: str) -> tuple[str, bool]:
        """What became of an admitted message until now, and whether it waits for another ledger's brokers."""
        with self._store.read() as txn:
            return message_state(txn, message)

    def answering_turn(self, message: str) -> str | None:
        """The turn that took a message; None where none did."""
        with self._store.read() as txn:
            return answering_turn(txn, message)

    def interrupt_answer(self, message: str) -> bool:
        """Ask for the turn that took a message to be cut short. False where it is over."""
        return interrupt_answer(self._writer, message, InterruptionReason.CANCELED)

    def claim(self, session: str) -> bool:
        """Whether no other broker is about to begin a turn in a session, by its id; then this one is, until it gives
        the session back."""
        return self._store.claim(f"session {session}")

    def give_back(self, session: str) -> None:
        self._store.give_back(f"session {session}")

    def announce_broker(self) -> None:
        """Others see from now on that a broker answers what waits here; again and again, or it may be forgotten."""
        self._store.announce(BROKER)

    def withdraw_broker(self) -> None:
        self._store.withdraw(BROKER)

    def has_broker(self) -> bool:
        """Whether a process answers the messages of every session now."""
        return self._store.is_announced(BROKER)

    def unfinished_turns(self) -> int:
        """How many turns have not ended, whichever ledger records them; those of other tools are not counted."""
        with self._store.read() as txn:
            condition = "status NOT IN ('completed', 'failed') AND origin IS NULL"
            row: tuple[int] | None = txn.sql.fetch_row(f"SELECT count(*) FROM turn WHERE {condition}")
        return row[0] if row else 0

    def standing(self, session: str, most: int = QUEUE_SHOWN) -> SessionStanding:
        """A session, by its id, as it is now, with the first `most` messages that wait there; with all of them where
        one of them interrupts."""
        patience = LeasePatience(self._writer, 0, self._ttl)
        with self._store.read() as txn:
            return standing(txn, session, patience.judge_stale, most)

    def events(self, turn: str) -> list[RecordedEvent]:
        """The events of an open or ended turn, in order: those that this ledger wrote. What another one adds to a turn
        of ours says nothing about what is to be done."""
        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            if row is None:
                return []
            return [
                RecordedEvent(one.id, one.event)
                for one in run_events(txn.facts, row)
                if isinstance(one.event, Event) and is_written_here(txn.sql, one.n, one.event.replica)
            ]

    def is_untrusted(self, turn: str | None) -> bool:
        """Whether a stranger may have written something that the context of a turn, or of one after it, holds."""
        with self._store.read() as txn:
            row = None if turn is None else load_turn(txn.sql, turn)
            return row is not None and bool(row.untrusted)

    def is_session_from_here(self, session: str) -> bool:
        """Whether a session, by its id, was begun in this ledger, and not pulled or imported."""
        with self._store.read() as txn:
            row = load_session(txn.sql, session)
            is_here = row is not None and (row.replica is None or is_written_here(txn.sql, row.n, row.replica))
            return row is not None and is_here and row.origin is None

    def newest_sessions(self, beginning: str, limit: int) -> list[str]:
        """The ids of the newest sessions whose labels begin so and that stand at a turn."""
        with self._store.read() as txn:
            rows = txn.sql.fetch_rows(
                "SELECT id FROM session WHERE substr(label, 1, ?) = ? AND head IS NOT NULL ORDER BY n DESC LIMIT ?",
                (len(beginning), beginning, limit),
            )
        return [str(id) for (id,) in rows]

    def configured_folder(self, session: str) -> str | None:
        """The folder that the configuration of a session that counts here names. None also of one that is not there
        yet."""
        with self._store.read() as txn:
            row = session_named(txn, session)
            if row is None or row.config is None:
                return None
            query = "SELECT n, config FROM program_history WHERE program = ? AND config IS NOT NULL ORDER BY n DESC"
            configs = (config for n, config in txn.sql.fetch_rows(query, (row.id,)) if counts(txn, n))
            config = json_of(txn, next(configs, None))
        folder = config.get("workspace") if isinstance(config, dict) else None
        return folder if isinstance(folder, str) else None

    def session_of_agent(self, name: str) -> str:
        """The label of the session that a message to an agent goes to: of the task that it works on, else its main
        one, which need not be there yet."""
        with self._store.read() as txn:
            session = task_session(txn.sql, name)
        return main_session(name) if session is None else session.label

    def worked_folder(self, turn: str) -> str | None:
        """The folder that a turn worked in, where a broker of this ledger ran it for a message: nobody else says where
        a session works, whatever a turn that was imported, pulled or recorded by hand names."""
        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            event = None if row is None else authored_event(txn, row.n)
            if row is None or event is None or not event.is_own:
                return None
            was_sent = txn.sql.fetch_row("SELECT 1 FROM inbox WHERE turn = ? LIMIT 1", (turn,)) is not None
            return text_of(txn, row.workspace) if was_sent else None

    def session_grants(self, session: str) -> list[Approval]:
        """What people allowed for the rest of a session, by its id."""
        with self._store.read() as txn:
            return session_grants(txn, session)

    def text(self, ref: str) -> str | None:
        """A content that an event of a run refers to; None where it was erased."""
        with self._store.read() as txn:
            return text_of(txn, txn.facts.find_content(bytes.fromhex(ref)))

    def value(self, ref: str) -> Any:
        """The same, as the JSON value that it is."""
        with self._store.read() as txn:
            return json_of(txn, txn.facts.find_content(bytes.fromhex(ref)))

    def tool_use(self, call_id: str, arguments: str) -> tuple[str, Any]:
        """The provider's id of a call and its arguments, in one reading."""
        with self._store.read() as txn:
            shown = text_of(txn, txn.facts.find_content(bytes.fromhex(call_id))) or ""
            return shown, json_of(txn, txn.facts.find_content(bytes.fromhex(arguments)))

    def ignored_secrets(self, secrets: Sequence[str]) -> set[str]:
        """Those of some credentials of which a person said that they are none."""
        from weft.ledger.imports.sources import import_secret
        from weft.ledger.secrets.findings import ignored_fingerprints
        from weft.ledger.secrets.scan import fingerprint

        key = import_secret(self._store)
        with self._store.read() as txn:
            ignored = ignored_fingerprints(txn)
        return {secret for secret in secrets if fingerprint(secret, key) in ignored}

    def history(self, session: str) -> Context:
        """What was said before the next turn of a session, by its id."""
        with self._store.read() as txn:
            row = load_session(txn.sql, session)
            if row is None:
                raise NotFound("session", session)
            head = None if row.head is None else load_turn(txn.sql, row.head)
            compaction = compaction_for(row, head, row.head_events)
            chosen = None if compaction is UNSET else compaction
            return context_after(txn, head, row.head_events, chosen, None, session_owner(txn, row), self._kept_turns)

    def after(self, turn: str, session: str) -> Context:
        """What was said up to the end of a turn, before its child in a session, by its id."""
        with self._store.read() as txn:
            row, place = load_turn(txn.sql, turn), load_session(txn.sql, session)
            if row is None or place is None:
                raise NotFound("turn", turn) if row is None else NotFound("session", session)
            compaction = compaction_for(None, row, None)
            chosen = None if compaction is UNSET else compaction
            return context_after(txn, row, None, chosen, None, session_owner(txn, place), self._kept_turns)

    def counted_tokens(self, turn: str, compaction: str | None) -> int | None:
        """What the last request of a turn and its answer took, as the provider counted; None where it did not, or where
        another compaction was in effect."""
        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            if row is None or row.compaction != compaction:
                return None
            return counted_tokens(one.event for one in run_events(txn.facts, row))

    def cut(self, turn: str) -> ContextCut:
        """What the last request of a turn was cut by."""
        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            requests = [] if row is None else [one.event for one in run_events(txn.facts, row)]
            asked = [event for event in requests if isinstance(event, ModelRequest)]
            return cut_of_request(txn, asked[-1]) if asked else NO_CUT

    def messages(self, refs: Sequence[str | EventRef]) -> tuple[Message, ...]:
        """The messages that a request names, whole."""
        with self._store.read() as txn:
            return tuple(messages_named(txn, refs))

    def open_requests(self, session: str) -> list[Approval]:
        """The requests to people about tool calls of a session, by its id, and of the workers below it, that wait for
        an answer; those that whoever acts may see."""
        with self._store.read() as txn:
            rows = [load_session(txn.sql, id) for id in (session, *sorted(workers_below(txn.sql, [session])))]
            numbers = [row.n for row in rows if row is not None]
            return [one for number in numbers for one in listed_approvals(txn, OPEN, session=number)]

    def top_session(self, session: str) -> str:
        """The id of the session for which a worker works in the end, by its session's id; of others the same id."""
        with self._store.read() as txn:
            return top_session(txn.sql, session)

    def work_spending(self, session: str, after: int) -> Spending:
        """What was spent, with the prices that are shipped, by the turns that took messages which a session, by its
        id, got behind an arrival number, and by those of all workers below it since."""
        with self._store.read() as txn:
            return turn_spending(txn, work_turns(txn.sql, session, after))

    def spending(self, turn: str) -> Spending:
        """What a turn spent, by its id, with the prices that are shipped."""
        with self._store.read() as txn:
            return turn_spending(txn, [turn])

    def sent(self, turn: str) -> tuple[Message, ...]:
        """What the last request of a turn was sent, or is to be sent, as it was recorded."""
        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            if row is None:
                raise NotFound("turn", turn)
            return tuple(sent_to_model(txn, row, self._kept_turns))

    def first_turn(self, turn: str) -> str:
        """The turn that the thread of a turn begins with: the same for all that was forked from it."""
        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            first = row and txn.sql.fetch_row(
                "SELECT id FROM turn WHERE segment = ? ORDER BY depth LIMIT 1", (row.root,)
            )
            if not first:
                raise NotFound("turn", turn)
            return str(first[0])

    def last_input(self, turn: str) -> InputChain | None:
        """How the next request of an open turn names what the last one was sent."""
        with self._store.read() as txn:
            return last_chain(txn, turn)

    def input_chain(self, messages: Sequence[Message], turn: str | None) -> InputChain | None:
        """How what these messages say is named in a request after `turn`; None where one of them has no fact."""
        with self._store.read() as txn:
            refs = refs_of(txn, messages)
            return None if refs is None else chain_at(txn, turn, refs)

    def ensure_works_for(self, agent: str, messages: Sequence[str]) -> None:
        """Refuse to have messages answered by an agent that does not work for those in whose name they were sent, or
        for whoever runs the broker. It may have been shared with them when they sent it."""
        with self._store.read() as txn:
            access_of(txn).ensure_agent(agent)
            for message in messages:
                ensure_works_for(txn, agent, message)

    def begin(
        self,
        session: str,
        *,
        expected: tuple[str | None, int | None],
        messages: Sequence[str],
        before: Sequence[Entry] = (),
        setting: RunConfig | None = None,
        then: Then | None = None,
        parent: str | None = None,
        is_root: bool = False,
        persona: str | None = None,
        retry: TurnRetry | None = None,
    ) -> tuple[RunWriter, RunRecord]:
        """Take a session, by its id, and begin a turn for some of its messages, if it stands at `expected`."""
        return begin_run(
            self._writer,
            session,
            expected=expected,
            messages=messages,
            before=before,
            setting=setting or RunConfig(),
            then=then,
            owner=self._ledger._owner,
            ttl=self._ttl,
            at_end=AT_END,
            parent=parent,
            is_root=is_root,
            persona=persona,
            retry=retry,
        )

    def record_resource_change(self, server: str, uri: str | None = None, run: str | None = None) -> str:
        """A server of tools said that a resource of its changed, or its list of them, in a call of this turn. Returns
        the event's id."""
        return record_resource_change(self._writer, server, uri, run)

    def recorded(self, turn: str) -> RecordedTurn:
        """An ended turn, with a receipt for the ledger as it is now."""
        with self._store.read() as txn:
            row = load_turn(txn.sql, turn)
            if row is None or not row.closed:
                raise NotFound("turn", turn)
            session = None if row.session is None else load_session_number(txn.sql, row.session)
            tip = txn.facts.tip()
            return RecordedTurn(
                id=row.id,
                digest=row.digest,
                depth=row.depth,
                parent_id=row.parent,
                session=None if session is None else session.label,
                receipt=Receipt(self._store.replica, tip.n, tip.chain.hex(), row.digest),
                response_message_id=row.response,
            )

    def adopt(self, turn: str) -> RunWriter | None:
        """Go on with an open turn whose broker is gone, silent, or left it; None where it is over."""
        return adopt_run(self._writer, turn, owner=self._ledger._owner, ttl=self._ttl, at_end=AT_END)

    def bury(self, messages: Sequence[str], code: str, message: str) -> None:
        """Messages for which no turn can be begun are dead; a person must look at them."""
        bury(self._writer, messages, NewError(code=code, message=message), AT_END)

    def spawn(self, new: NewWorker) -> WorkerSession:
        """A worker for an open turn, with its task in its inbox. The same call again gives the same worker."""
        session = spawn(self._writer, new, DEFAULT_LIMITS)
        worker = self.worker(session)
        assert worker is not None, "it was just made"
        return worker

    def send_to_worker(self, turn: str, session: str, text: str, call: str) -> None:
        """Another message of an open turn to a worker of its session. The same call again sends nothing."""
        send_to_worker(self._writer, turn, session, text, call, DEFAULT_LIMITS)

    def worker(self, session: str) -> WorkerSession | None:
        """A worker of this ledger, by its session's id; None where the session is no worker's."""
        with self._store.read() as txn:
            return find_worker(txn, session)

    def workers(self, session: str) -> list[WorkerSession]:
        """The workers that turns of a session, by its id, spawned, in their order."""
        with self._store.read() as txn:
            return workers_of_session(txn, session)

    def worker_states(self, session: str) -> list[WorkerState]:
        """How far the workers are that turns of a session, by its id, spawned."""
        with self._store.read() as txn:
            return worker_states(txn, session)

    def worker_reply(self, answer: str) -> WorkerReply:
        """What a worker answered: by its turn, or by the message that no turn answered."""
        with self._store.read() as txn:
            return worker_reply(txn, answer)

    def keep_partial(self, turn: str, partial: PartialReply) -> None:
        """Keep what has come of an answer, for readers in other processes. Local state: it is gone with the turn."""
        keep_partial(self._writer, turn, partial)

    def partial(self, turn: str) -> PartialReply | None:
        with self._store.read() as txn:
            return load_partial(txn, turn)

    def sessions_with_news(self, after: int, sessions: TurnSessions) -> tuple[int, set[str]]:
        """The newest arrival number, and the ids of the sessions that events beyond `after` belong to."""
        with self._store.read() as txn:
            return sessions_with_news(txn, after, sessions)
