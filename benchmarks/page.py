"""docs/performance.md: its results block is written by a run; the words around it are kept as they are."""

from pathlib import Path

from benchmarks.report import notes, tables
from benchmarks.results import Results

BEGIN, END = "<!-- results -->", "<!-- /results -->"

FRAME = f"""# Performance

What Weft costs, measured in one run beside the engine below it and beside the stores that other tools use:

    make bench

The run takes about a quarter of an hour and makes an environment of its own, `.venv-bench`, for the peers.
`.venv-bench/bin/python -m benchmarks --help` lists the parts; `--quick` shows within half a minute that
everything still runs, with sizes too small to judge by. A bar that fails ends the run with exit code 1.

## What is measured

Every store gets the same turns: a query of 200 bytes, one tool call with a result of 1.5 KB, a response of
600 bytes, all texts different. Each append is durable when it returns: write-ahead log, `synchronous=full`,
on the same disk, in the same process. The syncs that an append really waits for are counted with strace.

The floor is the *bare insert*: the turn as one row of JSON, encoded before the clock starts, in one SQLite
commit. Milliseconds differ from machine to machine; the ratio to the bare insert is what to compare.

The stores take turns. Each runs a few timed operations, then the next one does, five rounds long; a figure is
the median of the five rounds' medians, so a slow moment of the machine hurts all of them alike. CPU time is
that of the whole process. Depth is the number of turns that the thread already holds. The peers are measured
at their cheapest public way to record a finished turn, and the notes below say which; their own loops cost
more.

- *Read* compares a thread as typed messages with a scan, in Python, of a bare table of the same messages
  in the ten columns of `messages`. A *thread* gives queries and responses; a *context* adds the tool calls and results
  in their places, as the peers do when they load one.
- *Group commit* lets many threads record, each into its own session: in new ledgers, and in sessions
  forked at the end of the deepest thread.
- *Import* reads Claude Code sessions, each time in a process of its own: made-up ones of one length and of four times
  that, and real ones where a corpus lies beside the checkout.
- *Search* asks a ledger of a million made-up messages for twenty hits: common words, rare and absent ones, two words,
  beginnings, and words with filters, several of each. The ledger also has to catch up with a burst of turns.
- *Verify* hashes every event again (facts), and computes every view again (views).

![Append cost against depth](images/append-cost.svg)

The plot shows the appends that built the stores, one after another, not interleaved: its shape is the point.

## Results

{BEGIN}
{END}
"""


def write_page(results: Results, path: Path) -> None:
    text = path.read_text() if path.exists() else FRAME
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"{path} has no {BEGIN} … {END} block")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}{BEGIN}\n{block(results)}\n{END}{after}")


def block(results: Results) -> str:
    machine = [f"- {name}: {value}" for name, value in results.machine.items()]
    packages = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    parts = [table.as_markdown() for table in tables(results)]
    remarks = [f"- {note}" for note in notes(results)]
    lines = ["### Machine", "", *machine, f"- Packages: {packages}", "", *parts, "### Notes", "", *remarks]
    return "\n".join(lines)
