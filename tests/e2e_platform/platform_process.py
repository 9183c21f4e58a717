"""A real platform in a separate process, and kubectl for it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Self

_READY = "listening on "
_ENDS_WITHIN = 30
_ANSWERS_WITHIN = 60


class Child:
    """A process of the command `batchyard` that ends with its test."""

    #: The Python arguments that run the command.
    program: Sequence[str] = ("-m", "batchyard")

    def __init__(self, *arguments: str, printed: Path = Path(os.devnull)) -> None:
        """Its stdout goes to a file."""
        command = [sys.executable, *self.program, *arguments]
        with printed.open("wb") as stream:
            self.process = subprocess.Popen(command, stdout=stream, stderr=subprocess.PIPE, text=True)

    @property
    def reported(self) -> IO[str]:
        """Its stderr."""
        assert self.process.stderr is not None
        return self.process.stderr

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.ended()

    def end(self) -> int:
        """Terminate the process; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(_ENDS_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self.reported.close()


class UpProcess(Child):
    """A process of `batchyard up` that listens."""

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__("up", "--data-dir", str(folder), *options)
        lines = []
        for line in self.reported:
            lines.append(line)
            if _READY in line:
                self.url = line.partition(_READY)[2].partition(",")[0]
                break
        else:
            raise AssertionError("the platform ended before it listened: " + "".join(lines))
        self.kubeconfig = folder / "kubeconfig"

    def ended(self) -> int:
        """Wait for the end; return the exit code and discard stderr."""
        code = super().ended()
        self.reported.close()
        return code

    def kubectl(self, *arguments: str, sent: str = "", fails: bool = False) -> str:
        """The output of kubectl for the owner; with `fails`, its error."""
        return kubectl(self.kubeconfig, *arguments, sent=sent, fails=fails)


def kubectl(kubeconfig: Path, *arguments: str, sent: str = "", fails: bool = False) -> str:
    """The output of kubectl with a kubeconfig; with `fails`, also its error."""
    done = subprocess.run(
        ["kubectl", *arguments],
        input=sent,
        capture_output=True,
        text=True,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
        timeout=_ANSWERS_WITHIN,
        check=False,
    )
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stdout + done.stderr if fails else done.stdout
