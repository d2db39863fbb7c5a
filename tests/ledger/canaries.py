"""A canary in every kind of place, and a search of every file of a ledger for it."""

import base64
from contextlib import suppress
from pathlib import Path
from typing import Any

import zstandard

from weft import Ledger

CANARY = "canary-7f3a9c51"
LARGE = 3 * 1024 * 1024 + 17


def told(where: str) -> str:
    return f"{CANARY} in the {where}"


def record_everywhere(ledger: Ledger, session: str = "main") -> str:
    """One turn with the canary in every argument that takes words; returns its id."""
    image = {"type": "image_url", "url": f"data:image/png;base64,{CANARY}", "detail": told("detail")}
    block = {"content": told("code"), "language": told("language"), "path": told("code path")}
    query = {
        "content": [
            {"type": "text", "text": told("query")},
            image,
            {"type": "tool_use", "id": told("id"), "name": told("name"), "input": {CANARY: told("input")}},
            {"type": "tool_result", "tool_call_id": told("call"), "output": told("output")},
        ],
        "context": {"rules": told("context")},
        "metadata": {"note": told("metadata")},
        "files": [{"kind": "read", "path": f"/home/{CANARY}/x.py"}],
        "lints": [{"path": told("lint path"), "message": told("lint"), "source": told("linter")}],
    }
    answer: dict[str, Any] = {
        "content": [{"type": "reasoning", "text": told("thinking")}, {"type": "text", "text": "ok"}]
    }
    derived = {"content": f"```{CANARY}\n{told('derived code')}\n```\nand more", "metadata": told("answer")}
    streamed = ledger.put_content(f"{CANARY} {i} ".encode() * 64 for i in range(LARGE // 1200))
    with ledger.begin_turn(
        session=session,
        workspace=f"/srv/{CANARY}",
        permissions_granted={"allow": told("permission")},
        thinking_config={"how": told("thinking config")},
        effective_config={"all": told("config")},
        source_event_id=told("source event"),
        toolset=told("toolset"),
        tools_available=[told("tool"), "read"],
    ) as turn:
        turn.message({"role": "system", "content": told("system prompt")})
        turn.message(query)
        turn.message({"role": "user", "content": streamed})
        turn.message({"role": "user", "content": CANARY + "\0\ud800 odd"})
        turn.request(told("model"), provider=told("provider"), params={"p": told("params")}, tools_spec=[told("spec")])
        call = turn.tool_call(told("tool"), {"path": told("argument")}, id=told("call id"), server=told("server"))
        turn.tool_result(call, {"out": told("result")})
        failed = turn.tool_call("t", told("plain argument"))
        turn.tool_result(failed, error={"message": told("error"), "code": told("code"), "details": told("details")})
        turn.response({**answer, "codeblocks": [block]}, finish_reason=told("finish"))
        turn.response(derived)
        turn.tool_call("slow", id="late")
        turn.interrupt("timeout")
    ledger.record_late_result(turn.id, "late", told("late result"))
    ledger.upkeep.catch_up()
    return str(turn.id)


def spellings(canary: str = CANARY) -> dict[str, bytes]:
    """The canary as files may hold it."""
    found = {"utf-8": canary.encode(), "utf-16-le": canary.encode("utf-16-le"), "utf-16-be": canary.encode("utf-16-be")}
    found["hex"] = canary.encode().hex().encode()
    for shift in range(3):
        padded = base64.b64encode(b"x" * shift + canary.encode())
        found[f"base64 at {shift}"] = padded[4:-4]
    return found


def frames(data: bytes) -> list[bytes]:
    """Every zstd frame in these bytes, unpacked."""
    found, at = [], data.find(b"\x28\xb5\x2f\xfd")
    while at >= 0:
        with suppress(zstandard.ZstdError):  # not a frame, or one that lies in pages that are not neighbours
            found.append(zstandard.ZstdDecompressor().decompressobj().decompress(data[at:]))
        at = data.find(b"\x28\xb5\x2f\xfd", at + 1)
    return found


def files_with_canary(folder: Path, *aside: Path, canary: str = CANARY) -> list[str]:
    """Where the canary is found, in any spelling, in any file of a folder but those aside."""
    found = []
    for file in sorted(folder.rglob("*")):
        if file.is_file() and file not in aside:
            data = file.read_bytes()
            for piece in (data, *frames(data)):
                found += [f"{file.name}: {name}" for name, spelled in spellings(canary).items() if spelled in piece]
    return found
