"""Write down the digests that the corpus gives, after an importer got a new mapping number on purpose."""

import json
import sys
import tempfile
from hashlib import sha256
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.exchange.corpus import CORPUS, ORIGINS, opened, take
from weft.exchange.importers.port import load_importers

PINNED = Path(__file__).parents[1] / "tests" / "exchange" / "pinned_digests.json"


def main() -> None:
    mappings = {importer.origin: importer.mapping for importer in load_importers()}
    pinned = json.loads(PINNED.read_text()) if PINNED.exists() else {}
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "ledger.db") as ledger:
        take(ledger, *(CORPUS / origin for origin in ORIGINS))
        turns = ledger.log()
    for origin in ORIGINS:
        digests = sorted(turn.digest for turn in turns if turn.origin == origin)
        pinned[f"{origin}/{mappings[origin]}"] = {
            "turns": len(digests),
            "digest": sha256("\n".join(digests).encode()).hexdigest(),
        }
    PINNED.write_text(json.dumps(pinned, indent=2, sort_keys=True) + "\n")
    print(PINNED.read_text())


if __name__ == "__main__":
    main()
