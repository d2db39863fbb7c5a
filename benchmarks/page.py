"""benchmarks/RESULTS.md, whose blocks of results are written by a run, and the bars of docs/proofs.md.

The words around them are kept as they are.
"""

from pathlib import Path

from benchmarks.bars import bars
from benchmarks.broker_report import broker_tables
from benchmarks.postgres import PACKAGES
from benchmarks.report import (
    bar_table_of,
    graph_tables,
    notes,
    postgres_tables,
    report_tables,
    room_tables,
    routing_tables,
    search_tables,
    similarity_tables,
    start_tables,
    stream_tables,
    sync_tables,
    tables,
)
from benchmarks.results import Results

BEGIN, END = "<!-- results -->", "<!-- /results -->"
BEGIN_BARS, END_BARS = "<!-- bars -->", "<!-- /bars -->"
MACHINE = "Machine of the last run: "
ALONE = {
    "search": search_tables,
    "similarity": similarity_tables,
    "routing": routing_tables,
    "streams": stream_tables,
    "sync": sync_tables,
    "postgres": postgres_tables,
    "broker": broker_tables,
    "rooms": room_tables,
    "graph": graph_tables,
    "starts": start_tables,
    "reports": report_tables,
}
"""Blocks of their own: each may be measured alone, and stands until it is measured again."""
RAN = {
    "search": ("weft", "apsw"),
    "similarity": ("weft", "numpy", "usearch"),
    "routing": ("weft", "numpy"),
    "streams": ("weft",),
    "sync": ("weft", "zstandard"),
    "postgres": PACKAGES,
    "broker": (*PACKAGES, "langgraph-checkpoint-sqlite", "openai-agents", "openai"),
    "rooms": ("weft", "apsw"),
    "graph": ("weft", "apsw"),
    "starts": ("weft", "llm", "openai"),
    "reports": ("weft", "apsw", "genai-prices"),
}
OTHERS = ("append", "fork", "load", "read", "verify", "group", "imports", "command_line", "clones", "fsyncs")

FRAME = f"""# Results of the benchmarks

What Weft costs, measured in one run beside the engine below it and beside the stores that other tools use:

    make bench

The run takes about an hour, the first time longer, and makes an environment of its own, `.venv-bench`, for the peers.
`.venv-bench/bin/python -m benchmarks --help` lists the parts; `--quick` shows within a minute or two that
everything still runs, with sizes too small to judge by. A bar that fails ends the run with exit code 1.

## What is measured

Every store gets the same turns: a query of 200 bytes, one tool call with a result of 1.5 KB, a response of
600 bytes, all texts different. Each append is durable when it returns: write-ahead log, `synchronous=full`,
on the same disk, in the same process. The syncs that an append really waits for are counted with strace.

The floor is the *bare insert*: the turn as one row of JSON, encoded before the clock starts, in one SQLite
commit. Milliseconds differ from machine to machine; the ratio to the bare insert is what to compare.

The stores take turns. Each runs a few timed operations, then the next one does, five rounds long; a figure is
the median of the five rounds' medians, so a slow moment of the machine hurts all of them alike. A ratio is taken in
each round, and is the median of these: it need not be that of the two figures beside it. CPU time is
that of the whole process. Depth is the number of turns that the thread already holds. The peers are measured
at their cheapest public way to record a finished turn, and the notes below say which; their own loops cost
more.

- *Read* compares a thread as typed messages with a scan, in Python, of a bare table of the same messages
  in the ten columns of `messages`. A *thread* gives queries and responses; a *context* adds the tool calls and results
  in their places, as the peers do when they load one.
- *Load* is the context of one thread, in each store its cheapest public way. Weft is measured twice: with nothing kept
  in memory, and again with the turns that it kept from the time before, of which it reads the rows alone.
- *Group commit* lets many threads record, each into its own session: in new ledgers, and in sessions
  forked at the end of the deepest thread.
- *Import* reads Claude Code sessions, each time in a process of its own: made-up ones of one length and of four times
  that, and real ones where a corpus lies beside the checkout.
- *Search* asks a ledger of a million made-up messages for twenty hits: common words, rare and absent ones, two words,
  beginnings, and words with filters, several of each. The ledger also has to catch up with a burst of turns.
- *Similarity* looks for texts among vectors of the embedded model, made from what people, models and tools say in a
  corpus beside the checkout: imported, cut into different pieces of ten to twenty words, each a message of the ledger.
  The texts that are looked for are not among them. *Search* is from a vector to nodes, *exact* the same by a look at
  every vector. Texts and vectors are kept for the next run: making a hundred thousand takes some twenty minutes.
- *Sync* pushes a ledger to an empty one behind `weft sync-stdio`, then some turns more, then nothing, and pulls it into
  a third; CPU time is that of both sides, memory that of the side that needs more. What is missing is counted as it is
  stored, in events and contents. Git is given the same turns as lines of JSON, a file and a commit for every hundred.
- *Verify* hashes every event again (facts), and computes every view again (views).
- *PostgreSQL* is measured on a server that the run starts, with `fsync` and `synchronous_commit` on: Weft beside
  LangGraph's PostgresSaver and one bare INSERT a turn, from one process and from many at once. `--only postgres`
  measures it alone. So do `--only search`, `--only similarity`, `--only routing`, `--only streams`,
  `--only sync`, `--only broker`, `--only rooms`, `--only graph`, `--only starts` and `--only reports`.
- *Reports*: `weft usage`, `weft projects` and `weft sessions` beside the newest turns of `weft log`, by the CPU time of
  the processes, in ledgers with imported sessions: copies of one corpus, each with ids and days of its own.
- *Broker* takes whole turns, with one call of a tool, on threads of different depths: Weft's broker, LangGraph and the
  OpenAI Agents SDK, all against one small local server. The overhead is the time of a turn without that spent inside
  the subject's own model layer, measured within the same turn: the provider's time, the wire's and the model layer's
  CPU are taken off everywhere. Every step is durable before the next begins; LangGraph's default, which saves beside
  the next step, is shown too. What Weft does between the ledger and the body of a request stays in. On PostgreSQL,
  turns a second of one and of many brokers are shown beside LangGraph in as many processes; there the model layers are
  part of them.
- *Rooms* suggests whom typed letters mean among many names, finds out without a model for whom a message is, and posts
  a message that an agent answers: in a new room, and in one of many agents and messages.
- *Starts* are whole commands, from the start of the process to its end, against one small server that answers at once:
  `weft send` without and beside a running `weft broker`, and the command `llm` with the same server as an
  OpenAI-compatible model.
- *Graph* fills the agent graph of ledgers of different sizes, and asks the same questions of all of them.

A bar says where Weft should be. One that is missed is printed as FAIL; what stands in its way is told in the decisions
on [turns and contexts](../docs/decisions/0027-the-ordinary-turn-in-one-pass.md),
[PostgreSQL](../docs/decisions/0037-one-call-to-postgresql.md),
[imports](../docs/decisions/0038-import-in-two-processes.md) and [brokers](../docs/decisions/0039-many-brokers.md).

![Append cost against depth](../docs/images/append-cost.svg)

The plot shows the appends that built the stores, one after another, not interleaved: its shape is the point.

## Results

{BEGIN}
{END}

{"".join(f"<!-- {name} -->{chr(10)}<!-- /{name} -->{chr(10) * 2}" for name in ALONE).rstrip()}
"""


