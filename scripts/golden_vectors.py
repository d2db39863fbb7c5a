"""Write the golden vectors of kinds and names that have none yet. What is written stays: the form is frozen."""

import json
import sys
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kernel.samples import fullest, least
from weft.kernel.events import encode
from weft.kernel.foreign_input import KINDS

GOLDEN = Path(__file__).parents[1] / "tests" / "kernel" / "golden_events.jsonl"


def main() -> None:
    known = set(GOLDEN.read_text().splitlines()) if GOLDEN.exists() else set()
    made = []
    for kind in KINDS.kinds.values():
        for event in (least(kind), fullest(kind)):
            line = encode(event)
            made.append(json.dumps({"event_id": sha256(line).hexdigest(), "line": line.decode()}))
    fresh = [line for line in dict.fromkeys(made) if line not in known]
    with GOLDEN.open("a") as file:
        file.writelines(line + "\n" for line in fresh)
    print(f"{len(fresh)} new, {len(known)} as they were")


if __name__ == "__main__":
    main()
