"""Long work says on a terminal what it is doing, and nothing in a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

COMMAND = [sys.executable, "-m", "noria", "run", "--device", "cpu", "--steps", "2", "--json"]


def test_a_terminal_sees_the_passes() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=theirs, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        seen += part
    output, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert output.startswith(b'{"model"'), "the result alone"
    text = seen.decode(errors="replace")
    assert "pass 2 of 2" in text
    assert "MiB read" in text


def test_a_pipe_sees_the_result_alone() -> None:
    done = subprocess.run(COMMAND, capture_output=True, text=True, check=True)
    assert done.stdout.startswith('{"model"')
    assert done.stderr == ""
