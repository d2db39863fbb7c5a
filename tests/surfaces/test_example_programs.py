"""The program of the page, and the same one with two other libraries: each is run as a stranger would run it, against
one server that refuses what the real one refuses and answers by what it is asked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.inference.strict_providers import StrictServer
from tests.runtime.scripted import CHAT, Script
from tests.surfaces.serving import serving
from weft.runtime.inference.model_requests import Dialect

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = ("journey_weft.py", "journey_pydantic_ai.py", "journey_openai_agents.py")
PROGRAM = re.compile(r"^<!-- program -->\n+```python\n(.*?)^```$", re.M | re.S)
REPORT = {"city": "Bergen", "degrees": 9}
Body = dict[str, Any]


def answer_of(body: Body) -> Body:
    """What the model says: to a result, of that; to a question, with a call; to a wish for a report, one."""
    last = body["messages"][-1]
    offered = {tool["function"]["name"] for tool in body.get("tools") or ()}
    if last["role"] == "tool":
        return {"content": "It is booked." if text_of(last).startswith("booked") else "It rains, at 9 degrees."}
    if "report" in text_of(last):
        return (
            calling("final_result", REPORT) if "final_result" in offered else {"content": json.dumps(report_of(body))}
        )
    name = "book" if "book" in text_of(last) else "weather"
    assert name in offered
    return calling(name, {"city": "Bergen"})


def report_of(body: Body) -> Body:
    """A report, in a field of its own where the schema that is sent along wants it so."""
    schema = ((body.get("response_format") or {}).get("json_schema") or {}).get("schema") or {}
    return {"response": REPORT} if "response" in schema.get("properties", ()) else REPORT


def text_of(message: Body) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def calling(name: str, arguments: Body) -> Body:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": None, "tool_calls": [{"id": f"call_{name}", "type": "function", "function": function}]}


def run_program(name: str, folder: Path) -> tuple[str, StrictServer]:
    """What the program prints, and what it asked."""
    strict = StrictServer(Dialect.OPENAI_CHAT)

    def script(body: Body) -> Script:
        message = {"role": "assistant", **answer_of(body)}
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        strict.answers = [(200, {**CHAT, "choices": [{"index": 0, "finish_reason": finish, "message": message}]})]
        return strict.script(body, is_streamed=body.get("stream", False))

    with serving([]) as server:
        server.script_of = script
        variables = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        variables |= {"HOME": str(folder), "MODEL_URL": server.url, "MODEL_KEY": "key-of-the-example"}
        command = [sys.executable, str(EXAMPLES / name)]
        done = subprocess.run(
            command, check=False, cwd=folder, env=variables, capture_output=True, text=True, timeout=240
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert {request.headers["authorization"] for request in server.received} == {"Bearer key-of-the-example"}
    return done.stdout, strict


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_does_the_same_with_each_library(name: str, tmp_path: Path) -> None:
    printed, strict = run_program(name, tmp_path)
    assert strict.refused == []
    assert printed == "Report(city='Bergen', degrees=9) 50\nIt is booked.\n"
    report = next(body for body in strict.bodies if "report" in text_of(body["messages"][-1]))
    assert [text_of(message) for message in report["messages"] if message["role"] == "tool"][:1] == [
        "rain in Bergen, 9 degrees"
    ]
    forked = [message for body in strict.bodies[-2:] for message in body["messages"] if message["role"] == "user"]
    assert [text_of(message) for message in forked] == ["What is it like in Bergen?", "Then book it"] * 2


def test_our_program_can_be_run_twice(tmp_path: Path) -> None:
    assert run_program(PROGRAMS[0], tmp_path)[0] == run_program(PROGRAMS[0], tmp_path)[0]


def test_the_program_of_the_page_is_the_one_that_is_run() -> None:
    (program,) = PROGRAM.findall((ROOT / "docs" / "python.md").read_text())
    whole = (EXAMPLES / PROGRAMS[0]).read_text()
    assert program == whole[whole.index("import asyncio") :]
    assert len([line for line in program.splitlines() if line.strip()]) <= 40
