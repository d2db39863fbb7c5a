"""Pages that show commands and their output: read step by step, with what differs between two runs masked."""

from __future__ import annotations

import re

CONSOLE_BLOCK = re.compile(r"<!-- run: console -->\n```console\n(.*?)```", re.DOTALL)
ID = re.compile(r"\b(?:[0-9a-f]{64}|[0-9A-HJKMNP-TV-Z]{26}|[0-9A-HJKMNP-TV-Z]{8})\b")
TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}")


def steps(text: str) -> list[tuple[str, str]]:
    """(command, output) pairs of all console blocks, in order."""
    pairs: list[tuple[str, str]] = []
    for line in "".join(CONSOLE_BLOCK.findall(text)).splitlines(keepends=True):
        if line.startswith("$ "):
            pairs.append((line[2:].strip(), ""))
        else:
            command, output = pairs[-1]
            pairs[-1] = (command, output + line)
    return pairs


def masked(output: str) -> str:
    """Ids numbered by first appearance, times left out: everything else must be equal."""
    names: dict[str, str] = {}
    numbered = ID.sub(lambda match: names.setdefault(match[0], f"<id {len(names)}>"), output)
    return TIME.sub("<time>", numbered)
