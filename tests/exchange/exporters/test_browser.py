"""Exported pages in a real browser: nothing runs but their own script, nothing is fetched, and search finds."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import weft
from tests.exchange.exporters.hostile import payloads
from tests.sizes import share
from weft import ImagePart, Ledger, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from weft.exchange.exporters.export import export
from weft.exchange.exporters.testing import PIXEL, record_history
from weft.kernel.errors import InvalidInput
from weft.ledger.model import FileNote

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

TAGS = set(
    "html head meta title link style body a header h1 h2 h3 h4 h5 h6 p form label input button output div details"
    " summary kbd nav ul ol li select option main section article code pre span small blockquote table thead"
    " tbody tr th td em strong s hr br img script".split()
)
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="[^"]*">')


class Seen:
    """What a page did while it was looked at."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.told: list[str] = []


@contextmanager
def looking_at(browser: Browser, path: Path, **options: Any) -> Iterator[tuple[Page, Seen]]:
    context = browser.new_context(**options)
    page, seen = context.new_page(), Seen()
    page.on("request", lambda request: seen.requests.append(request.url))
    page.on("console", lambda message: seen.told.append(message.text))
    page.on("pageerror", lambda error: seen.told.append(str(error)))
    page.on("dialog", lambda dialog: seen.told.append(dialog.message))
    try:
        page.goto(path.as_uri(), wait_until="load")
        yield page, seen
        assert [url for url in seen.requests if not url.startswith("data:")] == [path.as_uri()]
        assert seen.told == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, list[str]]]:
    """Somebody who waits for requests; there must be none."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing is to be printed."""

    found = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=found.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{found.server_port}", asked
    found.shutdown()
    found.server_close()
    thread.join()


def attack(ledger: Ledger, payload: str, number: int) -> None:
    """One turn with the payload in every field there is."""
    said = [
        TextPart(payload), ReasoningPart(payload), ImagePart(payload), ImagePart(f"data:image/{payload};base64,AAAA"),
        ToolUsePart(payload, payload, {payload: payload}), ToolResultPart(payload, payload, True),
        ToolResultPart("x", [{"type": "text", "text": payload}, {"type": "image", "source": {"url": payload}}]),
        TextPart(f"```{payload}\n{payload}\n```"),
    ]  # fmt: skip
    calls = [
        {"id": payload, "name": payload, "arguments": {"command": payload, payload: [payload]}, "result": payload},
        {"id": "e", "name": "Edit", "arguments": {"path": payload, "old_string": payload, "new_string": "x" + payload}},
        {"id": "p", "name": "apply_patch", "arguments": payload, "result": {"diff": payload}, "server": payload},
        {"id": "f", "name": "Bash", "arguments": payload, "error": {"message": payload, "code": payload}},
    ]
    file = FileNote(kind="read", path=payload)  # type: ignore[arg-type]
    ledger.record_turn(
        session="main",
        system=payload,
        query={"content": said, "files": [file]},
        response={"role": "assistant", "content": said, "model": payload},
        tool_calls=calls,
        model=payload,
        provider=payload,
        workspace=payload,
        error=payload if number % 3 == 2 else None,
    )
    with suppress(InvalidInput):  # some are no labels
        ledger.fork("main", label=payload)
        ledger.record_turn(session=payload, query=payload, response=payload)
    if number % 10 == 0:
        ledger.compactions.record(session="main", summary=payload, model=payload)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, server: tuple[str, list[str]]) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    words = list(payloads(server[0]))
    assert len(words) >= 200
    with weft.open(":memory:") as ledger:
        for number, payload in enumerate(words):
            attack(ledger, payload, number)
        export(ledger, "main", "html", folder / "page.html", trees=True, title=words[3] + words[4])
    text = (folder / "page.html").read_text()
    assert POLICY.search(text)
    (folder / "bare.html").write_text(POLICY.sub("", text, count=1))
    return folder


@pytest.mark.slow("starts Chromium")
@pytest.mark.parametrize("name", share(["page.html", "bare.html"], test=1))
def test_hostile_words_run_nothing_and_ask_nobody(
    browser: Browser, hostile: Path, server: tuple[str, list[str]], name: str
) -> None:
    """With the page's policy and without it: what is written is harmless by itself, too."""
    with looking_at(browser, hostile / name) as (page, _):
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        page.keyboard.press("f")
        assert page.evaluate("window.pwned") is None
        found = page.evaluate(
            """() => {
              const tags = new Set(), on = [], links = new Set(), pictures = new Set();
              for (const element of document.querySelectorAll("*")) {
                tags.add(element.localName);
                for (const {name, value} of element.attributes) {
                  if (name.startsWith("on") || name === "style") on.push(name);
                  if (["href", "action", "xlink:href"].includes(name)) links.add(value);
                  if (["src", "srcset", "data", "background", "poster"].includes(name)) pictures.add(value);
                }
              }
              return {tags: [...tags], on, links: [...links], pictures: [...pictures],
                scripts: document.scripts.length, turns: document.querySelectorAll("article.turn").length};
            }"""
        )
    assert set(found["tags"]) <= TAGS
    assert (found["on"], found["scripts"]) == ([], 1)
    assert found["turns"] > 200
    assert all(re.match(r"#t-|#said$|https?://|mailto:|data:,$", link) for link in found["links"]), found["links"]
    assert all(re.match(r"data:image/(png|jpeg|gif|webp|bmp);base64,", one) for one in found["pictures"])
    assert server[1] == []


