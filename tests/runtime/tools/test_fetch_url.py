"""The tool that reads pages: granted hosts, text out of HTML, a bound on size, redirects that are told."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.runtime.fake_internet import PUBLIC, FakeInternet, near_names
from tests.runtime.scripted import Received, scripted
from weft.runtime.sandbox.profiles import WORKSPACE_PROFILE, SandboxProfile, parse_profile
from weft.runtime.tool.tool_contract import ToolCallContext, ToolFailure
from weft.runtime.tools import fetch_url
from weft.runtime.tools.fetch_url import FetchUrlTool

CONTEXT = ToolCallContext(turn="turn", call="call")
HOSTS = parse_profile("network:public.example,public.example:8080,other.example")
PAGE = """<!doctype html><html><head><title>The  title</title><style>p { color: red }</style></head><body>
<script>alert("no")</script><h1>Heading</h1><p>One&nbsp;&amp;   two<br>three<!-- not this --></p>
<ul><li>first<li>second</ul><template>never</template><unclosed>end"""


def reply(
    body: bytes | str, content_type: str = "text/html; charset=utf-8", status: str = "200 OK", more: str = ""
) -> Any:
    data = body if isinstance(body, bytes) else body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(data)}\r\n{more}\r\n"
    return [head.encode() + data]


def fetched(
    monkeypatch: pytest.MonkeyPatch, arguments: Any, *scripts: Any, profile: SandboxProfile = HOSTS
) -> tuple[Any, list[Received], list[tuple[str, int]]]:
    async def run() -> tuple[Any, list[Received], list[tuple[str, int]]]:
        async with scripted(*scripts) as server:
            names = {**near_names(), "other.example": [[PUBLIC]]}
            internet = FakeInternet(monkeypatch, names, int(server.url.rpartition(":")[2]))
            return await FetchUrlTool(profile).invoke(arguments, CONTEXT), server.received, internet.connected

    return asyncio.run(run())


def failure(monkeypatch: pytest.MonkeyPatch, arguments: Any, *scripts: Any, profile: SandboxProfile = HOSTS) -> str:
    with pytest.raises(ToolFailure) as raised:
        fetched(monkeypatch, arguments, *(scripts or [reply("")]), profile=profile)
    return raised.value.code


def test_a_page_is_told_as_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    result, received, _ = fetched(monkeypatch, {"url": "HTTP://Public.Example/a?b=c#d"}, reply(PAGE))
    assert result == {
        "url": "http://public.example/a?b=c",
        "status": 200,
        "content_type": "text/html; charset=utf-8",
        "bytes": len(PAGE),
        "text": "The title\nHeading\nOne & two\nthree\nfirst\nsecond\nend",
    }
    assert received[0].path == "/a?b=c"
    assert {"authorization", "cookie"}.isdisjoint(received[0].headers)


def test_raw_pages_other_texts_and_what_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    url = {"url": "http://public.example/"}
    assert fetched(monkeypatch, {**url, "raw": True}, reply(PAGE))[0]["text"] == PAGE
    assert fetched(monkeypatch, url, reply("[1]", "application/json"))[0]["text"] == "[1]"
    assert "text" not in fetched(monkeypatch, url, reply(b"\x89PNG", "image/png"))[0]
    broken = fetched(monkeypatch, url, reply(b"a\xffb", "text/plain"))[0]
    assert (broken["text"], broken["invalid_text"]) == ("a\ufffdb", True)
    assert fetched(monkeypatch, url, reply("gone", "text/plain", "404 Not Found"))[0]["status"] == 404


def test_a_page_says_its_encoding_but_not_which_decoder_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    url = {"url": "http://public.example/"}
    latin = fetched(monkeypatch, url, reply("ä".encode("latin-1"), "text/plain; charset=ISO-8859-1"))[0]
    assert (latin["text"], "invalid_text" in latin) == ("ä", False)
    for charset in ("punycode", "idna", "unicode_escape", "utf-7"):
        odd = fetched(monkeypatch, url, reply("a+AGE-\\x62-", f"text/plain; charset={charset}"))[0]
        assert (odd["text"], odd["invalid_text"]) == ("a+AGE-\\x62-", True)


def test_a_page_is_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_url, "LARGEST_PAGE_BYTES", 1000)
    result, _, _ = fetched(monkeypatch, {"url": "http://public.example/"}, reply("x" * 5000, "text/plain"))
    assert (result["text"], result["truncated"]) == ("x" * 1000, True)


def test_a_redirect_is_followed_within_a_host_and_told_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    url = {"url": "http://public.example/"}
    near = reply("", status="302 Found", more="Location: /next\r\n")
    result, received, _ = fetched(monkeypatch, url, near, reply("here", "text/plain"))
    assert (result["url"], result["text"]) == ("http://public.example/next", "here")
    assert [one.path for one in received] == ["/", "/next"]
    far = reply("", status="302 Found", more="Location: http://other.example/x\r\n")
    result, received, _ = fetched(monkeypatch, url, far)
    assert result == {"url": "http://public.example/", "status": 302, "redirect": "http://other.example/x"}
    assert len(received) == 1
    for target in ("http://127.0.0.1/", "http://169.254.169.254/latest", "http://private.example/"):
        result, _, connected = fetched(monkeypatch, url, reply("", status="302 Found", more=f"Location: {target}\r\n"))
        assert result["redirect"] == target
        assert connected == [(PUBLIC, 80)]
    assert failure(monkeypatch, url, near) == "too_many_redirects"
    odd = reply("", status="302 Found", more="Location: file:///etc/passwd\r\n")
    assert failure(monkeypatch, url, odd) == "invalid_url"


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://nobody.example/", "host_not_granted"),
        ("http://public.example:22/", "host_not_granted"),
        ("file:///etc/passwd", "invalid_url"),
        ("http://ada@public.example/", "invalid_url"),
        ("http://public.example/\n", "invalid_url"),
        ("http://public.example/" + "x" * 5000, "invalid_url"),
        ("http://127.0.0.1/", "host_not_granted"),
    ],
)
def test_a_url_that_is_not_granted_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, url: str, code: str
) -> None:
    assert failure(monkeypatch, {"url": url}) == code


def test_without_granted_hosts_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure(monkeypatch, {"url": "http://public.example/"}, profile=WORKSPACE_PROFILE) == "host_not_granted"
    near = parse_profile("none", granted_by="human:ada")
    assert failure(monkeypatch, {"url": "http://127.0.0.1/"}, profile=near) == "forbidden"
    assert failure(monkeypatch, {"url": "http://private.example/"}, profile=near) == "forbidden"


@pytest.mark.parametrize("arguments", [None, {}, {"url": 1}, {"url": "http://a/", "more": 1}])
def test_arguments_that_cannot_be_meant_are_refused(monkeypatch: pytest.MonkeyPatch, arguments: Any) -> None:
    assert failure(monkeypatch, arguments) == "invalid_arguments"


def test_the_plan_names_the_url_and_holds_under_its_profile_alone() -> None:
    plan = asyncio.run(FetchUrlTool(HOSTS).plan({"url": "https://PUBLIC.example"}, CONTEXT))
    assert plan.subjects == ("https://public.example/",)
    assert plan.exact == {"method": "GET", "url": "https://public.example/", "raw": False, "profile": str(HOSTS)}
    with pytest.raises(ToolFailure) as raised:
        asyncio.run(FetchUrlTool(parse_profile("network:*")).perform(plan, CONTEXT))
    assert raised.value.code == "changed"
