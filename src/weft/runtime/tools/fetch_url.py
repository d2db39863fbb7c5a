"""The tool `fetch_url`: reads one page of a granted host, as the text that a reader sees of it."""

from __future__ import annotations

import re
import time
from functools import partial
from html import unescape
from typing import Annotated, Any
from urllib.parse import urljoin

from msgspec import Meta, Struct

from weft.kernel.errors import ConnectionForbidden, InvalidInput, WeftError
from weft.kernel.permission_subjects import host_name
from weft.runtime.egress.credentials import ConnectionRules
from weft.runtime.sandbox.processes import MIB
from weft.runtime.sandbox.profiles import SandboxProfile
from weft.runtime.tool.tool_contract import CallPlan, StructTool, ToolCallContext, ToolFailure, ToolOutput, in_thread

# --- The text of an HTML page: what a reader would see of it, in lines.

_UNSEEN = frozenset("script style noscript template svg head iframe object".split())
_LINES = frozenset(
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 "
    "header hr li main nav ol p pre section table td th tr ul".split()
)
_BLANKS = re.compile(r"[ \t\r\f\v\u00a0]+")
_LONG_NUMBER = re.compile(r"&#[0-9]{8,};?")
"""The number of no character; Python refuses to read one of many digits."""
_NAME = re.compile(r"/?[A-Za-z][A-Za-z0-9]{0,30}")


class _PageText:
    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._unseen: list[str] = []
        self._is_title = False

    def tag(self, name: str) -> None:
        is_end, plain = name.startswith("/"), name.lstrip("/")
        self._is_title = plain == "title" and not is_end
        if is_end and plain in self._unseen:
            del self._unseen[self._unseen.index(plain) :]
        elif not is_end and plain in _UNSEEN and len(self._unseen) < len(_UNSEEN):
            self._unseen.append(plain)
        elif plain == "body":
            self._unseen.clear()
        if plain in _LINES:
            self.pieces.append("\n")

    def text(self, text: str) -> None:
        if self._is_title:
            self.title.append(text)
        elif not self._unseen:
            self.pieces.append(text)


