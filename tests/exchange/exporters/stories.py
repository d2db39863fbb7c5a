"""Stories without a ledger, for tests of what exporters make of words."""

from typing import Any

from weft.exchange.exporters.port import ExportOptions, ExportReport, Story, ThinkingChoice, ThreadTip
from weft.kernel.clock import offset
from weft.ledger.model import Message, TextPart, ToolCall, Turn
from weft.ledger.read.full_threads import FullTurn, TurnRange

NOON = 1_794_700_800_000
FIRST = "01M7FFHBE3EZQDVP6QY1Y84400"


def told(number: int, *said: Any, **fields: Any) -> FullTurn:
    """A turn of messages, given as (role, text) or (role, parts), and of calls."""
    id = offset(FIRST, 1000 * number)
    turn = Turn(
        id=id, parent_id=None, depth=number, digest="0" * 64, turn_type="normal", status="completed",
        started_at=NOON, role="manager", persona_id="local", **fields,
    )  # fmt: skip
    items: list[Message | ToolCall] = []
    for i, item in enumerate(said):
        if isinstance(item, ToolCall):
            items.append(item)
            continue
        role, content = item
        parts = (TextPart(content),) if isinstance(content, str) else tuple(content)
        items.append(Message(offset(id, 1 + i), role, parts, i, NOON))
    return FullTurn(turn=turn, items=tuple(items), positions=tuple(range(len(items))))


def call(number: int, name: str = "Bash", **fields: Any) -> ToolCall:
    known = {"arguments": {}, "status": "completed", "outcome": "ok", "call_id": f"c{number}", **fields}
    return ToolCall(
        id=f"{FIRST}:c{number}", turn_id=FIRST, name=name, sequence=number, started_at=NOON, correlation_id="", **known
    )


def story(*turns: FullTurn, title: str = "All") -> Story:
    last = turns[-1].turn.id
    strand = TurnRange(
        number=0, segment=1, low=1, high=len(turns), events=None, first=turns[0].turn.id, last=last
    )  # fmt: skip
    tips = (ThreadTip(name="main", turn_id=last, session="main"),)
    return Story(title=title, tips=tips, thread_ranges=(strand,), turns_of=lambda _: iter(turns))


def written(exporter: Any, *turns: FullTurn, title: str = "All", thinking: str | None = None) -> str:
    wishes = ExportOptions(thinking=None if thinking is None else ThinkingChoice(thinking))
    pieces = exporter.write(story(*turns, title=title), wishes, ExportReport())
    return b"".join(pieces).decode()
