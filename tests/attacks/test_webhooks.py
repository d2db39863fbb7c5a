"""Webhooks that are forged, sent again, reordered or written otherwise: one event gives one turn, a stranger none."""

from __future__ import annotations

import base64
import hmac
import json
import random
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.triggering import NOON, TriggerWorld, open_world
from weft.kernel.errors import InboxFull, InvalidInput, NotAllowed, NotApplicable, VariableMissing, WeftError
from weft.ledger import triggers
from weft.ledger.api import FinishedRun, InboxMessage, Ledger, Runs, TriggerLog
from weft.ledger.broker.inbox import QueueLimits
from weft.ledger.model import TextPart
from weft.runtime.invoke.trigger_firing import WebhookDelivery, canonical_body, deliver, json_value, read_delivery

SECRET = "it's nobody's business"
SECONDS = NOON // 1000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TriggerWorld]:
    world = open_world(tmp_path / "ledger.db")
    yield world
    world.ledger.close()


def variables(name: str) -> str | None:
    return {"HOOK_SECRET": SECRET}.get(name)


def hook(world: TriggerWorld, scheme: str, **config: Any) -> None:
    webhook = {"secret": "${HOOK_SECRET}", "scheme": scheme}
    world.create(scheme, **{"on": {"webhook": webhook}, "message": "event ${payload.id}", **config})


def signature(covered: bytes, secret: str = SECRET) -> bytes:
    return hmac.new(secret.encode(), covered, sha256).digest()


def github(body: bytes, secret: str = SECRET) -> WebhookDelivery:
    return WebhookDelivery({"x-hub-signature-256": f"sha256={signature(body, secret).hex()}"}, body)


def stripe(body: bytes, seconds: int = SECONDS, secret: str = SECRET) -> WebhookDelivery:
    covered = f"{seconds}.".encode() + body
    return WebhookDelivery({"stripe-signature": f"t={seconds},v1={signature(covered, secret).hex()}"}, body)


def slack(body: bytes, seconds: int = SECONDS, secret: str = SECRET) -> WebhookDelivery:
    covered = f"v0:{seconds}:".encode() + body
    headers = {"x-slack-request-timestamp": str(seconds), "x-slack-signature": f"v0={signature(covered, secret).hex()}"}
    return WebhookDelivery(headers, body)


def standard(body: bytes, seconds: int = SECONDS, secret: str = SECRET, event_id: str = "msg_1") -> WebhookDelivery:
    covered = f"{event_id}.{seconds}.".encode() + body
    text = base64.b64encode(signature(covered, secret)).decode()
    headers = {"webhook-id": event_id, "webhook-timestamp": str(seconds), "webhook-signature": f"v1,{text}"}
    return WebhookDelivery(headers, body)


SIGNED: dict[str, Any] = {"github": github, "stripe": stripe, "slack": slack, "standard": standard}


def send(world: TriggerWorld, scheme: str, delivery: WebhookDelivery) -> bool:
    """Whether a delivery was new."""
    return deliver(world.sender(), scheme, delivery, variables).is_new


def test_every_scheme_takes_what_its_sender_signed_and_nothing_else(world: TriggerWorld) -> None:
    for scheme, signed in SIGNED.items():
        hook(world, scheme)
        body = json.dumps({"id": f"evt_{scheme}", "note": "hello"}).encode()
        for forged in (
            WebhookDelivery(signed(body).headers, body.replace(b"hello", b"hacked")),
            signed(body, secret="a guess"),
            WebhookDelivery({}, body),
            WebhookDelivery(dict.fromkeys(signed(body).headers, ""), body),
            WebhookDelivery({name: value + "00" for name, value in signed(body).headers.items()}, body),
        ):
            with pytest.raises(NotAllowed):
                send(world, scheme, forged)
        assert world.programs.trigger_firings(scheme) == []
        assert send(world, scheme, signed(body))
        assert not send(world, scheme, signed(body))
        (message,) = world.ledger.inbox.list(session=f"trigger:{scheme}")
        assert message.source == "webhook"