def write_page(results: Results, path: Path) -> None:
    """Each block whose figures there are."""
    text = path.read_text() if path.exists() else FRAME
    if any(getattr(results, name) for name in OTHERS):
        text = _put(text, BEGIN, END, block(results), path)
    for name in ALONE:
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if begin not in text:  # the page is older than what is measured
            text = f"{text.rstrip()}\n\n{begin}\n{end}\n"
        if getattr(results, name):
            text = _put(text, begin, end, block_alone(results, name), path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def write_bars(results: Results, path: Path) -> None:
    """The bars that this run measured, each in the place of what an earlier run said of it."""
    text = path.read_text()
    _, _, rest = text.partition(BEGIN_BARS)
    old = [line for line in rest.partition(END_BARS)[0].splitlines() if line.startswith("| ")]
    made = bar_table_of("Bars", [bar for bar in bars(results) if bar.value is not None])
    lines = made.as_markdown().splitlines()[2:]
    rows = {line.split(" | ")[0]: line for line in (*old, *lines)}
    machine = "; ".join(f"{name}: {value}" for name, value in results.machine.items() if name != "load average")
    path.write_text(_put(text, BEGIN_BARS, END_BARS, "\n".join([f"{MACHINE}{machine}.", "", *rows.values()]), path))


def _put(text: str, begin: str, end: str, words: str, path: Path) -> str:
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{path} has no {begin} … {end} block")
    return f"{before}{begin}\n{words}\n{end}{after}"


def block_alone(results: Results, name: str) -> str:
    load = results.machine.get("load average", "unknown")
    ran = _packages({package: results.versions.get(package, "unknown") for package in RAN[name]})
    parts = [table.as_markdown() for table in ALONE[name](results)]
    return "\n".join([*parts, f"Measured with {ran}; load average {load}."])


def _packages(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def block(results: Results) -> str:
    machine = [f"- {name}: {value}" for name, value in results.machine.items()]
    parts = [table.as_markdown() for table in tables(results)]
    remarks = [f"- {note}" for note in notes(results)]
    packages = f"- Packages: {_packages(results.versions)}"
    lines = ["### Machine", "", *machine, packages, "", *parts, "### Notes", "", *remarks]
    return "\n".join(lines)
