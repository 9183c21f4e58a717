"""A real operator of a platform in a separate process."""

import http.client
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

from e2e_platform.platform_process import Child, UpProcess

_PLAIN = """
apiVersion: v1
kind: Config
clusters: [{{name: plain, cluster: {{server: "{url}"}}}}]
contexts: [{{name: plain, context: {{cluster: plain}}}}]
current-context: plain
"""


def plain_kubeconfig(folder: Path, url: str) -> Path:
    """The kubeconfig of a platform without TLS."""
    path = folder / "plain.kubeconfig"
    path.write_text(_PLAIN.format(url=url))
    return path


class OperatorRun(Child):
    """A process of `batchyard operator`."""

    def __init__(self, kubeconfig: Path, *options: str, printed: Path = Path(os.devnull)) -> None:
        super().__init__("operator", "--kubeconfig", str(kubeconfig), *options, printed=printed)
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def log(self) -> str:
        """The log so far."""
        with self._news:
            return "".join(self._lines)

    def wait_until(self, words: str, within: float = 30) -> Self:
        """Wait until the log contains a text, or the operator has ended."""
        with self._news:
            result = self._news.wait_for(lambda: any(words in line for line in self._lines), within)
        assert result, f"it has not told {words!r}: {self.log()}"
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Wait for the end and the whole log; return the exit code."""
        code = super().ended()
        self._reader.join()
        return code

    def _read(self) -> None:
        for line in self.reported:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()


def free_port() -> int:
    """A free port."""
    with socket.socket() as result:
        result.bind(("127.0.0.1", 0))
        port: int = result.getsockname()[1]
    return port


def ask_text(port: int, path: str, token: str = "") -> tuple[int, str]:
    """Code and text of a response at a port of this machine."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


@contextmanager
def platform_with_queues(folder: Path, *, has_operator: bool) -> Iterator[UpProcess]:
    """A platform that runs all controllers, or one whose jobs, pods and services an operator queues."""
    options = ("--controllers", "*,-admission,-pods") if has_operator else ()
    with UpProcess(folder, "--speed", "10x", *options) as started, ExitStack() as stack:
        if has_operator:
            operator = OperatorRun(started.kubeconfig, "--controllers", "admission,pods", "--no-leader-elect")
            stack.enter_context(operator).wait_until("runs admission, pods", within=120)
        yield started
