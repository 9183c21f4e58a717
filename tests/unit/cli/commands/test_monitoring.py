"""The wait for a program that serves HTTP."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from batchyard.cli.commands.monitoring import HttpProgram, ProgramError, start_program, wait_until_ready


def test_wait_for_silent_program_ends_at_its_limit(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setblocking(False)
        command = (sys.executable, "-c", "import time; time.sleep(600)")
        program = HttpProgram("Silent", command, silent.getsockname()[1], "/ready", tmp_path / "log")
        process = start_program(program)
        try:
            with pytest.raises(ProgramError, match=r"Silent was not ready within 0.5 s; read its log .*/log"):
                wait_until_ready(program, process, 0.5)
        finally:
            process.kill()
            process.wait()
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_wait_reports_program_that_ended(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    program = HttpProgram("Broken", (sys.executable, "-c", "exit('no data')"), port, "/ready", tmp_path / "log")
    process: subprocess.Popen[bytes] = start_program(program)
    with pytest.raises(ProgramError, match=r"(?s)Broken ended with exit code 1; .*no data"):
        wait_until_ready(program, process)
