"""Standard input and output as bytes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

import click

STANDARD = "-"


def stdin_bytes() -> BinaryIO:
    return sys.stdin.buffer


def stdout_bytes() -> BinaryIO:
    return sys.stdout.buffer


def read_input(file: str | None, missing: str) -> bytes:
    """The bytes of a file, or of what is piped in; nobody types a whole document at a terminal."""
    if file not in (None, STANDARD):
        return Path(str(file)).read_bytes()
    return piped_input(missing).read()


def piped_input(missing: str) -> BinaryIO:
    if sys.stdin.isatty():
        raise click.UsageError(missing)
    return stdin_bytes()
