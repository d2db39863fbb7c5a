"""`python -m weft.surfaces.cli` is `weft`."""

from __future__ import annotations

import sys

from weft.surfaces.cli.entry import main

sys.exit(main())
