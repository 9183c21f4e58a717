"""An operator that really runs, in a process of its own, beside a platform."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Self

_ENDS_WITHIN = 30
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


class Operating:
    """A process of `batchyard operator`."""

    def __init__(self, kubeconfig: Path, *options: str) -> None:
        command = [sys.executable, "-m", "batchyard", "operator", "--kubeconfig", str(kubeconfig), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def told(self) -> str:
        """All it has told so far."""
        with self._news:
            return "".join(self._lines)

    def wait_until(self, words: str, within: float = 30) -> Self:
        """Wait until it has told that, or has ended."""
        with self._news:
            found = self._news.wait_for(lambda: any(words in line for line in self._lines), within)
        assert found, f"it has not told {words!r}: {self.told()}"
        return self

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has ended."""
        code = self.process.wait(_ENDS_WITHIN)
        self._reader.join(_ENDS_WITHIN)
        return code

    def end(self) -> int:
        """Ask it to end; its exit code."""
        self.signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        """End it without a word of warning."""
        self.process.kill()
        self.ended()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        assert self.process.stderr is not None
        self.process.stderr.close()
