"""Secrets that tools print: no request to a model holds one, then or later, and what is sent stays the same words."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from msgspec import UnsetType

import weft.aio
from tests.credentials import Maker, scanner
from tests.runtime.broker.test_request_prefixes import anthropic_calls, chat_calls
from tests.runtime.inference.asking import model, person, provider
from tests.runtime.scripted import MESSAGE, Script, Scripted, answer, chat, scripted
from weft.kernel.errors import StoreFailed, Unsupported
from weft.kernel.events import ModelRequest, ToolResult
from weft.ledger import secrets as ledger_secrets
from weft.ledger.api import Runs
from weft.ledger.model import ImagePart, ToolResultPart
from weft.ledger.secrets import scan
from weft.ledger.secrets.scan import (
    PIECE_BYTES,
    PIECE_OVERLAP_BYTES,
    KnownSecrets,
    built_in_secrets,
    load_scanner,
    pieces_of,
)
from weft.runtime.broker.broker import OutgoingMessage, send
from weft.runtime.inference.inference import Inference
from weft.runtime.inference.model_requests import ProviderKind, RetryPolicy
from weft.runtime.tool.recorded_results import ReadResultTool, RecordedCalls, ResultSecrets
from weft.runtime.tool.tool_contract import FunctionTool, ToolCallContext, ToolFailure, ToolOutput, tools_of

MAKER = Maker(77)
TOKEN, KEY, PEM = MAKER.github(), MAKER.some(40), MAKER.pem()
OTHER_TOKEN, ESCAPED_TOKEN = MAKER.github(), MAKER.github().replace("_", "\\u005f", 1)
PROFILE = f'[default]\naws_secret_access_key = "{KEY}"\nregion = eu-north-1\n'
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAAB"


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling the rules takes seconds: once for all tests."""
    scan.load_rules.cache_clear()
    monkeypatch.setattr(scan, "load_scanner", lambda folder: scanner())


@pytest.fixture
def path(quick_path: Path) -> Path:
    return quick_path / "ledger.db"


class Printing:
    """A session with a tool that prints what a test says, and the server that its model is asked at."""

    def __init__(
        self, ledger: weft.aio.AsyncLedger, server: Scripted, inference: Inference, kind: ProviderKind
    ) -> None:
        self.ledger, self.server, self._inference, self._kind = ledger, server, inference, kind
        self.printed: list[Any] = []
        self.turns: list[str] = []

    async def prints(self) -> Any:
        printed = self.printed.pop(0)
        if isinstance(printed, Exception):
            raise printed
        return printed

    async def send(self, *printed: Any, session: str = "main") -> str:
        self.printed += printed
        settings = model(self.server.url, provider=provider(self.server.url, self._kind))
        question = OutgoingMessage(message="Look", model=settings, tools=tools_of(FunctionTool(self.prints)))
        reply = await send(self.ledger, self._inference, session, question, context=person(self.server.url))
        self.turns.append(reply.turn.id)
        return reply.turn.id

    def forget(self) -> None:
        """The next message is answered by a broker that knows nothing of what was found."""
        self.ledger.crossing.shared.clear()

    def body(self, number: int = -1) -> Any:
        return self.server.received[number].body

    def has_sent(self, *words: str) -> bool:
        """Whether one of the words was in any request."""
        sent = json.dumps([received.body for received in self.server.received])
        return any(json.dumps(word)[1:-1] in sent or word in sent for word in words)


def run(
    path: Path,
    body: Callable[[Printing], Awaitable[None]],
    *scripts: Script,
    kind: ProviderKind = ProviderKind.OPENAI_COMPATIBLE,
) -> None:
    async def main() -> None:
        inference = Inference(policy=RetryPolicy(attempts=1))
        async with weft.aio.open(path) as ledger, scripted(*scripts) as server, inference:
            await body(Printing(ledger, server, inference, kind))
            assert [problem async for problem in ledger.verify()] == []

    asyncio.run(main())