@pytest.mark.slow("renders 5,000 messages")
def test_a_thread_of_5000_messages_is_read_and_searched(browser: Browser, tmp_path: Path) -> None:
    with weft.open(":memory:") as ledger:
        for number in range(100):
            asked = [{"content": f"question {number}-{i}"} for i in range(25)]
            answered = [{"content": f"answer {number}-{i} **of** many"} for i in range(25)]
            ledger.record_turn(session="main", query=asked, response=answered)
        done = export(ledger, "main", "html", tmp_path / "long.html")
    assert done.messages == 5000
    with looking_at(browser, tmp_path / "long.html") as (page, _):
        assert page.locator(".message").count() == 5000
        page.keyboard.press("/")
        page.keyboard.type("ANSWER 77-13 of")
        page.keyboard.press("Enter")
        assert page.locator("#found").text_content() == "1 of 1"
        hit = page.locator(".hit.now")
        assert "answer 77-13 of many" in (hit.text_content() or "")
        page.wait_for_function("document.querySelector('.hit.now').getBoundingClientRect().top < innerHeight")
        page.keyboard.press("Escape")
        assert page.locator("#found").text_content() == ""
        assert page.locator(".hit").count() == 0


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tree") / "tree.html"
    with weft.open(":memory:") as ledger:
        record_history(ledger)
        export(ledger, ["main", "beside"], "html", path)
    return path


def test_a_hit_in_a_folded_call_is_unfolded(browser: Browser, tree: Path) -> None:
    with looking_at(browser, tree) as (page, _):
        fold = page.locator("details.call", has_text="listed").first
        assert fold.get_attribute("open") is None
        page.fill("#words", "listed")
        page.press("#words", "Enter")
        assert fold.get_attribute("open") is not None
        page.check("#only")
        shown = page.locator(".turn:visible")
        assert shown.count() == 1


def test_one_thread_of_several_can_be_read_alone(browser: Browser, tree: Path) -> None:
    with looking_at(browser, tree) as (page, _):
        for words in ("asked beside", "asked last"):
            assert page.get_by_text(words, exact=True).first.is_visible()
        page.select_option("#thread", label="the thread of beside")
        assert page.get_by_text("asked beside", exact=True).first.is_visible()
        assert not page.locator(".message", has_text="asked last").is_visible()
        assert page.locator(".message", has_text="asked first").is_visible()
        link = page.locator(".branches a").first
        assert link.get_attribute("href")
        page.select_option("#thread", value="")
        link.click()
        target = page.evaluate("document.querySelector(':target').id")
        assert f"#{target}" == link.get_attribute("href")


def test_everything_is_reached_by_keyboard(browser: Browser, tree: Path) -> None:
    with looking_at(browser, tree) as (page, _):
        reached = set()
        for _ in range(60):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id || document.activeElement.localName"))
        assert {"words", "next", "previous", "only", "unfold", "theme", "thread", "a", "summary"} <= reached
        page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
        for key, turn in (("j", "Turn 1"), ("j", "Turn 2"), ("j", "Turn 3"), ("k", "Turn 2")):
            page.keyboard.press(key)
            assert page.evaluate("document.activeElement.textContent") == turn
        page.keyboard.press("f")
        assert page.locator("details.block:not([open])").count() == 0


def test_light_dark_and_paper(browser: Browser, tree: Path) -> None:
    def ground(page: Page) -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    with looking_at(browser, tree, color_scheme="dark") as (page, _):
        dark = ground(page)
        page.click("#theme")
        light = ground(page)
        assert dark != light
        page.click("#theme")
        assert ground(page) == dark
        page.set_viewport_size({"width": 380, "height": 700})
        page.keyboard.press("f")
        assert page.evaluate("document.documentElement.scrollWidth") == 380
        page.keyboard.press("f")
        page.emulate_media(media="print")
        assert not page.locator("#search").is_visible()
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert page.locator("details.block:not([open])").count() == 0
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.locator("details.block:not([open])").count() > 0


def test_it_can_be_read_without_scripts(browser: Browser, tree: Path) -> None:
    with looking_at(browser, tree, java_script_enabled=False) as (page, _):
        assert not page.locator("#search").is_visible()
        page.locator("details.steps > summary").first.click()
        page.locator("details.thinking > summary").first.click()
        assert page.locator("details.thinking .text", has_text="pondering").first.is_visible()


@pytest.mark.slow("Chromium ends with it")
def test_an_image_of_pixels_is_shown(browser: Browser, tmp_path: Path) -> None:
    with weft.open(":memory:") as ledger:
        ledger.record_turn(session="main", query={"content": [ImagePart(PIXEL)]}, response="seen")
        export(ledger, "main", "html", tmp_path / "image.html")
    with looking_at(browser, tmp_path / "image.html") as (page, _):
        assert page.evaluate("document.querySelector('main img').naturalWidth") == 1
