"""`python -m benchmarks`: build every store, measure them side by side, print, judge."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.bars import bars
from benchmarks.broker import measure_broker
from benchmarks.fsyncs import count_fsyncs
from benchmarks.graph import measure_graph
from benchmarks.imports import measure_import
from benchmarks.machine import IN_MEMORY, describe_machine, file_system, versions
from benchmarks.measure import NotMeasured, say
from benchmarks.page import ALONE, RAN, write_bars, write_page
from benchmarks.peers import BARE, PEERS
from benchmarks.plan import FULL, QUICK, SECTIONS, Sizes, bare_depths, peer_depths, weft_depths
from benchmarks.plot import write_plot
from benchmarks.postgres import measure_postgres
from benchmarks.registry import ALL, OURS, SAME_ROWS, WEFT
from benchmarks.report import notes, tables
from benchmarks.reports import measure_reports
from benchmarks.results import Results
from benchmarks.rooms import measure_rooms
from benchmarks.routing import measure_routing
from benchmarks.searching import measure_search
from benchmarks.sections import (
    Stages,
    measure_append,
    measure_command_line,
    measure_fork,
    measure_group,
    measure_load,
    measure_read,
    measure_verify,
)
from benchmarks.similarity import measure_similarity
from benchmarks.stages import build, curve, extend
from benchmarks.starting import measure_starts
from benchmarks.streaming import measure_streaming
from benchmarks.subject import Spec
from benchmarks.syncing import measure_cloning, measure_syncing

ROOT = Path(__file__).resolve().parent.parent
BUSY = 0.5
INTERRUPTED = 130


def main() -> int:
    options = parse(sys.argv[1:])
    sections = set(options.only or SECTIONS)
    sizes = QUICK if options.quick else FULL
    specs = OURS if options.no_peers else ALL
    options.dir.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=options.dir) as directory:
        results = run(sections, sizes, specs, Path(directory))
    print(json.dumps(results.as_json(), indent=1) if options.json else shown(results))
    is_whole = sections == set(SECTIONS) and not options.no_peers and not options.quick and not results.cut_short
    write_files(results, options, whole=is_whole)
    if results.cut_short:
        say("interrupted: these are the figures until then")
        return INTERRUPTED
    return verdict(results, options.quick)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes; the bars are shown, not judged")
    parser.add_argument("--only", action="append", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--no-peers", action="store_true", help="Weft and the bare insert alone")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of tables")
    parser.add_argument("--dir", type=Path, default=ROOT / "build", help="where the stores are built and removed")
    whole = "written after a whole run, or where this is given"
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"benchmarks/results.json: {whole}")
    parser.add_argument("--page", type=Path, metavar="FILE", help=f"benchmarks/RESULTS.md: {whole}")
    parser.add_argument("--bars", type=Path, metavar="FILE", help=f"docs/proofs.md: {whole}")
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"docs/images/append-cost.svg: {whole}")
    return parser.parse_args(arguments)


def run(sections: set[str], sizes: Sizes, specs: tuple[Spec, ...], directory: Path) -> Results:
    """Measures the sections in their order; where somebody interrupts it, the results have those that are done."""
    started = time.monotonic()
    packages = [name for spec in specs for name in spec.packages]
    results = Results(
        sizes, describe_machine(directory), versions([*packages, *(name for names in RAN.values() for name in names)])
    )
    if file_system(directory) in IN_MEMORY:
        say("warning: this directory is in memory, so nothing is durable; choose another with --dir")
    load = os.getloadavg()[0]
    if load > BUSY:
        say(f"warning: the machine is busy (load {load:.1f}); ratios will hold better than milliseconds")
    stages: Stages = {}
    try:
        build_stages(stages, sections, specs, directory, results)
        for section in SECTIONS:
            if section in sections:
                measure(section, stages, results, specs, directory)
    except KeyboardInterrupt:
        results.cut_short = True
    for stage in stages.values():
        stage.subject.close()
    results.seconds = time.monotonic() - started
    results.machine["load average"] = f"{load:.1f} before the run, {os.getloadavg()[0]:.1f} after it"
    return results


def measure(section: str, stages: Stages, results: Results, specs: tuple[Spec, ...], directory: Path) -> None:
    sizes = results.sizes
    match section:
        case "load":
            measure_load(stages, results)
        case "read":
            measure_read(stages, results, directory)
        case "verify":
            measure_verify(stages, results)
        case "fork":
            measure_fork(stages, results)
        case "append":
            measure_append(stages, results)
        case "group":
            measure_group(stages, results, directory)
        case "import":
            results.imports = measure_import(sizes, directory)
        case "search":
            results.search = measure_search(sizes, directory)
        case "similarity":
            results.similarity = measure_similarity(sizes, directory)
        case "routing":
            results.routing = measure_routing(sizes, directory)
        case "streams":
            results.streams = measure_streaming(sizes, directory)
        case "sync":
            results.sync = measure_syncing(sizes, directory)
            results.clones = measure_cloning(directory / f"sync-{sizes.sync_turns[-1]}" / "here.db", sizes.rounds)
        case "cli":
            measure_command_line(stages, results, directory)
        case "fsync":
            measure_fsyncs(specs, results, directory)
        case "postgres":
            results.postgres = measure_postgres(sizes)
        case "broker":
            results.broker = measure_broker(sizes, directory, peers=specs is ALL)
        case "rooms":
            results.rooms = measure_rooms(sizes, directory)
        case "graph":
            results.graph = measure_graph(sizes, directory)
        case "starts":
            results.starts = measure_starts(sizes, directory)
        case "reports":
            results.reports = measure_reports(sizes, directory)
        case "plot":
            draw_curves(stages, results)
        case _:
            raise ValueError(f"nothing measures {section}")


def build_stages(
    stages: Stages, sections: set[str], specs: tuple[Spec, ...], directory: Path, results: Results
) -> None:
    for spec in specs:
        for depth in depths_of(spec, sections, results.sizes):
            stage = build(spec, depth, directory / f"{spec.name} {depth}".replace(" ", "-"))
            if isinstance(stage, NotMeasured):
                say(f"{spec.name}: {stage}")
                results.not_built[spec.name] = stage
                break
            stages[spec.name, depth] = stage
            results.settings[spec.name] = stage.subject.settings()
            if depth <= results.sizes.peer_depths[-1]:
                results.bytes_per_turn[spec.name] = stage.bytes_per_turn


def depths_of(spec: Spec, sections: set[str], sizes: Sizes) -> list[int]:
    if spec is WEFT:
        return weft_depths(sections, sizes)
    if spec is BARE:
        return bare_depths(sections, sizes)
    return peer_depths(sections, sizes, spec.max_depth)


def measure_fsyncs(specs: tuple[Spec, ...], results: Results, directory: Path) -> None:
    for number, spec in enumerate(specs):
        if spec is SAME_ROWS or (spec in PEERS and not results.sizes.strace_peers):
            continue
        say(f"fsyncs of {spec.name}")
        place = directory / f"fsyncs-{number}"
        results.fsyncs[spec.name] = count_fsyncs(spec, results.sizes.fsync_turns, place)


def draw_curves(stages: Stages, results: Results) -> None:
    for name in dict.fromkeys(name for name, _ in stages if name != SAME_ROWS.name):
        stage = max((each for (other, _), each in stages.items() if other == name), key=lambda each: each.depth)
        if stage.spec in PEERS and stage.spec.max_depth is None:
            say(f"{name}, further for the plot")
            extend(stage, results.sizes.plot_seconds)
        results.curves[name] = curve(stage.walls)


def write_files(results: Results, options: argparse.Namespace, *, whole: bool) -> None:
    """A partial run must not replace the figures of a whole one."""
    json_file = options.results or (ROOT / "benchmarks/results.json" if whole else None)
    page = options.page or (ROOT / "benchmarks/RESULTS.md" if whole else None)
    bars_page = options.bars or (ROOT / "docs/proofs.md" if whole else None)
    plot = options.plot or (ROOT / "docs/images/append-cost.svg" if whole else None)
    if json_file:
        json_file.write_text(json.dumps(results.as_json(), indent=1) + "\n")
    if page:
        write_page(results, page)
    if bars_page:
        write_bars(results, bars_page)
    if plot and results.curves:
        write_plot(results, plot)


def shown(results: Results) -> str:
    alone = [table for made in ALONE.values() for table in made(results)]
    parts = [table.as_text() for table in (*tables(results), *alone)]
    return "\n".join([*parts, *(f"- {note}" for note in notes(results)), f"\n{results.seconds:.0f} s in all"])


def verdict(results: Results, quick: bool) -> int:
    """1 when a bar was measured and missed, or when Weft could not be measured at all."""
    if WEFT.name in results.not_built:
        return 1
    missed = [bar for bar in bars(results) if bar.passed is False]
    return 1 if missed and not quick else 0


if __name__ == "__main__":
    sys.exit(main())