ASKS, SAYS = chat_calls(("prints", {})), chat(usage=None)
PRINTED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "cat of a file that no list hides": ({"rc": 0, "stdout": PROFILE, "stderr": ""}, (KEY,)),
    "a text": (f"the token is {TOKEN}.", (TOKEN,)),
    "lines of a key with their numbers": (
        {"text": "\n".join(f"{number}\t{line}" for number, line in enumerate(PEM.splitlines(), 1))},
        tuple(PEM.splitlines()[1:-1]),
    ),
    "the beginning of a key": ({"text": "\n".join(PEM.splitlines()[:7])}, tuple(PEM.splitlines()[1:7])),
    "one text split over two parts": (
        {"content": [{"type": "text", "text": f"a {TOKEN[:22]}"}, {"type": "text", "text": f"{TOKEN[22:]} b"}]},
        (TOKEN, TOKEN[22:], TOKEN[:22]),
    ),
    "a name of a field": ({TOKEN: 1}, (TOKEN,)),
    "names of fields, all with one kind": ({TOKEN: "first", OTHER_TOKEN: "second"}, (TOKEN, OTHER_TOKEN)),
    "letters as escapes of JSON": ({"stdout": f'{{"key": "{ESCAPED_TOKEN}"}}'}, (ESCAPED_TOKEN,)),
    "the name tells what the value is": ({"aws_secret_access_key": KEY, "region": "eu-north-1"}, (KEY,)),
    "JSON within JSON": ({"stdout": json.dumps({"key": json.dumps({"pem": PEM})})}, tuple(PEM.splitlines()[1:-1])),
    "across the place where a long result is cut": (f"{'x' * 39_979} {TOKEN}{' y' * 40_000}", (TOKEN, TOKEN[:20])),
    "the message of an error": (ToolFailure("refused", f"401 for Authorization: Bearer {TOKEN}"), (TOKEN,)),
    "an error that a library raises": (ValueError(f"cannot parse {TOKEN}"), (TOKEN,)),
    "beside an image": (
        ToolOutput(result={"note": TOKEN}, images=(ImagePart(f"data:image/png;base64,{PNG}"),)),
        (TOKEN,),
    ),
}


@pytest.mark.parametrize("what", PRINTED)
def test_no_request_holds_a_secret_that_a_tool_printed(path: Path, what: str) -> None:
    printed, secrets = PRINTED[what]

    async def body(session: Printing) -> None:
        await session.send(printed)
        await session.send(printed)  # asks for the results of both turns
        assert len(session.server.received) == 4
        assert not session.has_sent(*secrets)
        assert session.has_sent("[secret: ")

    run(path, body, ASKS, SAYS, ASKS, SAYS)


def test_the_result_is_recorded_as_it_came_and_so_is_what_was_sent_with_the_rules_that_made_it(path: Path) -> None:
    async def body(session: Printing) -> None:
        turn = await session.send({"stdout": PROFILE})
        events = [recorded.event for recorded in await session.ledger.events(turn)]
        (result,) = [event for event in events if isinstance(event, ToolResult)]
        assert json.loads(await content(session.ledger, str(result.result))) == {"stdout": PROFILE}
        sent = json.loads(await content(session.ledger, str(result.sent)))
        assert sent == {"stdout": PROFILE.replace(KEY, "[secret: AWS secret access key]")}
        assert result.secret_rules == f"weft.1/{scanner().name}"
        (call,) = await session.ledger.tool_calls(turn)
        assert call.result == sent, "whoever reads the turn sees what the model saw"
        named = [event.input for event in events if isinstance(event, ModelRequest)]
        assert all(named), "each request says what it was sent"
        request = Runs(session.ledger.sync).sent(turn)
        assert [part.output for message in request for part in message.content if isinstance(part, ToolResultPart)] == [
            sent
        ]

    run(path, body, ASKS, SAYS)


async def content(ledger: weft.aio.AsyncLedger, ref: str) -> bytes:
    return b"".join([piece async for piece in ledger.read_content(ref)])


def without_cache_marks(said: Any) -> Any:
    """They move to the newest message, and say nothing."""
    if isinstance(said, dict):
        return {name: without_cache_marks(part) for name, part in said.items() if name != "cache_control"}
    return [without_cache_marks(part) for part in said] if isinstance(said, list) else said