def test_a_delivery_outside_of_its_time_is_refused(world: TriggerWorld) -> None:
    for scheme, signed in (("stripe", stripe), ("slack", slack), ("standard", standard)):
        hook(world, scheme)
        for seconds in (SECONDS - 301, SECONDS + 301, 0, -1):
            with pytest.raises(NotAllowed):
                send(world, scheme, signed(b"{}", seconds))
        assert send(world, scheme, signed(b"{}", SECONDS - 299))


def value_text(value: Any, chance: random.Random) -> str:
    """One of many ways to write a JSON value."""
    space = chance.choice(("", " ", "\n", "\t ", "  "))
    if isinstance(value, dict):
        items = [f"{value_text(name, chance)}{space}:{space}{value_text(item, chance)}" for name, item in value.items()]
        chance.shuffle(items)
        return "{" + space + f"{space},{space}".join(items) + space + "}"
    if isinstance(value, list):
        return "[" + space + f",{space}".join(value_text(item, chance) for item in value) + space + "]"
    if isinstance(value, str):
        written = (f"\\u{ord(letter):04x}" if chance.random() < 0.3 else json.dumps(letter)[1:-1] for letter in value)
        return f'"{"".join(written)}"'
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return chance.choice((f"{value}", f"{value}.0", f"{value}e0", f"{value}0E-1", f"{value}.000"))


@pytest.mark.slow("delivers a thousand times")
def test_a_thousand_encodings_of_one_delivery_give_one_turn(world: TriggerWorld) -> None:
    """Signed anew each time, as a sender does that tries again; and headers written otherwise."""
    hook(world, "stripe")
    value = {"id": "evt_1", "amount": 12, "names": ["Zoë", 'a "b"', None, True], "deep": {"x": [1, {"y": 2}]}}
    chance, sender = random.Random(26), world.sender()
    new = 0
    for _ in range(1000):
        body = value_text(value, chance).encode()
        delivery = stripe(body, SECONDS - chance.randint(0, 290))
        time, mac = delivery.headers["stripe-signature"].split(",")
        items = [time, mac.upper().replace("V1", "v1"), "v0=junk", "v1=00"]
        chance.shuffle(items)
        headers = {"stripe-signature": ",".join(items), "x-request-id": str(chance.random())}
        new += deliver(sender, "stripe", WebhookDelivery(headers, body), variables).is_new
    assert new == 1
    assert len(world.texts()) == 1
    assert len(world.programs.trigger_firings("stripe", limit=10)) == 1


def test_ids_that_are_not_signed_make_no_second_turn(world: TriggerWorld) -> None:
    hook(world, "github")
    body = json.dumps({"id": 7}).encode()
    headers = dict(github(body).headers)
    outcomes = [
        send(world, "github", WebhookDelivery({**headers, "x-github-delivery": str(number)}, body))
        for number in range(5)
    ]
    assert outcomes == [True, False, False, False, False]


