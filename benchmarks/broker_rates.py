"""Turns a second on PostgreSQL: of one and of many brokers, beside LangGraph with PostgresSaver in as many processes.

Both get the same number of sessions, each with the same number of turns, one after another in a session. Brokers find
the messages in the inbox and share the sessions among them; LangGraph's sessions are dealt out to its processes, a
thread, a saver and a connection for each. The clock runs from the start of all processes until the last answer.
Opening and a first turn, which loads the model layer and has the server plan what the connections ask, are not counted:
programs keep both. The model layer's time is part of a turn, and both wait for the same local server.
"""

import argparse
import asyncio
import gc
import json
import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.measure import NotMeasured, attempt, say
from benchmarks.plan import Sizes
from benchmarks.rates import Rate
from benchmarks.turn_subject import Place, add

BROKERS, GRAPHS = "weft", "LangGraph PostgresSaver"
LOOK_SECONDS = 0.02
LIMIT_SECONDS = 900
FIRST = "what is two and three?"


def measure_rates(
    sizes: Sizes, postgres: str, url: str, *, peers: bool = True
) -> dict[str, dict[int, Rate | NotMeasured]]:
    rates: dict[str, dict[int, Rate | NotMeasured]] = {}
    for processes in (1, sizes.broker_processes):
        for name in (BROKERS, GRAPHS) if peers else (BROKERS,):
            say(f"turns a second on PostgreSQL: {name}, {processes} processes")
            run = partial(_rate, name, postgres, url, processes, sizes)
            rates.setdefault(name, {})[processes] = attempt(run)
    return rates


def _rate(name: str, postgres: str, url: str, processes: int, sizes: Sizes) -> Rate:
    """In a process of its own, which has nothing open when it divides."""
    amounts = [str(processes), str(sizes.broker_sessions), str(sizes.broker_turns)]
    command = [sys.executable, "-m", "benchmarks.broker_rates", name, postgres, url, *amounts]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[1])
    if ran.returncode:
        raise RuntimeError((ran.stderr.strip().splitlines() or ["it failed without a word"])[-1])
    counted = json.loads(ran.stdout)
    per_second = counted["turns"] / counted["seconds"]
    return Rate(per_second, 1e3 * counted["cpu"] / counted["turns"], (per_second,))


class Crew:
    """Processes that begin together."""

    def __init__(self, processes: int, work: Callable[[int, Callable[[], None]], None]) -> None:
        processing = multiprocessing.get_context("fork")
        self._start = processing.Barrier(processes + 1)
        self._cpu = processing.Array("d", processes)
        self._work = work
        self._processes = [processing.Process(target=self._run, args=(number,)) for number in range(processes)]

    def start(self) -> float:
        """Returns the time at which all of them have opened what they need, and begin. What was imported before they
        divide is theirs together: the collector leaves it alone, or each would copy all of it."""
        gc.collect()
        gc.freeze()
        for process in self._processes:
            process.start()
        self._start.wait(timeout=300)
        return time.perf_counter()

    def join(self) -> float:
        """The CPU seconds of all."""
        for process in self._processes:
            process.join(timeout=LIMIT_SECONDS)
        if any(process.exitcode for process in self._processes):
            raise RuntimeError(f"processes ended with {[process.exitcode for process in self._processes]}")
        return float(sum(self._cpu[:]))

    def _run(self, number: int) -> None:
        cpu_before = 0.0

        def ready() -> None:
            nonlocal cpu_before
            self._start.wait(timeout=300)
            cpu_before = time.process_time()

        self._work(number, ready)
        self._cpu[number] = time.process_time() - cpu_before


# --- Weft ------------------------------------------------------------------------------------------------------------


def run_brokers(postgres: str, url: str, processes: int, sessions: int, amount: int) -> dict[str, float]:
    processing = multiprocessing.get_context("fork")
    address = f"{postgres}&ledger=rates{processes}"
    for module in ("benchmarks.broker_subject", "weft.store.postgres", "weft.runtime.broker.broker", "openai"):
        import_module(module)
    stop = processing.Event()
    filler = processing.Process(target=_admit, args=(address, sessions, amount))
    filler.start()
    filler.join()
    crew = Crew(processes, lambda number, ready: asyncio.run(_broker(address, url, number, ready, stop)))
    before = crew.start()
    _wait_until_answered(address, sessions * amount + processes)  # each has answered a first one
    seconds = time.perf_counter() - before
    stop.set()
    return {"turns": sessions * amount, "seconds": seconds, "cpu": crew.join()}