@pytest.mark.parametrize("kind", [ProviderKind.OPENAI_COMPATIBLE, ProviderKind.ANTHROPIC])
def test_later_requests_say_the_same_words_whatever_the_rules_are_by_then(
    path: Path, kind: ProviderKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_chat = kind is ProviderKind.OPENAI_COMPATIBLE
    asks, says = (ASKS, SAYS) if is_chat else (anthropic_calls(("prints", {})), answer(200, MESSAGE))

    async def body(session: Printing) -> None:
        await session.send({"stdout": PROFILE})
        first = without_cache_marks(session.body()["messages"])
        session.forget()
        scan.load_rules.cache_clear()
        monkeypatch.setattr(ledger_secrets, "load_rules", lambda folder: OtherRules())
        await session.send({"stdout": "nothing to hide, is there"})
        assert without_cache_marks(session.body()["messages"])[: len(first)] == first
        await session.ledger.fork(session.turns[0], label="aside")
        await session.send({"stdout": "nothing to hide, is there"}, session="aside")
        assert without_cache_marks(session.body()["messages"])[: len(first)] == first
        assert not session.has_sent(KEY)

    run(path, body, asks, says, asks, says, asks, says, kind=kind)


def test_reading_on_in_a_long_result_gives_no_secret_either(path: Path) -> None:
    async def body(session: Printing) -> None:
        turn = await session.send(f"{'x ' * 40_000}{TOKEN}{' y' * 40_000}")
        (call,) = await session.ledger.tool_calls(turn)
        recorded = RecordedCalls(session.ledger.sync, session.ledger.crossing).result
        context = ToolCallContext(turn=turn, call=call.id)
        arguments = {"call": call.call_id, "offset": 79_000, "limit": 3_000}
        tool = ReadResultTool(recorded)
        output = await tool.perform(await tool.plan(arguments, context), context)
        assert "[secret: GitHub token]" in output.result["text"]
        assert TOKEN not in json.dumps(output.result)

    run(path, body, ASKS, SAYS)


def test_a_substitution_that_is_taken_back_shows_what_was_sent_and_no_secret(path: Path) -> None:
    async def body(session: Printing) -> None:
        turn = await session.send({"stdout": PROFILE})
        ledger = session.ledger.sync
        (result,) = [one.id for one in ledger.events(turn) if isinstance(one.event, ToolResult)]
        (before,) = ledger.tool_calls(turn)
        ledger.substitute(result, {"stdout": "other words"})
        assert ledger.tool_calls(turn)[0].result == {"stdout": "other words"}
        ledger.substitute(result, with_event=result)
        (after,) = ledger.tool_calls(turn)
        assert after.result == before.result
        ledger.record_turn(session="picked", query="Hello", response="Hello")
        ledger.merges.cherry_pick(turn, onto="picked")
        await session.send({"stdout": "nothing to hide, is there"}, session="picked")
        assert not session.has_sent(KEY)
        assert "[secret: AWS secret access key]" in json.dumps(session.body())

    run(path, body, ASKS, SAYS, ASKS, SAYS)


class OtherRules:
    """Rules that know nothing."""

    name = "others.2"

    def secrets(self, text: str) -> Iterable[tuple[str, str]]:
        return ()


def test_another_process_says_the_same_words(path: Path) -> None:
    async def first(session: Printing) -> None:
        await session.send({"stdout": PROFILE})
        bodies.append(session.body()["messages"])

    async def second(session: Printing) -> None:
        await session.send({"stdout": "nothing to hide, is there"})
        assert session.body(0)["messages"][: len(bodies[0])] == bodies[0]
        assert not session.has_sent(KEY)

    bodies: list[Any] = []
    run(path, first, ASKS, SAYS)
    run(path, second, ASKS, SAYS)


def test_a_secret_that_was_found_once_is_also_taken_out_where_no_rule_knows_it(path: Path) -> None:
    async def body(session: Printing) -> None:
        await session.send({"stdout": PROFILE}, {"stdout": f"{KEY}\n"})
        assert len(session.server.received) == 3
        assert not session.has_sent(KEY)

    run(path, body, ASKS, ASKS, SAYS)


def test_what_a_person_says_is_no_secret_is_sent(path: Path) -> None:
    async def body(session: Printing) -> None:
        await session.send({"stdout": PROFILE})
        report = session.ledger.sync.secrets.find(scanner=scanner())
        for secret in report.secrets:
            session.ledger.sync.secrets.ignore(secret.fingerprint)
        await session.send({"stdout": PROFILE})
        told = json.dumps(session.body()["messages"])
        assert (told.count(KEY), told.count("[secret: ")) == (1, 1), "the first result is told as it was told"

    run(path, body, ASKS, SAYS, ASKS, SAYS)


@pytest.mark.parametrize("printed", [{"stdout": PROFILE}, ToolFailure("refused", f"401 for {TOKEN}")])
def test_a_result_that_cannot_be_looked_through_is_recorded_and_not_sent(
    path: Path, printed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(runs: Runs, secrets: Any) -> Any:
        raise StoreFailed("the disk cannot be read")

    async def body(session: Printing) -> None:
        turn = await session.send(printed)
        (result,) = [one.event for one in await session.ledger.events(turn) if isinstance(one.event, ToolResult)]
        assert result.secret_rules == "none"
        if isinstance(printed, ToolFailure):
            assert not isinstance(result.error, UnsetType)
            assert result.error.code == "refused"
        else:
            assert json.loads(await content(session.ledger, str(result.result))) == printed
        assert not session.has_sent(KEY, TOKEN)
        assert session.has_sent("it could not be looked through for secrets, StoreFailed")

    monkeypatch.setattr(Runs, "ignored_secrets", fails)
    run(path, body, ASKS, SAYS)


def test_without_the_extra_our_own_rules_find_what_they_know(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(folder: Path | None) -> Any:
        raise Unsupported("not installed", "install it")

    monkeypatch.setattr(scan, "load_scanner", missing)
    sent = asyncio.run(ResultSecrets().sent_instead(f"{TOKEN}\n{PROFILE}\n{PEM}", None, lambda secrets: ()))
    assert sent is not None
    assert not any(secret in sent.value for secret in (TOKEN, KEY, PEM[60:90]))
    assert sent.rules == "weft.1"


class Stubborn:
    """Rules that find something in whatever holds a word, also in what is left."""

    name = "stubborn.1"

    def __init__(self, word: str) -> None:
        self._word = word

    def secrets(self, text: str) -> Iterable[tuple[str, str]]:
        return [("word", "a credential that stands nowhere")] if self._word in text else []


def test_a_text_in_which_a_secret_cannot_be_found_again_is_left_out_whole() -> None:
    result = {"stdout": "it is hidden here", "stderr": "and plain there"}
    sent = scan.mark_secrets(result, Stubborn("hidden"), KnownSecrets(), lambda secrets: ())
    assert sent is not None
    assert sent.value == {"stdout": "[17 characters left out: [secret: word]]", "stderr": "and plain there"}
    sent = scan.mark_secrets({"hidden": 1}, Stubborn("hidden"), KnownSecrets(), lambda secrets: ())
    assert sent is not None
    assert sent.value == "[this result is left out: [secret: word]]"


def test_a_result_that_is_left_out_keeps_its_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_secrets, "load_rules", lambda folder: Stubborn("hidden"))
    images = [f"data:image/png;base64,{PNG}"]
    result = {"hidden": 1, "plain": "words that are long enough", "images": images}
    sent = asyncio.run(ResultSecrets().sent_instead(result, None, lambda secrets: ()))
    assert sent is not None
    assert sent.value == {"result": "[this result is left out: [secret: word]]", "images": images}


def test_fields_whose_names_are_secrets_of_one_kind_stay_apart() -> None:
    mark = "[secret: GitHub token]"
    result = {f"{mark} (2)": "own", TOKEN: "first", OTHER_TOKEN: "second", mark: "third"}
    sent = scan.mark_secrets(result, scan.KnownRules(None), KnownSecrets(), lambda secrets: ())
    assert sent is not None
    assert list(sent.value.values()) == ["own", "first", "second", "third"]
    assert TOKEN not in json.dumps(sent.value)


@pytest.mark.parametrize("before", ["", "key=", "my-", "x_y-", "é"])
def test_our_own_rules_know_older_keys_of_openai(before: str) -> None:
    key = f"sk-{MAKER.some(20)}T3BlbkFJ{MAKER.some(20)}"
    assert [secret for _, secret in built_in_secrets(f"{before}{key} and more")] == [key]


def test_while_one_long_result_is_looked_through_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pausing:
        name = "pausing.1"

        def secrets(self, text: str) -> Iterable[tuple[str, str]]:
            if "long" in text:
                begun.set()
                assert ended.wait(60)
            return []

    async def main() -> None:
        secrets = ResultSecrets()
        long = asyncio.ensure_future(secrets.sent_instead("a long result of a tool", None, lambda secrets: ()))
        await asyncio.to_thread(begun.wait)
        other = secrets.sent_instead("another result of a tool", None, lambda secrets: ())
        try:
            assert await asyncio.wait_for(other, 30) is None
        finally:
            ended.set()
        assert await long is None

    begun, ended = threading.Event(), threading.Event()
    monkeypatch.setattr(ledger_secrets, "load_rules", lambda folder: Pausing())
    asyncio.run(main())


def test_a_text_with_more_secrets_than_can_be_looked_for_is_left_out_whole() -> None:
    maker = Maker(3)
    tokens = [maker.github() for _ in range(3_000)]
    known = KnownSecrets()
    result = {"stdout": "\n".join(tokens), "stderr": "plain words"}
    sent = scan.mark_secrets(result, scan.KnownRules(None), known, lambda secrets: ())
    assert sent is not None
    assert sent.value == {"stdout": "[122999 characters left out: [secret: GitHub token]]", "stderr": "plain words"}
    assert len(known) == scan.KNOWN_SECRETS


def test_a_short_result_loads_no_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_secrets, "mark_secrets", None)
    assert asyncio.run(ResultSecrets().sent_instead({"rc": 0, "out": "short"}, None, lambda secrets: ())) is None


def test_sources_of_this_project_stay_as_they_are() -> None:
    texts = [path.read_text() for path in sorted(Path(scan.__file__).parent.glob("*.py"))]
    rules = scan.load_rules(None)
    sent = [scan.mark_secrets({"stdout": text}, rules, KnownSecrets(), lambda secrets: ()) for text in texts]
    assert sent == [None] * len(texts)


def test_our_own_rules_read_a_text_that_begins_keys_over_and_over_once() -> None:
    begin = "-----BEGIN " + "PRIVATE KEY-----"
    keys = ("sk-" * 40, "-sk-aT3BlbkFJ ", "sk-T3BlbkFJ ", "Secret_Access_Key:::::::::", "ghp_")
    for text in (f"Name: {begin}\n", begin, f"{begin} \n\n\t", *keys):
        assert list(built_in_secrets(text * 20_000)) == []
    assert list(built_in_secrets(f"{'sk-a-' * 200_000} T3BlbkFJ")) == []


def test_a_long_text_is_looked_through_in_pieces_without_compiling_rules_for_it() -> None:
    rules = load_scanner(Path("/nowhere/kept"))
    assert list(rules.secrets("words and more words\n" * 5_000)) == []
    assert rules._compiled is None


@pytest.mark.parametrize("before", [0, PIECE_BYTES - 20, PIECE_BYTES - PIECE_OVERLAP_BYTES, 3 * PIECE_BYTES])
def test_a_secret_is_whole_in_a_piece_wherever_it_lies(before: int) -> None:
    data = b"." * before + PEM.encode() + b"." * PIECE_BYTES
    pieces = list(pieces_of(data))
    assert any(PEM.encode() in piece for piece in pieces)
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert pieces[-1].endswith(b"." * 100)
