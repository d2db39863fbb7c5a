"""One at a time works as an agent: whoever runs it holds it, and every step names the hold.

A hold is local state: which process, and how often the agent was held before. It is checked inside the append that it
is named in, so that the steps of two who run one agent never mix. It ends when it is released, when its process is
known to be dead, and when somebody resets the agent; silence alone ends nothing.
"""

from __future__ import annotations

from msgspec import Struct

from weft.kernel.errors import AgentBusy
from weft.programs.clerk import Clerk
from weft.store.owners import is_dead, process_owner
from weft.store.replica_names import HELD, NOTE


class Hold(Struct, frozen=True):
    """An agent's ulid, and the how-manieth hold of it this is, by whom."""

    agent: str
    number: int
    owner: str


def take(clerk: Clerk, agent: str) -> int:
    """Hold an agent that nobody holds; returns the number of the hold."""
    number, owner = _now(clerk, agent)
    if owner and not is_dead(owner):
        raise AgentBusy(_name(clerk, agent), f"is at work (held by {owner})")
    _write(clerk, Hold(agent, number + 1, process_owner()))
    return number + 1


def ensure_held(clerk: Clerk, hold: Hold) -> None:
    if _now(clerk, hold.agent) != (hold.number, hold.owner):
        raise AgentBusy(_name(clerk, hold.agent), "was reset or taken up by somebody else meanwhile")


def end(clerk: Clerk, agent: str) -> None:
    """Nobody holds it any more. The number stays, so that no later hold is taken for this one."""
    number, owner = _now(clerk, agent)
    if owner:
        _write(clerk, Hold(agent, number, ""))


def _now(clerk: Clerk, agent: str) -> tuple[int, str]:
    row = clerk.sql.one("SELECT value FROM local WHERE key = ?", (HELD + agent,))
    number, _, owner = ("0" if row is None else str(row[0])).partition(" ")
    return int(number), owner


def _write(clerk: Clerk, hold: Hold) -> None:
    clerk.sql.run(NOTE, (HELD + hold.agent, f"{hold.number} {hold.owner}"))


def _name(clerk: Clerk, agent: str) -> str:
    return clerk.reload(agent).name
