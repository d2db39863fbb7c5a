"""Which messages the next turn takes: nothing is lost, doubled or answered out of its sender's order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.runtime.broker.simulated_world import Plan, PlannedMessage, VirtualClock, simulated_ledgers
from tests.runtime.broker.simulation import play_plan
from tests.sizes import sized
from weft.kernel.enums import QueueMode
from weft.ledger.api import InboxMessage, Ledger, SessionStanding
from weft.ledger.model import TextPart
from weft.runtime.broker.session_turns import CollectRules, is_interrupted, next_batch, steering

COLLECTING = CollectRules(quiet_ms=100, longest_ms=1000, most=3)


def message(n: int, sender: str = "a", mode: QueueMode = QueueMode.FOLLOWUP, priority: int = 0) -> InboxMessage:
    return InboxMessage(
        id=f"m{n}",
        n=n,
        session="main",
        session_id="s",
        state="queued",
        mode=mode.value,
        priority=priority,
        sender=sender,
        on_behalf_of=(),
        source=None,
        content=(TextPart(str(n)),),
        context=None,
        metadata=None,
        overrides=None,
        route=None,
        source_event_id=None,
        turn=None,
        admitted_at=n,
        settled_at=None,
        error=None,
        again=None,
    )


def standing(*queued: InboxMessage, **turn: Any) -> SessionStanding:
    return SessionStanding(
        id="s",
        label="main",
        persona="local",
        lifecycle="active",
        status="active",
        head=None,
        head_events=None,
        compaction=None,
        erasures=0,
        open_turn="t",
        queued=queued,
        **turn,
    )


def in_order(queued: Sequence[InboxMessage]) -> list[InboxMessage]:
    return sorted(queued, key=lambda one: (-one.priority, one.n))


messages = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from(QueueMode), st.integers(0, 2)), min_size=1, max_size=12
).map(lambda kinds: [message(n, *kind) for n, kind in enumerate(kinds)])


@given(messages, st.lists(st.integers(0, 12), max_size=12))
def test_every_message_is_taken_once_and_none_overtakes_another_of_its_sender(
    arriving: list[InboxMessage], pauses: list[int]
) -> None:
    """Messages arrive between turns, by chance; a message may overtake only one of lower priority."""
    queued: list[InboxMessage] = []
    batches: list[tuple[InboxMessage, ...]] = []
    now, pauses = 0, list(pauses)
    while arriving or queued:
        for _ in range(pauses.pop() if pauses else len(arriving)):
            queued += arriving[:1]
            arriving = arriving[1:]
        batch = next_batch(in_order(queued), now, COLLECTING)
        taken = {one.id for one in batch.messages}
        assert len(taken) == len(batch.messages)
        assert taken <= {one.id for one in queued}
        assert taken or batch.wait_until_ms is not None or not queued
        if not taken and queued:
            assert batch.wait_until_ms is not None
            assert batch.wait_until_ms > now
            now = batch.wait_until_ms
        queued = [one for one in queued if one.id not in taken]
        batches.append(batch.messages)
    for messages_of_turn in batches:
        assert len({one.sender for one in messages_of_turn}) <= 1
        assert [one.n for one in messages_of_turn] == sorted(one.n for one in messages_of_turn)
    taken_in_order = [one for messages_of_turn in batches for one in messages_of_turn]
    assert len({one.id for one in taken_in_order}) == len(taken_in_order)
    for sender in "ab":
        for priority in range(3):
            ns = [one.n for one in taken_in_order if (one.sender, one.priority) == (sender, priority)]
            assert ns == sorted(ns)


planned_messages = st.builds(
    PlannedMessage,
    pause_seconds=st.sampled_from((0.0, 0.2, 2.0, 10.0)),
    mode=st.sampled_from(QueueMode),
    priority=st.sampled_from((0, 0, 5)),
    is_cancelled=st.sampled_from((False, False, False, True)),
)
plans = st.fixed_dictionaries({sender: st.lists(planned_messages, max_size=4) for sender in "xy"}).filter(
    lambda plan: any(plan.values())
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Ledger], VirtualClock]]:
    clock = VirtualClock()
    with simulated_ledgers(tmp_path_factory.mktemp("queue modes"), clock) as ledgers:
        yield ledgers, clock


@pytest.mark.slow("plays fifteen plans with brokers")
@settings(max_examples=sized(test=15, prove=2_000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plans)
def test_brokers_answer_every_message_once_and_in_the_order_of_its_sender(
    world: tuple[list[Ledger], VirtualClock], plan: Plan
) -> None:
    """While turns run, are steered and interrupted: `play_plan` checks what they took."""
    ledgers, clock = world
    schedule = play_plan(plan, ledgers, clock, f"plan {ledgers[-1].newest()}")
    assert len(schedule.admitted) == sum(map(len, plan.values()))


def test_a_message_to_collect_is_not_held_up_by_one_of_its_sender_with_less_priority() -> None:
    queued = in_order([message(1), message(2, mode=QueueMode.COLLECT, priority=5)])
    assert [one.n for one in next_batch(queued, 10_000, COLLECTING).messages] == [2]


def test_messages_to_collect_do_not_overtake_another_mode_of_their_sender() -> None:
    collect = QueueMode.COLLECT
    queued = [message(1, "a", collect), message(2, "b"), message(3, "b", collect), message(4, "a", collect)]
    assert [one.n for one in next_batch(queued, 10_000, COLLECTING).messages] == [1, 4]


@pytest.mark.parametrize(("now", "until"), [(0, 101), (100, 101), (101, None)])
def test_messages_to_collect_wait_until_nothing_more_came_for_a_while(now: int, until: int | None) -> None:
    batch = next_batch([message(0, mode=QueueMode.COLLECT), message(1, mode=QueueMode.COLLECT)], now, COLLECTING)
    assert (len(batch.messages), batch.wait_until_ms) == (0 if until else 2, until)


def test_a_full_collection_does_not_wait_and_leaves_the_rest() -> None:
    queued = [message(n, mode=QueueMode.COLLECT) for n in range(5)]
    assert [one.n for one in next_batch(queued, 0, COLLECTING).messages] == [0, 1, 2]


def test_an_interrupting_message_takes_everything_of_its_sender_with_it_in_order_of_arrival() -> None:
    waiting = [message(1), message(2, priority=3), message(3, "b"), message(4, mode=QueueMode.INTERRUPT)]
    assert [one.n for one in next_batch(in_order(waiting), 0, COLLECTING).messages] == [1, 2, 4]


def test_messages_that_were_sent_in_different_names_are_different_turns() -> None:
    collect = QueueMode.COLLECT
    waiting = [message(0, "a", collect), message(1, "b", collect), message(2, "a", collect)]
    assert [one.n for one in next_batch(waiting, 10_000, COLLECTING).messages] == [0, 2]
    assert [one.n for one in next_batch(waiting[1:2], 10_000, COLLECTING).messages] == [1]
    for_another = replace(message(1, "a", collect), on_behalf_of=("c",))
    assert [one.n for one in next_batch([waiting[0], for_another, waiting[2]], 10_000, COLLECTING).messages] == [0]


@pytest.mark.parametrize(
    ("names", "sender", "on_behalf_of", "enters"),
    [
        ((), "local", (), True),
        (("scout", "local"), "local", (), True),
        (("scout", "local"), "scout", ("local",), True),
        ((), "scout", ("local",), False),
        (("other", "local"), "scout", ("local",), False),
        (("scout", "local"), "scout", ("boss", "local"), False),
    ],
)
def test_a_steering_message_enters_a_turn_that_has_no_more_rights_than_its_sender(
    names: tuple[str, ...], sender: str, on_behalf_of: tuple[str, ...], enters: bool
) -> None:
    steer = replace(message(9, sender, QueueMode.STEER), on_behalf_of=on_behalf_of)
    assert steering(standing(steer, open_principals=names)) == ([steer] if enters else [])


@pytest.mark.parametrize(("since", "cuts"), [(8, True), (10, False)])
def test_only_a_turn_that_ran_already_is_interrupted(since: int, cuts: bool) -> None:
    assert is_interrupted(standing(message(9, mode=QueueMode.INTERRUPT), open_since=since)) is cuts
