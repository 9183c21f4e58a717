"""kubectl, the user's own, as a command of ours runs it."""

import json
import subprocess
from pathlib import Path
from typing import IO, Any, Final

from batchyard.cli import output

#: kubectl reads so many bytes of what comes by its standard input before it looks at any of it.
#: Source: k8s.io/cli-runtime, pkg/resource/visitor.go (StreamVisitor).
_READ_FIRST: Final = 4096


class Kubectl:
    """kubectl with a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str, sent: str = "") -> str:
        """What it prints, given a text as its standard input; ends the command where it fails."""
        return _printed(self._started(arguments), arguments, sent)

    def sending(self, *arguments: str) -> "Sending":
        """Let it begin to send documents, which come by its standard input."""
        return Sending(self._started(arguments), arguments)

    def _started(self, arguments: tuple[str, ...]) -> "subprocess.Popen[str]":
        return subprocess.Popen(  # noqa: S603 - kubectl with words of ours
            ["kubectl", "--kubeconfig", str(self._kubeconfig), *arguments],  # noqa: S607 - the user's own
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class Sending:
    """A kubectl that sends each document as soon as it is given."""

    def __init__(self, process: "subprocess.Popen[str]", arguments: tuple[str, ...]) -> None:
        self._process = process
        self._arguments = arguments
        self._is_first = True

    def give(self, document: dict[str, Any]) -> None:
        """The next document."""
        text = json.dumps(document)
        if self._is_first:
            text = text[0] + " " * _READ_FIRST + text[1:]
            self._is_first = False
        sent: IO[str] | None = self._process.stdin
        assert sent is not None, "it was started with a pipe"
        try:
            sent.write(f"{text}\n")
            sent.flush()
        except BrokenPipeError:
            self.end()  # which tells why it ended

    def next_line(self) -> str:
        """The next line that it prints, once it is there; ends the command if it ends before."""
        printed: IO[str] | None = self._process.stdout
        assert printed is not None, "it was started with a pipe"
        line = printed.readline()
        return line.rstrip("\n") if line else self.end()

    def end(self) -> str:
        """What it printed, once all is sent; ends the command where it failed."""
        return _printed(self._process, self._arguments, "")


def _printed(process: "subprocess.Popen[str]", arguments: tuple[str, ...], sent: str) -> str:
    printed, told = process.communicate(sent)
    if process.returncode:
        output.fail(f"batchyard: kubectl {' '.join(arguments)}: {told.strip()}")
    return printed
