"""A primary and its standby as processes with their own folders and ports, as on two machines; and faults for them."""

import base64
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import yaml

from batchyard.server.platform.data_dir import running_process_in
from batchyard.server.replication.terms import WitnessFolder

KEY_FILES: Final = ("ca.key", "ca.crt", "tokens.key")
_WAIT_SECONDS: Final = 90
_LOG_END: Final = 4000
_OVERLOAD_MAX: Final = 10.0


def wait_until(holds: Callable[[], bool], what: str, seconds: float = _WAIT_SECONDS) -> None:
    """Wait for a condition; raise AssertionError after `seconds`, or after longer if the machine is overloaded."""
    seconds *= max(1.0, min(_OVERLOAD_MAX, os.getloadavg()[0] / (os.cpu_count() or 1)))
    for _ in range(int(seconds / 0.05)):
        if holds():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"not within {seconds:.0f} s: {what}")


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class PairNode:
    """A node of a pair: its folder and port, and its process if one runs."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port, self.url = folder, port, f"https://127.0.0.1:{port}"
        folder.mkdir(mode=0o700)
        self.log = folder.with_name(f"{folder.name}.log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        """Start the process, without waiting."""
        command = (sys.executable, "-m", "batchyard", "up", "--data-dir", str(self.folder), "--port", str(self.port))
        with self.log.open("ab") as log:
            log.write(b"--- start\n")
            log.flush()
            self.process = subprocess.Popen([*command, *options], stdout=log, stderr=log, start_new_session=True)

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        if self.process is not None:
            self.process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait for the end; continue a stopped process before."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.send_signal(signal.SIGCONT)
            self.process.wait(30)
            self.process = None

    def has_failed(self) -> bool:
        """Return whether the process has ended with an error."""
        return self.process is not None and self.process.poll() == 1

    def state(self) -> dict[str, Any]:
        """Return the stored replication state; empty before the first term."""
        with suppress(FileNotFoundError):
            state: dict[str, Any] = json.loads((self.folder / "replication.json").read_text("utf-8"))
            return state
        return {}

    def last_log(self) -> str:
        """Return the output of the last run."""
        return self.log.read_text("utf-8").rpartition("--- start\n")[2]

    def is_listening(self) -> bool:
        """Return whether the process has reported in its last run that it listens."""
        return f"listening on {self.url}" in self.last_log()

    def is_following(self) -> bool:
        """Return whether the process has stored all rows of a primary."""
        return "follows https" in self.last_log() and running_process_in(self.folder) is not None


class StandbyPair:
    """A primary and a standby."""

    def __init__(self, folder: Path, mode: str = "sync", *, has_witness: bool = False) -> None:
        self.nodes = [PairNode(folder / "a", free_port()), PairNode(folder / "b", free_port())]
        self.primary, self.standby = self.nodes
        self._witness = folder / "witness" if has_witness else None
        self._options = ("--standby", mode, *(("--witness", str(self._witness)) if has_witness else ()))
        self._mode = mode

    def __enter__(self) -> Self:
        self.primary.start(*self._options)
        wait_until(self.primary.is_listening, "the primary listens")
        for name in KEY_FILES:
            shutil.copy(self.primary.folder / name, self.standby.folder / name)
        self.follow()
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        for node in self.nodes:
            node.end()
            if error is not None:
                error.add_note(f"{node.log}: {node.state()}\n{node.log.read_text('utf-8')[-_LOG_END:]}")

    def restart(self, node: PairNode) -> None:
        """Start a node that was a primary again, as a supervisor does."""
        node.start(*self._options)

    def follow(self) -> None:
        """Start the standby, and wait until it may take over."""
        self.standby.start(*self._options, "--follow", self.primary.url)
        wait_until(self.standby.is_following, "the standby follows")
        wait_until(self._may_take_over, "it may take over")
        threading.Event().wait(0.3)  # until it has the beat

    def _may_take_over(self) -> bool:
        if self._witness is None:
            return self._mode == "async" or bool(self.primary.state().get("isShared"))
        claim = WitnessFolder(self._witness).latest()
        return claim is not None and claim.standby == self.standby.state().get("node")

    def wait_for_takeover(self) -> None:
        """Wait until the standby serves, and swap the roles."""
        wait_until(self.standby.is_listening, "the standby takes over")
        self.primary, self.standby = self.standby, self.primary

    def client_context(self) -> ssl.SSLContext:
        """Return the TLS context of the administrator, which is valid for both nodes."""
        folder = self.nodes[0].folder
        config = yaml.safe_load((folder / "kubeconfig").read_text("utf-8"))
        user = config["users"][0]["user"]
        file = folder.with_name("admin.pem")
        parts = (user["client-certificate-data"], user["client-key-data"])
        file.write_bytes(b"".join(map(base64.b64decode, parts)))
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(str(file))
        return context