def _admit(address: str, sessions: int, amount: int) -> None:
    weft = import_module("weft")
    with weft.open(address) as ledger:
        for number in range(amount):
            for session in range(sessions):
                ledger.inbox.admit(f"what is two and three? {number}", session=f"session-{session}")


async def _broker(address: str, url: str, number: int, ready: Callable[[], None], stop: Any) -> None:
    import weft.aio
    from benchmarks.broker_subject import PERSON, model_at
    from weft.ledger.api import RunConfig
    from weft.runtime.broker.broker import Broker, OutgoingMessage, send
    from weft.runtime.broker.turn_plans import TurnPlan
    from weft.runtime.egress.execution_context import context_for
    from weft.runtime.inference.inference import Inference
    from weft.runtime.tool.tool_contract import FunctionTool, tools_of

    tools = tools_of(FunctionTool(add, is_read_only=True))
    async with weft.aio.open(address) as ledger, Inference() as inference:
        model, acting = model_at(url), context_for(PERSON)

        async def plan(*_: object) -> TurnPlan:
            return TurnPlan(model=model, inference=inference, acting=acting, setting=RunConfig(), tools=tools)

        broker = Broker(ledger.sync, ledger.crossing, plan)
        first = OutgoingMessage(message=FIRST, model=model, tools=tools)
        await send(ledger, inference, f"first-{number}", first, context=acting)
        await asyncio.to_thread(ready)
        serving = asyncio.ensure_future(broker.serve())
        await asyncio.to_thread(stop.wait)
        broker.drain()
        await serving


def _wait_until_answered(address: str, turns: int) -> None:
    """Looks at the views of the ledger, on a connection of its own."""
    import psycopg

    until = time.monotonic() + LIMIT_SECONDS
    server, _, ledger = address.partition("&ledger=")
    connection = psycopg.connect(server, autocommit=True)
    while True:
        row = connection.execute(f"SELECT count(*) FROM {ledger}.inbox WHERE state = 'answered'").fetchone()
        if row is not None and row[0] >= turns:
            return
        if time.monotonic() > until:
            raise RuntimeError(f"{row} of {turns} turns after {LIMIT_SECONDS} seconds")
        time.sleep(LOOK_SECONDS)


# --- LangGraph -------------------------------------------------------------------------------------------------------


def run_graphs(postgres: str, url: str, processes: int, sessions: int, amount: int) -> dict[str, float]:
    modules = ("benchmarks.peers.langgraph_turns", "langgraph.checkpoint.postgres", "langgraph.graph", "openai")
    for module in (*modules, "langgraph.graph.message", "langchain_core.messages"):
        import_module(module)
    maker = multiprocessing.get_context("fork").Process(target=_make_tables, args=(postgres, url))
    maker.start()
    maker.join()
    dealt = [range(number, sessions, processes) for number in range(processes)]
    crew = Crew(processes, lambda number, ready: _graphs(postgres, url, dealt[number], amount, processes, ready))
    before = crew.start()
    cpu = crew.join()
    return {"turns": sessions * amount, "seconds": time.perf_counter() - before, "cpu": cpu}


def _make_tables(postgres: str, url: str) -> None:
    """Once: many at a time would wait for each other's indexes."""
    import_module("benchmarks.peers.langgraph_turns").ServerTurns(Place(Path(), url, postgres, "")).close()


def _graphs(
    postgres: str, url: str, sessions: Sequence[int], amount: int, processes: int, ready: Callable[[], None]
) -> None:
    graph_turns = import_module("benchmarks.peers.langgraph_turns").ServerTurns
    subjects = [graph_turns(Place(Path(), url, postgres, f"rates-{processes}-{session}")) for session in sessions]
    for subject in subjects:
        subject.take_turn(FIRST)
    ready()

    def run(subject: Any) -> None:
        for number in range(amount):
            subject.take_turn(f"what is two and three? {number}")

    with ThreadPoolExecutor(len(subjects)) as threads:
        list(threads.map(run, subjects))


RUNS = {BROKERS: run_brokers, GRAPHS: run_graphs}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.broker_rates", description=__doc__)
    parser.add_argument("name", choices=RUNS)
    parser.add_argument("postgres")
    parser.add_argument("url")
    for amount in ("processes", "sessions", "turns"):
        parser.add_argument(amount, type=int)
    given = parser.parse_args()
    print(json.dumps(RUNS[given.name](given.postgres, given.url, given.processes, given.sessions, given.turns)))


if __name__ == "__main__":
    main()
