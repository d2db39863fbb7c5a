"""Paths that a hostile model would send: each tries to leave the workspace, or to reach the ledger in it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

LEADING_OUT = (
    "../outside/canary.txt",
    "../outside",
    "..",
    "../",
    "./../outside/canary.txt",
    "src/../../outside/canary.txt",
    "src/./.././../outside/canary.txt",
    "src//..//..//outside//canary.txt",
    "missing/../../outside/canary.txt",
    "../workspace/../outside/canary.txt",
    "../workspace/.weft/ledger.db",
    "/etc/passwd",
    "/etc/shadow",
    "//etc/passwd",
    "/../etc/passwd",
    "/proc/self/environ",
    "/proc/self/root/etc/passwd",
    "/proc/1/cwd/etc/passwd",
    "/proc/self/fd/0",
    "/dev/stdin",
    "/dev/fd/0",
    "/dev/null",
    "/dev/zero",
    "/",
    "{place}/../outside/canary.txt",
    "{place}/src/../../outside/canary.txt",
    "{place}x/canary.txt",
    "{place}/../../../../../../../../../../etc/passwd",
    "{outside}/canary.txt",
    "{outside}",
    "link_to_canary",
    "link_to_outside",
    "link_to_outside/canary.txt",
    "link_to_outside/new.txt",
    "link_to_outside/new/deeper.txt",
    "link_up/outside/canary.txt",
    "link_by_link/canary.txt",
    "src/link_up_twice/outside/canary.txt",
    "dangling_outside",
    "link_to_root/etc/passwd",
    "link_to_proc/self/environ",
    "link_to_proc/self/root/etc/passwd",
    "loop",
    "loop/canary.txt",
    "loop_a",
    "link_to_outside/../outside/canary.txt",
)
"""Each leads out of the workspace, or to a file that tools do not open."""
LEADING_TO_THE_LEDGER = (
    ".weft",
    ".weft/",
    ".weft/ledger.db",
    "./.weft/ledger.db",
    ".WEFT/ledger.db",
    ".Weft/new.txt",
    "src/../.weft/ledger.db",
    "{place}/.weft/ledger.db",
    "link_to_ledger",
    "link_to_ledger/ledger.db",
    "link_to_ledger_file",
    ".weft/../.weft/ledger.db",
    "src/.weft/ledger.db",
    "missing/.weft/ledger.db",
)
NAMING_NOTHING = (
    "",
    "a\0b",
    "../outside/canary.txt\0.txt",
    "\ud800",
    "\udcff",
    "a" * 5000,
    "a" * 300,
    "a/" * 2500,
    "pipe",
    "socket",
    "README.txt/../../outside/canary.txt",
)
LOOKING_HOSTILE = (
    "~/.ssh/id_rsa",
    "$HOME/.ssh/id_rsa",
    "..\\outside\\canary.txt",
    "..%2foutside%2fcanary.txt",
    "%2e%2e/outside/canary.txt",
    "．．/outside/canary.txt",
    "…/outside/canary.txt",
    ".. /outside/canary.txt",
    "file:///etc/passwd",
    "C:\\Windows\\win.ini",
    "-rf",
    "--help",
    "a\nb",
    "\u202etxt.exe",
)
"""Names like any other: where they are written, they stand in the workspace under just this name."""


def hostile_paths(place: Path) -> list[str]:
    paths = (*LEADING_OUT, *LEADING_TO_THE_LEDGER, *NAMING_NOTHING)
    return [path.replace("{place}", str(place)).replace("{outside}", str(place.parent / "outside")) for path in paths]


def lay_traps(place: Path) -> None:
    """The links and special files that the paths go through."""
    outside = place.parent / "outside"
    links: dict[str, str | Path] = {
        "link_to_canary": outside / "canary.txt",
        "link_to_outside": outside,
        "link_up": "..",
        "link_by_link": "link_to_outside",
        "src/link_up_twice": "../..",
        "dangling_outside": outside / "new.txt",
        "link_to_root": "/",
        "link_to_proc": "/proc",
        "loop": "loop",
        "loop_a": "loop_b",
        "loop_b": "loop_a",
        "link_to_ledger": ".weft",
        "link_to_ledger_file": ".weft/ledger.db",
    }
    for name, target in links.items():
        (place / name).symlink_to(target)
    os.mkfifo(place / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(place, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/socket")  # the path of a test's folder is too long for a socket
        finally:
            os.close(folder)
    (place / "README.txt").write_text("hello\n")