def test_equal_bodies_of_two_signed_ids_are_two_events(world: TriggerWorld) -> None:
    hook(world, "standard")
    assert [send(world, "standard", standard(b"{}", event_id=id)) for id in ("a", "b", "a", "b")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.prove
def test_ten_deliveries_each_of_ten_thousand_events_give_ten_thousand_turns(world: TriggerWorld) -> None:
    deliver_many(world, events=10_000, times=10)


def test_ten_deliveries_each_of_some_events_give_as_many_messages(world: TriggerWorld) -> None:
    deliver_many(world, events=40, times=10)


def deliver_many(world: TriggerWorld, *, events: int, times: int) -> None:
    """In any order, from two brokers, and answered meanwhile."""
    hook(world, "github", to={"session": "events"})
    bodies = [json.dumps({"id": number}).encode() for number in range(events)] * times
    random.Random(1).shuffle(bodies)
    senders = [world.sender(), world.sender()]
    turns: list[str] = []
    for number, body in enumerate(bodies):
        deliver(senders[number % 2], "github", github(body), variables)
        if number % 100 == 99:
            turns += answer_all(world.ledger)
    turns += answer_all(world.ledger)
    assert len(turns) == len(set(turns)) == events
    queries = {message.text for turn in turns for message in world.ledger.messages(turn) if message.role == "user"}
    assert queries == {f"event {number}" for number in range(events)}


def answer_all(ledger: Ledger) -> list[str]:
    """A turn for each message that waits."""
    runs = Runs(ledger)
    return [answer(runs, message) for message in ledger.inbox.list(session="events", limit=10_000)]


def answer(runs: Runs, message: InboxMessage) -> str:
    standing = runs.standing(message.session_id)
    expected = (standing.head, standing.head_events)
    run, _ = runs.begin(standing.id, expected=expected, messages=[message.id])
    ended = run.record([FinishedRun()]).ended
    assert ended is not None
    return ended.id


def test_a_delivery_that_could_not_be_taken_can_be_delivered_again(world: TriggerWorld) -> None:
    hook(world, "github", to={"persona": "later"})
    with pytest.raises(WeftError):
        send(world, "github", github(b'{"id": 1}'))
    world.programs.create("agent", "later", {"soul": "I came later."})
    assert send(world, "github", github(b'{"id": 1}'))
    assert not send(world, "github", github(b'{"id": 1}'))


def test_a_full_inbox_refuses_a_delivery_and_is_no_error_of_the_trigger(
    world: TriggerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "DEFAULT_LIMITS", QueueLimits(session=2))
    hook(world, "github", to={"session": "events"}, breaker=1)
    outcomes = [send(world, "github", github(json.dumps({"id": number}).encode())) for number in range(2)]
    assert outcomes == [True, True]
    for _ in range(3):
        with pytest.raises(InboxFull):
            send(world, "github", github(b'{"id": 2}'))
    answer_all(world.ledger)
    assert send(world, "github", github(b'{"id": 2}'))
    assert [one.error for one in world.programs.trigger_firings("github")] == [None] * 3


def test_the_secret_is_read_where_it_is_used_and_stands_in_no_file(world: TriggerWorld, tmp_path: Path) -> None:
    hook(world, "github")
    with pytest.raises(VariableMissing):
        deliver(world.sender(), "github", github(b"{}"), lambda name: None)
    with pytest.raises(NotAllowed):
        deliver(world.sender(), "github", github(b"{}", secret=""), lambda name: "")
    send(world, "github", github(b"{}"))
    for file in tmp_path.iterdir():
        assert SECRET.encode() not in file.read_bytes()


def test_what_is_delivered_is_a_strangers_word(world: TriggerWorld) -> None:
    hook(world, "github", message="${payload.text} ${payload.none}")
    send(world, "github", github(json.dumps({"text": "${trigger} ${payload.id}"}).encode()))
    assert world.texts() == ["${trigger} ${payload.id} "]
    _, events = TriggerLog(world.ledger).events_after(0, 1000)
    (admitted,) = [fields for _, fields in events if fields["kind"] == "message_admitted"]
    assert admitted["untrusted"] is True


def test_nobody_comes_into_the_session_of_another_sender_by_a_name(world: TriggerWorld) -> None:
    """A name that is not plain is told by its digest: a sender may take that digest for a name."""
    hook(world, "github", message="${payload.text}", to={"sender": "from"})

    def session_of(name: str, text: str) -> str:
        send(world, "github", github(json.dumps({"from": name, "text": text}).encode()))
        (message,) = [one for one in world.ledger.inbox.list() if one.content == (TextPart(text),)]
        return message.session_id

    victim = session_of("Bob Smith", "my account is 12")
    digest = sha256(b"Bob Smith").hexdigest()
    names = [digest[:digits] for digits in (8, 16, 32, 64)]
    names += [sha256(name.encode()).hexdigest()[:16] for name in names] + [
        digest[:16].upper(),
        " Bob Smith",
        "bob smith",
    ]
    others = [session_of(name, f"what did I say? {number}") for number, name in enumerate(names)]
    assert len({victim, *others}) == len(names) + 1
    assert session_of("Bob Smith", "it is me") == victim


def test_bodies_of_one_value_have_one_form_and_others_are_themselves() -> None:
    def form(text: str) -> bytes:
        return canonical_body(text.encode(), json_value(text.encode()))

    assert form('{"a": 1.0, "b": "\\u00e9"}') == form('{ "b":"é","a":10e-1 }')
    assert form("[0, -0, 0.0, 0e9]") == form("[0,0,0,0]")
    assert form("1e999999999") == form("10e999999998")
    different = [
        "1",
        '"1"',
        "[1]",
        '{"a":1}',
        '{"a":"1"}',
        '{"a":{"\\u0000number":"1e0"}}',
        '{"a":["number","1e0"]}',
        '{"a":[1]}',
        "true",
        "null",
        "12345678901234567890123456789012345",
        "",
        "12345678901234567890123456789012346",
        "1e400",
        '{"a":1,"a":1}',
        "NaN",
        "[" * 200 + "]" * 200,
        "\ufeff1",
    ]
    assert len({form(text) for text in different}) == len(different)


def test_deliveries_are_read_as_http_has_them() -> None:
    plain = read_delivery(b"POST /hook HTTP/1.1\r\nX-Hub-Signature-256: sha256=ab\r\nHost: x\r\n\r\n{}\r\n\r\n")
    assert plain == WebhookDelivery({"x-hub-signature-256": "sha256=ab", "host": "x"}, b"{}\r\n\r\n")
    assert read_delivery(b"A: 1\nA: 1\n\n") == WebhookDelivery({"a": "1"}, b"")
    for wrong in (b"", b"A: 1", b"A: 1\nA: 2\n\n{}", b"no header here\nneither\n\n{}", b"A: 1\n" * 300 + b"\n{}"):
        with pytest.raises(InvalidInput):
            read_delivery(wrong)
    with pytest.raises(InvalidInput):
        read_delivery(b"A: 1\n\n" + b"x" * (1024 * 1024 + 1))


def test_a_trigger_that_waits_for_something_else_takes_no_delivery(world: TriggerWorld) -> None:
    world.create("hourly", on={"cron": "0 * * * *"}, message="x")
    with pytest.raises(NotApplicable):
        send(world, "hourly", github(b"{}"))


def test_numbers_that_a_ledger_cannot_keep_exactly_are_kept_as_text(world: TriggerWorld) -> None:
    hook(world, "github", message="${payload}")
    body = b'{"id": 12345678901234567890123}'
    assert send(world, "github", github(body))
    assert send(world, "github", github(b'{"text": "\\ud800"}'))
    assert "12345678901234567890123" in world.texts()[0]


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_this is no base64!"])
def test_a_secret_that_holds_no_key_signs_nothing(world: TriggerWorld, secret: str) -> None:
    hook(world, "standard")
    with pytest.raises((NotAllowed, VariableMissing)):
        deliver(world.sender(), "standard", standard(b"{}", secret=""), {"HOOK_SECRET": secret}.get)
    assert world.texts() == []


def test_what_is_signed_is_divided_in_one_way(world: TriggerWorld) -> None:
    """The beginning of a signed body must not count as the end of the id."""
    hook(world, "standard", message="${payload}")
    body = f"{SECONDS}.body".encode()
    assert send(world, "standard", standard(body, event_id="msg"))
    signed = standard(body, event_id="msg").headers["webhook-signature"]
    headers = {"webhook-id": f"msg.{SECONDS}", "webhook-timestamp": str(SECONDS), "webhook-signature": signed}
    with pytest.raises(NotAllowed):
        send(world, "standard", WebhookDelivery(headers, b"body"))


def test_an_id_that_is_half_a_character_is_an_id(world: TriggerWorld) -> None:
    hook(world, "stripe", message="x")
    body = b'{"id": "\\ud800"}'
    assert [send(world, "stripe", stripe(body)) for _ in range(2)] == [True, False]
