"""Append cost against depth, both axes logarithmic: a flat line is what is wanted."""

from importlib import import_module
from pathlib import Path

from benchmarks.peers import BARE
from benchmarks.registry import WEFT
from benchmarks.results import Results


def write_plot(results: Results, path: Path) -> None:
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "weft", "svg.fonttype": "none", "font.family": "sans-serif"})
    figure, axes = import_module("matplotlib.pyplot").subplots(figsize=(8, 4.5))
    for name, points in results.curves.items():
        depths, costs = zip(*points, strict=True)
        axes.plot(depths, costs, label=name, **_style(name))
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="turns already in the thread",
        ylabel="ms to append one durable turn",
    )
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})


def _style(name: str) -> dict[str, object]:
    if name == WEFT.name:
        return {"color": "#c2410c", "linewidth": 2.5, "zorder": 3}
    if name == BARE.name:
        return {"color": "#444444", "linewidth": 1.5, "linestyle": "--"}
    return {"linewidth": 1.3}
