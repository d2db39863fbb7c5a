"""What sessions of other tools cost, counted from their raw files without anything of Weft.

A second opinion for the importers and `weft usage`: small, slow and plain. Each function takes files of one origin and
gives tokens by model and kind. Kinds are disjoint but for reasoning, which lies inside output, and for what is written
to the cache for an hour, which lies inside what is written to it.
"""

import json
import re
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Kinds = dict[str, int]
Counts = dict[str, Kinds]
KINDS = ("input", "output", "cached", "cache_write", "cache_write_1h", "reasoning")
INSIDE = ("cache_write_1h", "reasoning")
"""Parts of other kinds."""
WITHOUT_DURATIONS = tuple(kind for kind in KINDS if kind != "cache_write_1h")
"""What an origin counts that does not tell how long its caches are kept."""
UNKNOWN = "(unknown)"


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """Every JSON object of a file of lines; two glued on one line are two, a torn last line is not there yet."""
    decoder = json.JSONDecoder()
    for line in path.read_bytes().decode("utf-8", "replace").split("\n"):
        rest = line.strip().lstrip("\ufeff")
        while rest:
            try:
                value, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                break
            if isinstance(value, dict):
                yield value
            rest = rest[end:].lstrip()


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def number(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def add(counts: Counts, model: Any, tokens: Kinds) -> None:
    kinds = counts.setdefault(model if isinstance(model, str) and model else UNKNOWN, dict.fromkeys(KINDS, 0))
    for kind in KINDS:
        kinds[kind] += tokens.get(kind, 0)


def without_empty(counts: Counts) -> Counts:
    return {model: kinds for model, kinds in sorted(counts.items()) if any(kinds.values())}


def total(counts: Counts) -> int:
    return sum(kinds[kind] for kinds in counts.values() for kind in KINDS if kind not in INSIDE)


# --- Claude Code: a response is many lines, in perhaps many files, under one message id ------------------------------


Claude = dict[str, tuple[str, Any, Kinds]]
"""By message id: the time of its earliest line, that line's model, the largest numbers."""


def claude_code(paths: Iterable[Path]) -> Counts:
    """Of each message id the largest number of each kind, once over all files."""
    counts: Counts = {}
    for _, model, kinds in claude_responses(paths):
        add(counts, model, kinds)
    return without_empty(counts)


def claude_responses(paths: Iterable[Path]) -> list[tuple[str, Any, Kinds]]:
    """Time, model and tokens of each."""
    found: Claude = {}
    for path in paths:
        for record in objects(path):
            for line in (record, as_dict(as_dict(record.get("data")).get("message"))):
                _claude_line(line, found)
    return list(found.values())


def _claude_line(record: dict[str, Any], found: Claude) -> None:
    message = as_dict(record.get("message"))
    usage, model = message.get("usage"), message.get("model") or record.get("model")
    if record.get("type") != "assistant" or not isinstance(usage, dict) or model == "<synthetic>":
        return
    key = str(message.get("id") or record.get("uuid") or f"nameless {len(found)}")
    when = str(record.get("timestamp") or "9")
    details = as_dict(usage.get("output_tokens_details"))
    told = {
        "input": number(usage.get("input_tokens")),
        "output": number(usage.get("output_tokens")),
        "cached": number(usage.get("cache_read_input_tokens")),
        "cache_write": number(usage.get("cache_creation_input_tokens")),
        "cache_write_1h": number(as_dict(usage.get("cache_creation")).get("ephemeral_1h_input_tokens")),
        "reasoning": number(details.get("thinking_tokens", details.get("reasoning_tokens"))),
    }
    first, known, kinds = found.get(key, (when, model, told))
    if when < first:
        first, known = when, model
    found[key] = (first, known or model, {kind: max(told[kind], kinds[kind]) for kind in KINDS})


# --- Codex: reports after each request; a spawned or forked session begins with a copy of its parent's ---------------


def codex(paths: Iterable[Path]) -> Counts:
    """Each report of a last request once; one that repeats the total is none, nor is one of a copied turn."""
    files = [list(objects(path)) for path in paths]
    families = _families(files)
    counts: Counts = {}
    seen: set[tuple[Any, ...]] = set()
    for number_of_file, records in enumerate(files):
        for turn, model, total_so_far, last in _codex_reports(records):
            key = (families[number_of_file], turn, total_so_far, tuple(sorted(last.items())))
            if key not in seen:
                seen.add(key)
                add(counts, model, last)
    return without_empty(counts)


def _families(files: list[list[dict[str, Any]]]) -> list[str]:
    """Files that name the same session ids belong together: a copy, a resumed session, a child with its parent."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    found = []
    for i, records in enumerate(files):
        ids = [f"file {i}"]
        for record in records:
            if record.get("type") == "session_meta":
                meta = as_dict(record.get("payload"))
                ids += [str(meta[name]) for name in ("id", "forked_from_id") if meta.get(name)]
        for name in ids[1:]:
            parent[root(name)] = root(ids[0])
        found.append(ids[0])
    return [root(name) for name in found]


def _codex_reports(records: list[dict[str, Any]]) -> Iterator[tuple[Any, Any, tuple[Any, ...], Kinds]]:
    turn = model = before = None
    for record in records:
        payload = as_dict(record.get("payload"))
        kind = payload.get("type")
        if record.get("type") == "turn_context":
            model, turn = payload.get("model") or model, payload.get("turn_id") or turn
        elif kind == "task_started":
            turn = payload.get("turn_id") or turn
        elif record.get("type") == "event_msg" and kind == "token_count":
            info = as_dict(payload.get("info"))
            totals = as_dict(info.get("total_token_usage"))
            so_far = tuple(sorted((name, count) for name, count in totals.items() if type(count) is int))
            if not isinstance(info.get("last_token_usage"), dict) or (so_far and so_far == before):
                continue
            before = so_far
            yield turn, model, so_far, _codex_kinds(info["last_token_usage"])


def _codex_kinds(last: dict[str, Any]) -> Kinds:
    """The cache lies inside the input here."""
    cached, written = number(last.get("cached_input_tokens")), number(last.get("cache_write_input_tokens"))
    return {
        "input": max(number(last.get("input_tokens")) - cached - written, 0),
        "output": number(last.get("output_tokens")),
        "cached": cached,
        "cache_write": written,
        "reasoning": number(last.get("reasoning_output_tokens")),
    }


# --- opencode: exports, the folder of older versions, the database of newer ones -------------------------------------


def opencode(paths: Iterable[Path]) -> Counts:
    """The tokens of each assistant message; of one with several steps, the sum over these."""
    found: dict[str, tuple[Any, Kinds]] = {}
    for path in paths:
        for message, parts in _opencode_messages(path):
            if message.get("role") != "assistant":
                continue
            id = message.get("id")
            known = isinstance(id, str) and id != "REDACTED"
            steps = [part["tokens"] for part in parts if part.get("type") == "step-finish" and part.get("tokens")]
            told = [_opencode_kinds(as_dict(step)) for step in (steps if len(steps) > 1 else [message.get("tokens")])]
            kinds = {kind: sum(each.get(kind, 0) for each in told) for kind in KINDS}
            key = str(id) if known else f"nameless {len(found)}"
            before = found.get(key, (None, dict.fromkeys(KINDS, 0)))[1]
            found[key] = (message.get("modelID"), {kind: max(kinds[kind], before[kind]) for kind in KINDS})
    counts: Counts = {}
    for model, kinds in found.values():
        add(counts, model, kinds)
    return without_empty(counts)


def _opencode_messages(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if path.suffix == ".db":
        yield from _opencode_rows(path)
        return
    try:
        value = as_dict(json.loads(path.read_bytes()))
    except ValueError:
        return
    if isinstance(value.get("messages"), list):
        for message in value["messages"]:
            parts = as_dict(message).get("parts")
            yield as_dict(as_dict(message).get("info")), [as_dict(part) for part in parts or ()]
    elif path.parent.parent.name == "message":
        folder = path.parents[2] / "part" / path.stem
        yield value, [as_dict(json.loads(part.read_bytes())) for part in sorted(folder.glob("*.json"))]


def _opencode_rows(path: Path) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        parts: dict[str, list[dict[str, Any]]] = {}
        if "part" in tables:
            for message, data in connection.execute("SELECT message_id, data FROM part ORDER BY id"):
                parts.setdefault(message, []).append(as_dict(json.loads(data)))
        if "message" in tables:
            for id, data in connection.execute("SELECT id, data FROM message ORDER BY id"):
                yield {**as_dict(json.loads(data)), "id": id}, parts.get(id, [])
    finally:
        connection.close()


def _opencode_kinds(tokens: dict[str, Any]) -> Kinds:
    """Some providers' reasoning lies inside the output, others' beside it: the total tells, where there is one."""
    cache = as_dict(tokens.get("cache"))
    given, cached, written = number(tokens.get("input")), number(cache.get("read")), number(cache.get("write"))
    output, reasoning = number(tokens.get("output")), number(tokens.get("reasoning"))
    left = number(tokens.get("total")) - given - cached - written
    if reasoning and output <= left <= output + reasoning:
        output = left
    elif reasoning > output:
        output += reasoning
    return {"input": given, "output": output, "cached": cached, "cache_write": written, "reasoning": reasoning}


# --- pi: a tree of entries; a branched session is a copy of a path through it -----------------------------------------


def pi(paths: Iterable[Path]) -> Counts:
    """The usage of each assistant's entry; ids are short, so a copy is one with the same time too."""
    counts: Counts = {}
    seen: set[tuple[Any, ...]] = set()
    for path in paths:
        for i, entry in enumerate(objects(path)):
            message = as_dict(entry.get("message"))
            usage = message.get("usage")
            if entry.get("type") != "message" or message.get("role") != "assistant" or not isinstance(usage, dict):
                continue
            when = message.get("timestamp") or entry.get("timestamp")
            key = (entry["id"], when) if entry.get("id") else (str(path), i)
            if key in seen:
                continue
            seen.add(key)
            reasoning = usage.get("reasoning", usage.get("reasoningTokens"))
            told = (usage.get("input"), usage.get("output"), usage.get("cacheRead"), usage.get("cacheWrite"), reasoning)
            add(counts, message.get("model"), dict(zip(WITHOUT_DURATIONS, map(number, told), strict=True)))
    return without_empty(counts)


# --- Cursor: a bubble may count its tokens; one that lies in two databases is one -------------------------------------


def cursor(paths: Iterable[Path]) -> Counts:
    """Of each bubble's own count, under its own model or else that which its session is set to."""
    counts: Counts = {}
    seen: set[str] = set()
    for path in paths:
        for id, bubble, model in _cursor_bubbles(path) if path.suffix == ".vscdb" else ():
            tokens = as_dict(bubble.get("tokenCount"))
            told = {"input": number(tokens.get("inputTokens")), "output": number(tokens.get("outputTokens"))}
            if id not in seen:
                own = bubble.get("modelType") or as_dict(bubble.get("modelInfo")).get("modelName")
                add(counts, own or model, told)
            seen.add(id)
    return without_empty(counts)


def _cursor_bubbles(path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    connection = sqlite3.connect(f"file:{path}?immutable=1", uri=True)
    try:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        rows = dict(connection.execute("SELECT key, value FROM cursorDiskKV")) if "cursorDiskKV" in tables else {}
    finally:
        connection.close()
    for key, value in rows.items():
        kind, _, rest = key.partition(":")
        if kind == "bubbleId" and value is not None:
            session, _, id = rest.partition(":")
            told = as_dict(json.loads(rows.get(f"composerData:{session}") or "{}"))
            model = as_dict(told.get("modelConfig")).get("modelName")
            yield id, as_dict(json.loads(value)), None if model == "default" else model


# --- Gemini CLI: a message is written again each time it grows; older chats are one document --------------------------


def gemini_cli(paths: Iterable[Path]) -> Counts:
    """The last form of each message, by its session and id."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in paths:
        session = path.name
        for i, record in enumerate(_documents(path)):
            session = record.get("sessionId", session)
            listed = record.get("messages")
            for k, message in enumerate([record, *(listed if isinstance(listed, list) else [])]):
                if isinstance(message, dict) and isinstance(message.get("tokens"), dict):
                    found[(session, message.get("id", (i, k)))] = message
    counts: Counts = {}
    for message in found.values():
        told = {name: number(message["tokens"].get(name)) for name in ("input", "output", "cached", "thoughts", "tool")}
        kinds = {
            "input": told["input"] - told["cached"] + told["tool"],
            "output": told["output"] + told["thoughts"],
            "cached": told["cached"],
            "reasoning": told["thoughts"],
        }
        add(counts, message.get("model"), kinds)
    return without_empty(counts)


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """A file that is one document, or else its lines."""
    try:
        whole = json.loads(path.read_bytes().decode("utf-8", "replace"))
    except ValueError:
        yield from objects(path)
        return
    yield from (each for each in (whole if isinstance(whole, list) else [whole]) if isinstance(each, dict))


# --- Copilot CLI: the sums at a session's end are all there is; without them, the output of each response -------------


def copilot_cli(paths: Iterable[Path]) -> Counts:
    """The sums of each file, and the output of responses that no sum has in it. (No file here has two sums.)"""
    counts: Counts = {}
    for path in paths:
        model: Any = None
        said: dict[Any, int] = {}
        for event in objects(path):
            kind, data = event.get("type"), as_dict(event.get("data"))
            model = data.get("newModel") or data.get("chosenModel") or data.get("selectedModel") or model
            if kind == "assistant.message":
                name = data.get("model") or model
                said[name] = said.get(name, 0) + number(data.get("outputTokens"))
            elif kind == "session.shutdown":
                for name, each in as_dict(data.get("modelMetrics")).items():
                    usage = {
                        kind: number(as_dict(as_dict(each).get("usage")).get(f"{kind}Tokens")) for kind in _COPILOT
                    }
                    fresh = usage["input"] - usage["cacheRead"] - usage["cacheWrite"]
                    output = max(usage["output"], said.pop(name, 0))
                    kinds = (fresh, output, usage["cacheRead"], usage["cacheWrite"], usage["reasoning"])
                    add(counts, name, dict(zip(WITHOUT_DURATIONS, kinds, strict=True)))
        for name, output in said.items():
            add(counts, name, {"output": output})
    return without_empty(counts)


_COPILOT = ("input", "output", "cacheRead", "cacheWrite", "reasoning")


# --- ChatGPT: an export tells of no tokens at all ---------------------------------------------------------------------


def chatgpt(paths: Iterable[Path]) -> Counts:
    """Nothing, after a look whether that is still so."""
    for path in paths:
        counts = re.search(r'"(?:usage|(?:in|out)put_tokens|(?:prompt|completion)_tokens)"', path.read_text())
        assert counts is None, f"{path} tells of tokens"
    return {}


# --- SWE-agent: totals of a run; mini-swe-agent: every response in full -----------------------------------------------


def swe_agent(paths: Iterable[Path]) -> Counts:
    """A run's totals under the model of its settings; of mini-swe-agent, each response once over all files."""
    counts: Counts = {}
    seen: set[str] = set()
    for path in paths:
        run = as_dict(json.loads(path.read_bytes()))
        for message in run.get("messages") or ():
            response = as_dict(as_dict(as_dict(message).get("extra")).get("response"))
            if response and response["id"] not in seen:
                seen.add(response["id"])
                add(counts, response.get("model"), _chat_kinds(as_dict(response.get("usage"))))
        settings = run.get("replay_config") or {}
        settings = json.loads(settings) if isinstance(settings, str) else settings
        model = as_dict(as_dict(settings.get("agent")).get("model")).get("name")
        stats = as_dict(as_dict(run.get("info")).get("model_stats"))
        given, received = number(stats.get("tokens_sent")), number(stats.get("tokens_received"))
        add(counts, model, {"input": given, "output": received})
    return without_empty(counts)


def _chat_kinds(usage: dict[str, Any]) -> Kinds:
    """The cache lies inside the prompt, reasoning inside the completion."""
    cached = number(as_dict(usage.get("prompt_tokens_details")).get("cached_tokens"))
    reasoning = number(as_dict(usage.get("completion_tokens_details")).get("reasoning_tokens"))
    given, output = number(usage.get("prompt_tokens")), number(usage.get("completion_tokens"))
    return {"input": given - cached, "output": output, "cached": cached, "reasoning": reasoning}


# --- OpenHands: a response beside each action it led to; of the newer form, running totals ---------------------------


def openhands(paths: Iterable[Path]) -> Counts:
    """Each response once; of the newer form, the last total of every model."""
    counts: Counts = {}
    seen: set[str] = set()
    for path in paths:
        totals: dict[tuple[str, str], dict[str, Any]] = {}
        for event in _openhands_events(path):
            response = as_dict(as_dict(event.get("tool_call_metadata")).get("model_response"))
            if response and response["id"] not in seen:
                seen.add(response["id"])
                usage = as_dict(response.get("usage"))
                written = number(usage.get("cache_creation_input_tokens"))
                kinds = _chat_kinds(usage)
                add(counts, response.get("model"), {**kinds, "input": kinds["input"] - written, "cache_write": written})
            if event.get("key") == "stats":
                for name, metrics in as_dict(as_dict(event.get("value")).get("usage_to_metrics")).items():
                    totals[name, metrics["model_name"]] = as_dict(metrics.get("accumulated_token_usage"))
        for (_, model), usage in totals.items():
            cached, written = number(usage.get("cache_read_tokens")), number(usage.get("cache_write_tokens"))
            given = number(usage.get("prompt_tokens")) - cached - written
            told = (given, usage.get("completion_tokens"), cached, written, usage.get("reasoning_tokens"))
            add(counts, model, dict(zip(WITHOUT_DURATIONS, map(number, told), strict=True)))
    return without_empty(counts)


def _openhands_events(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".jsonl":
        return list(objects(path))
    value = json.loads(path.read_bytes())
    return value if isinstance(value, list) else []


# --- llm: a row for each response, in one of two generations of tables -----------------------------------------------


def llm(paths: Iterable[Path]) -> Counts:
    """Each row once; what both generations tell, by its id."""
    counts: Counts = {}
    seen: set[str] = set()
    columns = "id, coalesce(resolved_model, model), input_tokens, output_tokens, token_details"
    for path in paths:
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        for table in ("turns", "responses"):
            for id, model, given, output, details in connection.execute(f"SELECT {columns} FROM {table}"):
                if id in seen:
                    continue
                seen.add(id)
                told = as_dict(json.loads(details or "{}"))
                inside = number(as_dict(told.get("prompt_tokens_details")).get("cached_tokens"))
                kinds = {
                    "input": number(given) - inside,
                    "output": number(output),
                    "cached": inside + number(told.get("cache_read_input_tokens")),
                    "reasoning": number(as_dict(told.get("completion_tokens_details")).get("reasoning_tokens")),
                }
                add(counts, model, kinds)
        connection.close()
    return without_empty(counts)


# --- LangGraph: the whole list of messages at every checkpoint --------------------------------------------------------


def langgraph(paths: Iterable[Path]) -> Counts:
    """Each message of a model once, wherever it stands: in a checkpoint or in what was written to one."""
    import ormsgpack

    def plain(code: int, data: bytes) -> Any:
        inner = ormsgpack.unpackb(data, ext_hook=plain, option=ormsgpack.OPT_NON_STR_KEYS)
        return inner if code == 7 else inner[2]

    def walk(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict) and value.get("type") == "ai":
            yield value
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
            yield from walk(inner)

    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        for sql in ("SELECT checkpoint FROM checkpoints", "SELECT value FROM writes WHERE type = 'msgpack'"):
            for (data,) in connection.execute(sql):
                value = ormsgpack.unpackb(data, ext_hook=plain, option=ormsgpack.OPT_NON_STR_KEYS)
                found |= {message["id"]: message for message in walk(value) if message.get("id")}
        connection.close()
    counts: Counts = {}
    for message in found.values():
        usage = as_dict(message.get("usage_metadata"))
        cached = number(as_dict(usage.get("input_token_details")).get("cache_read"))
        reasoning = number(as_dict(usage.get("output_token_details")).get("reasoning"))
        given, output = number(usage.get("input_tokens")), number(usage.get("output_tokens"))
        model = as_dict(message.get("response_metadata")).get("model_name")
        add(counts, model, {"input": given - cached, "output": output, "cached": cached, "reasoning": reasoning})
    return without_empty(counts)


# --- ATIF: what each step of an agent took, or what the whole run did ------------------------------------------------


def atif(paths: Iterable[Path]) -> Counts:
    counts: Counts = {}

    def walk(run: dict[str, Any]) -> None:
        usual = as_dict(run.get("agent")).get("model_name")
        for step in run["steps"]:
            metrics = as_dict(step.get("metrics"))
            cached = number(metrics.get("cached_tokens"))
            kinds = {
                "input": number(metrics.get("prompt_tokens")) - cached,
                "output": number(metrics.get("completion_tokens")),
                "cached": cached,
                "reasoning": number(as_dict(metrics.get("extra")).get("reasoning_tokens")),
            }
            add(counts, step.get("model_name") or usual, kinds)
        for inner in run.get("subagent_trajectories") or ():
            walk(inner)

    for path in paths:
        walk(json.loads(path.read_bytes()))
    return without_empty(counts)
