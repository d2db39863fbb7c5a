"""The worker of an import by itself: it ends as soon as it should, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.exchange.worker_processes import assert_ends
from weft.exchange.importing.handover import FrameKind, ReadOrder, WorkerLost, receive_frame, send_order

HEEDLESS = """
import sys, tempfile, time
from weft.exchange.importing import reading_worker
from weft.exchange.importing.handover import FrameKind

def read(self, order):
    tempfile.mkstemp()
    self._frames.put(FrameKind.OPENED, b"begun")
    while True:
        try:
            time.sleep(1)
            tempfile.mkstemp()
        except OSError:  # its folder is gone
            self._frames.put(FrameKind.FAILED, b"no room")
        except BaseException:
            pass

reading_worker.ReadingWorker.read = read
reading_worker.main(sys.argv[1])
"""


@pytest.mark.parametrize("reason", ["no more orders", "half an order", "told"])
def test_a_worker_ends_whatever_its_main_thread_is_at(reason: str, tmp_path: Path) -> None:
    """As one that begins to wait at the very moment of a signal, and so takes no notice of it."""
    folder = tmp_path / "room"
    folder.mkdir()
    command = [sys.executable, "-c", HEEDLESS, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        send_order(worker.stdin, ReadOrder("claude-code", b"", b"", 0, 0, None, 0.0))
        assert receive_frame(worker.stdout) == (FrameKind.OPENED, b"begun")
        if reason == "told":
            worker.terminate()
        if reason == "half an order":
            worker.stdin.write((100).to_bytes(4, "big") + b"half")
        if reason != "told":
            worker.stdin.close()
        try:
            assert_ends(worker.pid)
        finally:
            worker.kill()
        with pytest.raises(WorkerLost, match="its pipe is closed"):
            receive_frame(worker.stdout)
    assert worker.returncode == 0
    assert not folder.exists()
