"""Writes docs/library.md from the names that `import weft` offers. `make docs` runs it; a test compares the two."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import weft

PAGE = Path(__file__).resolve().parents[1] / "docs" / "library.md"
OPENING = """# The library's names

What `import weft` offers, with the first sentence of what each says of itself. [python.md](python.md) shows how they
are used.

| name | what it is |
|---|---|"""


def sentence(value: Any) -> str:
    """The first sentence of a docstring."""
    text = " ".join((inspect.getdoc(value) or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0].replace("|", "\\|")


def library_page() -> str:
    names = sorted(name for name in weft.__all__ if not name.startswith("__"))
    return "\n".join([OPENING, *(f"| `{name}` | {sentence(getattr(weft, name))} |" for name in names), ""])


def main() -> None:
    PAGE.write_text(library_page())
    print(f"wrote {PAGE.relative_to(PAGE.parents[1])}")


if __name__ == "__main__":
    main()
