"""The process in which an embedded model runs. It is started by its path, and imports nothing of weft.

One line of JSON on standard input says which weights to load and under which key they are served. The answer is one
line of JSON: the address, or what went wrong. When standard input closes, the process ends at once, whatever it does.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    order = json.loads(sys.stdin.buffer.readline())
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever the library prints is no answer
    try:
        server = _serve(order)
        answer = {"address": server.listening_address}
    except (ImportError, RuntimeError, ValueError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    os.write(answers, json.dumps(answer).encode() + b"\n")
    sys.stdin.buffer.read()
    os._exit(0)  # taking the server apart may wait for its own threads forever


def _serve(order: dict[str, Any]) -> Any:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = order["weights"]
    params.model_alias = {order["name"]}
    params.hostnames, params.port = ["127.0.0.1"], 0
    params.api_keys = [order["key"]]
    params.n_ctx, params.n_parallel = order["context_tokens"], 1
    params.verbosity, params.warmup, params.ui = -1, False, False
    params.offline = True
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads, threads.poll = order["threads"], 0
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
