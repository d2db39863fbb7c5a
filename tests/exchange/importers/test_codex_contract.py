"""The contract of importers, kept by Codex's."""

from __future__ import annotations

import shutil
from pathlib import Path

import orjson

import weft
from tests.exchange.contracts import OwnImporterContract
from tests.exchange.fixtures.codex.rollouts import (
    OTHER,
    SESSION,
    Line,
    asked,
    call,
    complete,
    context,
    event,
    line,
    meta,
    output,
    said,
    started,
    thought,
    tokens,
    told,
    turn_id,
    user,
)
from weft.exchange.importers.codex import Codex

FIXTURES = Path(__file__).parents[1] / "fixtures" / "codex"


def busy() -> list[Line]:
    one, two, three, four = (turn_id(number) for number in range(1, 5))
    return [
        meta(git={"branch": "main"}),
        *asked(one, "hello", "hi"),
        started(two),
        context(two),
        user("do it"),
        told("do it"),
        thought("hm", id="rs_1"),
        call("call_1", "spawn_agent", id="fc_1"),
        event("sub_agent_activity", event_id="call_1", agent_thread_id=OTHER, agent_path="/lead/x", kind="started"),
        output("call_1", "failed to start"),
        tokens(100, given=80, cached=10, out=20),
        line("compacted", {"message": "much was done", "window_id": "019f0000-1002-7000-8000-00000000aaaa"}),
        event("context_compacted"),
        said("done", id="msg_1"),
        tokens(150, given=40, out=10),
        complete(two),
        *asked(three, "again", "no"),
        event("thread_rolled_back", num_turns=1),
        *asked(four, "otherwise", "yes"),
    ]


def fork() -> list[Line]:
    own = turn_id(9, 0x3000)
    return [meta(OTHER, forked_from_id=SESSION), *busy(), *asked(own, "what if", "then")]


class TestCodex(OwnImporterContract):
    importer = Codex()
    open = staticmethod(weft.open)

    def samples(self, folder: Path) -> list[Path]:
        made = []
        for name, lines in ((f"rollout-{SESSION}.jsonl", busy()), (f"rollout-{OTHER}.jsonl", fork())):
            made.append(folder / name)
            made[-1].write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in lines))
        return [*made, Path(shutil.copy(FIXTURES / "generation_b.jsonl", folder))]


class TestGenerationA(OwnImporterContract):
    importer = Codex()
    open = staticmethod(weft.open)
    rewrites_document = True

    def samples(self, folder: Path) -> list[Path]:
        return [Path(shutil.copy(FIXTURES / "generation_a.json", folder))]
