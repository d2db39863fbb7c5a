"""People and agents for tests of conversations, and the end of a turn without a broker."""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.enums import MessageRole, RunExit
from weft.kernel.events import ModelRequest, Usage
from weft.kernel.message_text import write_mention
from weft.ledger.api import FinishedRun, Ledger, ModelAnswered, ModelAsked, ReachedAgent, Runs, RunWriter
from weft.ledger.model import NewError, NewMessage
from weft.programs import Programs


class Cast(Struct, frozen=True):
    """alice and bob are people; helper is a public agent of alice's, secret a private one."""

    ledger: Ledger
    ids: dict[str, str]

    def ledger_of(self, name: str) -> Ledger:
        return self.ledger.acting_as(name)

    def mention(self, name: str) -> str:
        kind = "user" if name in ("alice", "bob", "carol", "local") else "agent"
        return write_mention(kind, self.ids.get(name, name), name)


def cast(ledger: Ledger) -> Cast:
    programs = Programs(ledger)
    people = {name: programs.create("human", name, {}).id for name in ("alice", "bob", "carol")}
    own = Programs(ledger.acting_as("alice"))
    agents = {
        "helper": own.create("agent", "helper", {"description": "answers questions"}).id,
        "reviewer": own.create("agent", "reviewer", {"description": "reviews code"}).id,
        "secret": own.create("agent", "secret", {"visibility": "private"}).id,
    }
    return Cast(ledger, {**people, **agents})


def answer(
    ledger: Ledger, agent: str, text: str | None, *, error: str | None = None, session: str | None = None
) -> str:
    """Have the agent answer what waits in its session: one turn for the first message there."""
    runs = Runs(ledger)
    waiting = [runs.standing(one.session) for one in runs.waiting()]
    ending = f":{agent}" if session is None else session
    standing = next(one for one in waiting if one.label.endswith(ending))
    writer, _ = runs.begin(
        standing.id,
        expected=(standing.head, standing.head_events),
        messages=[standing.queued[0].id],
        before=(),
        then=None,
    )
    if error is not None:
        writer.record([FinishedRun(exit=RunExit.ERROR, error=NewError(message=error))])
        return writer.id
    asked = writer.record([ModelAsked(model="m")])
    request = asked.events[-1]
    assert isinstance(request.event, ModelRequest)
    writer.record(
        [
            ModelAnswered(
                message=NewMessage(role=MessageRole.ASSISTANT, content=text or ""),
                usage=Usage(input_tokens=100, output_tokens=10),
                correlation=request.event.correlation_id,
                request=request.id,
            ),
            FinishedRun(),
        ]
    )
    return writer.id


def begin(ledger: Ledger, reached: ReachedAgent) -> RunWriter:
    """Begin the turn that answers a message of a room, and do no more."""
    runs = Runs(ledger)
    standing = runs.standing(reached.session_id)
    expected = (standing.head, standing.head_events)
    return runs.begin(standing.id, expected=expected, messages=[reached.message], before=(), then=None)[0]