def text_of_html(page: str) -> str:
    """The title, then the text; blanks are joined and empty lines left out."""
    seen, at = _PageText(), 0
    while (start := page.find("<", at)) >= 0:
        seen.text(page[at:start])
        is_comment = page.startswith("<!--", start)
        end = page.find("-->" if is_comment else ">", start)
        if end < 0:
            at = len(page)
            break
        name = _NAME.match(page, start + 1)
        if name is not None:
            seen.tag(name[0].lower())
        at = end + (3 if is_comment else 1)
    seen.text(page[at:])
    text = unescape(_LONG_NUMBER.sub("\ufffd", "".join(seen.title) + "\n" + "".join(seen.pieces)))
    lines = (_BLANKS.sub(" ", line).strip() for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


# --- The tool `fetch_url`: reads one page of a granted host, through the one place that opens connections.

FETCH_RULES = ConnectionRules(public_only=True, allow_plain=True, connect_seconds=10.0, read_seconds=30.0)
LARGEST_PAGE_BYTES = 4 * MIB
LONGEST_FETCH_SECONDS = 60.0
MOST_REDIRECTS = 5
_LONGEST_URL = 4096
_USUAL_PORTS = {"http": 80, "https": 443}
_URL = re.compile(
    r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?(/[^\s#\\]*|\?[^\s#\\]*)?(?:#\S*)?", re.I
)
_TEXTUAL = re.compile(r"text/.*|application/(.*\+)?(json|xml|javascript|x-yaml|yaml|toml|x-ndjson)|image/svg\+xml")
_DESCRIPTION = "Read a page by its URL. HTML is turned into text. Redirects to other hosts are told, not followed."


class FetchArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model asks for."""

    url: str
    raw: Annotated[bool, Meta(description="HTML as it is.")] = False


class PageUrl(Struct, frozen=True):
    """A URL in its one form."""

    scheme: str
    host: str
    port: int
    path: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _USUAL_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_url(text: str) -> PageUrl:
    """Raises ToolFailure for whatever is no plain URL of a web page: other schemes, users, odd forms of addresses."""
    parts = _URL.fullmatch(text) if len(text) <= _LONGEST_URL and text.isascii() else None
    if parts is None or not text.isprintable():
        raise ToolFailure("invalid_url", "give a plain http:// or https:// URL in ASCII, without a user in it")
    scheme, path = parts[1].lower(), parts[4] or "/"
    try:
        host = host_name(parts[2])
    except InvalidInput as error:
        raise ToolFailure("invalid_url", str(error)) from None
    port = int(parts[3]) if parts[3] else _USUAL_PORTS[scheme]
    return PageUrl(scheme, host, port, path if path.startswith("/") else f"/{path}")


_CHARSET = re.compile(
    r"utf-?8|utf-?16(le|be)?|(us-)?ascii|iso[-_]?8859[-_][0-9]{1,2}|latin-?[0-9]|(windows-|cp)[0-9]{3,5}|koi8-[ru]"
    r"|gb2312|gbk|gb18030|big5|euc-(jp|kr)|shift[-_]jis|iso-2022-jp|macintosh"
)
"""Encodings of pages. Python has others, some of which take ever longer the longer a text is."""


class FetchUrlTool(StructTool[FetchArguments]):
    """Pages of the hosts that a profile grants."""

    is_idempotent = True
    is_read_only = False  # a request carries away what its URL says

    def __init__(self, profile: SandboxProfile) -> None:
        super().__init__("fetch_url", _DESCRIPTION, FetchArguments)
        self._profile = profile

    def plan_of(self, arguments: FetchArguments) -> CallPlan:
        url = str(self._granted(arguments.url))
        exact = {"method": "GET", "url": url, "raw": arguments.raw, "profile": str(self._profile)}
        return CallPlan(tool="fetch_url", exact=exact, subjects=(url,), shown=f"GET {url}", is_outward=True)

    def _granted(self, text: str) -> PageUrl:
        url = parse_url(text)
        if not self._profile.allows_endpoint(url.host, url.port):
            details = {"host": url.host, "port": url.port, "profile": str(self._profile)}
            raise ToolFailure("host_not_granted", f"{url.host}:{url.port} is not granted", details)
        return url

    async def perform(self, plan: CallPlan, context: ToolCallContext) -> ToolOutput:
        if plan.tool != "fetch_url" or plan.exact["profile"] != str(self._profile):
            raise ToolFailure("changed", "the profile is not the one that was planned with")
        began = time.monotonic()
        result = await self._fetched(self._granted(plan.exact["url"]), plan.exact["raw"])
        return ToolOutput(result=result, duration_ms=round(1000 * (time.monotonic() - began)))

    async def _fetched(self, url: PageUrl, raw: bool) -> dict[str, Any]:
        from weft.runtime.egress.connections import fetch_page  # loads an HTTP client

        for _ in range(MOST_REDIRECTS + 1):
            try:
                page = await fetch_page(str(url), FETCH_RULES, LARGEST_PAGE_BYTES, LONGEST_FETCH_SECONDS)
            except ConnectionForbidden as error:
                raise ToolFailure("forbidden", str(error)) from None
            except WeftError as error:
                raise ToolFailure("unreachable", str(error)) from None
            if page.location is None:
                status, kind, body, is_cut = page.status, page.content_type, page.body, page.is_cut
                return await in_thread(partial(_page_result, url, status, kind, body, is_cut, raw))
            target = self._granted_redirect(url, page.location)
            if target is None:
                return {
                    "url": str(url),
                    "status": page.status,
                    "redirect": urljoin(str(url), page.location)[:_LONGEST_URL],
                }
            url = target
        raise ToolFailure("too_many_redirects", f"more than {MOST_REDIRECTS} redirects")

    def _granted_redirect(self, url: PageUrl, location: str) -> PageUrl | None:
        """Where it leads within the same host; None where it leads elsewhere."""
        target = parse_url(urljoin(str(url), location))
        is_same = target.host == url.host and (target.port == url.port or target.scheme == "https")
        if not is_same or (url.scheme == "https" and target.scheme == "http"):
            return None
        return self._granted(str(target))


def _decoded(body: bytes, charset: str, is_cut: bool) -> str | None:
    """None where the encoding is none of pages, or the bytes are not text in it."""
    if not _CHARSET.fullmatch(charset):
        return None
    try:
        return body.decode(charset, errors="replace" if is_cut else "strict")
    except (UnicodeDecodeError, LookupError):
        return None


def _page_result(url: PageUrl, status: int, content_type: str, body: bytes, is_cut: bool, raw: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"url": str(url), "status": status, "content_type": content_type, "bytes": len(body)}
    if is_cut:
        result["truncated"] = True
    kind, charset = _kind(content_type)
    if not _TEXTUAL.fullmatch(kind):
        return result
    text = _decoded(body, charset, is_cut)
    if text is None:
        text = body.decode("utf-8", errors="replace")
        result["invalid_text"] = True
    is_page = kind in ("text/html", "application/xhtml+xml") and not raw
    return {**result, "text": text_of_html(text) if is_page else text}


def _kind(content_type: str) -> tuple[str, str]:
    kind, _, parameters = content_type.lower().partition(";")
    charset = re.search(r"charset=\"?([a-z0-9_.:-]{1,40})", parameters)
    return kind.strip(), charset[1] if charset else "utf-8"
