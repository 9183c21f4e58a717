"""The user's kubectl, run as a subprocess."""

import json
import subprocess
from pathlib import Path
from typing import IO, Any, Final

from batchyard.cli import output

#: The bytes that kubectl reads from standard input before it processes any of them.
#: Source: k8s.io/cli-runtime, pkg/resource/visitor.go (StreamVisitor).
_READ_FIRST: Final = 4096


class Kubectl:
    """kubectl with a kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig

    def run(self, *arguments: str, sent: str = "") -> str:
        """Run kubectl with a text as standard input and return its output; ends the command if it fails."""
        return _printed(self._started(arguments), arguments, sent)

    def sending(self, *arguments: str) -> "KubectlStream":
        """Start a kubectl that processes documents as they are written to its standard input."""
        return KubectlStream(self._started(arguments), arguments)

    def _started(self, arguments: tuple[str, ...]) -> "subprocess.Popen[str]":
        return subprocess.Popen(  # noqa: S603 - kubectl with fixed arguments
            ["kubectl", "--kubeconfig", str(self._kubeconfig), *arguments],  # noqa: S607 - the user's kubectl
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


class KubectlStream:
    """A kubectl that processes each document as soon as it is given."""

    def __init__(self, process: "subprocess.Popen[str]", arguments: tuple[str, ...]) -> None:
        self._process = process
        self._arguments = arguments
        self._is_first = True

    def give(self, document: dict[str, Any]) -> None:
        """Write the next document."""
        text = json.dumps(document)
        if self._is_first:
            text = text[0] + " " * _READ_FIRST + text[1:]
            self._is_first = False
        sent: IO[str] | None = self._process.stdin
        assert sent is not None, "started with a pipe"
        try:
            sent.write(f"{text}\n")
            sent.flush()
        except BrokenPipeError:
            self.end()  # reports the failure

    def next_line(self) -> str:
        """Wait for the next line of output; ends the command if kubectl ends first."""
        printed: IO[str] | None = self._process.stdout
        assert printed is not None, "started with a pipe"
        line = printed.readline()
        return line.rstrip("\n") if line else self.end()

    def end(self) -> str:
        """Close the input and return the remaining output; ends the command if kubectl failed."""
        return _printed(self._process, self._arguments, "")


def _printed(process: "subprocess.Popen[str]", arguments: tuple[str, ...], sent: str) -> str:
    printed, reported = process.communicate(sent)
    if process.returncode:
        output.fail(f"batchyard: kubectl {' '.join(arguments)}: {reported.strip()}")
    return printed
