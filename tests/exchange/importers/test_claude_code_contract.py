"""The importers' contract, for Claude Code."""

from pathlib import Path

import orjson

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.claude_code.lines import SESSION, Lines, use
from tests.exchange.fixtures.claude_code.story import story
from tests.exchange.importers.test_claude_code_printed import run, write_lines
from weft.exchange.importers.claude_code import ClaudeCode


class TestClaudeCode(OwnImporterContract):
    importer = ClaudeCode()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        branches = Lines("b4a2").user("p1", "one").answer("a1", "yes").user("p2", "two").answer("a2", use("c1"))
        branches.user("p3", "rather this", parent="a1").answer("a3", "no").answer("a4", "yes", id="m4", parent="p3")
        agent = Lines(isSidechain=True, agentId="a1b2").user("s1", "look").answer("s2", use("d1")).result("s3", "d1")
        found = []
        for name, lines in ((SESSION, story()), ("b4a2", branches), ("agent-a1b2", agent)):
            path = folder / f"{name}.jsonl"
            path.write_bytes(lines.bytes())
            found.append(path)
        (folder / "agent-a1b2.meta.json").write_bytes(orjson.dumps({"agentType": "Explore", "description": "Look"}))
        return found


class TestPrintedByClaudeCode(OwnImporterContract):
    importer = ClaudeCode()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        return [write_lines(folder, run())]
