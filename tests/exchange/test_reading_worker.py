"""The worker of an import by itself: it ends as soon as it should, and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.exchange.worker_processes import assert_ends
from weft.exchange.importing.reading_ahead import FrameKind, ReadOrder, WorkerLost, receive_frame, send_order

HEEDLESS = """
import os, resource, subprocess, sys, tempfile, time
from weft.exchange.importing import reading_ahead
from weft.exchange.importing.reading_ahead import FrameKind

def read(self, order):
    os.close(tempfile.mkstemp(dir=tempfile.mkdtemp())[0])
    if sys.argv[2] == "no more descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                os.dup(2)
        except OSError:
            pass
    if sys.argv[2] == "told":  # and its children are told by themselves
        child = subprocess.run(["grep", "SigBlk", "/proc/self/status"], capture_output=True, text=True)
        assert child.stdout.split()[1].strip("0") == "", child.stdout
    self._frames.put(FrameKind.OPENED, b"begun")
    while True:
        try:
            time.sleep(0.1)
            if sys.argv[2] == "nobody listens":
                self._frames.put(FrameKind.RAW, b"more")
            elif sys.argv[2] != "no more descriptors":
                os.close(tempfile.mkstemp()[0])
        except OSError:  # its folder is gone
            self._frames.put(FrameKind.FAILED, b"no room")
        except BaseException:
            pass

reading_ahead.ReadingWorker.read = read
reading_ahead.main(sys.argv[1])
"""


REASONS = ("no more orders", "half an order", "no order", "nobody listens", "no more descriptors", "told")


@pytest.mark.parametrize("reason", REASONS)
def test_a_worker_ends_whatever_its_main_thread_is_at(reason: str, tmp_path: Path) -> None:
    """As one that begins to wait at the very moment of a signal, and so takes no notice of it."""
    folder = tmp_path / "room"
    folder.mkdir()
    command, pipe = [sys.executable, "-c", HEEDLESS, str(folder), reason], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        send_order(worker.stdin, ReadOrder("claude-code", b"", b"", 0, 0, None, 0.0))
        assert receive_frame(worker.stdout) == (FrameKind.OPENED, b"begun")
        if reason == "told":
            worker.terminate()
        elif reason == "half an order":
            worker.stdin.write((100).to_bytes(4, "big") + b"half")
        elif reason == "no order":
            worker.stdin.write((4).to_bytes(4, "big") + b"\xc1\xc1\xc1\xc1")
        if reason == "nobody listens":
            worker.stdout.close()
        elif reason != "told":
            worker.stdin.close()
        try:
            assert_ends(worker.pid)
        finally:
            worker.kill()
        if reason != "nobody listens":
            with pytest.raises(WorkerLost, match="its pipe is closed"):
                receive_frame(worker.stdout)
        assert (b"DecodeError" in worker.stderr.read()) == (reason == "no order")
    assert worker.returncode == 0
    assert not folder.exists()
