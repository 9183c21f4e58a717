"""No container leaves its isolation: all attempts of `escapes.py` fail in commands, hooks and sessions."""

import ctypes
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchyard.shim import state_dir
from batchyard.shim.container_exec import user_of
from batchyard.shim.isolation import seccomp
from integration_shim import escapes
from integration_shim.conftest import SharedNodes
from integration_shim.machine import ORDINARY_USER, ShimMachine, container, until, wait_for_phase

POD: dict[str, Any] = {"network": "pod", "address": "10.99.0.9/16", "gateway": "10.99.0.1"}
VOLUME = [{"source": "volumes/data", "target": "/volume", "readOnly": False}]
#: Files of /proc that every process may open for writing, with effect on that process only.
HARMLESS = {f"/proc/pressure/{name}" for name in ("cpu", "io", "irq", "memory")}
PROCESSOR = seccomp.find_processor()
NUMBERS = dict(PROCESSOR.call_numbers) if PROCESSOR else {}
SOURCE = f"{Path(escapes.__file__).read_text()}".replace("NUMBERS: dict[str, int] = {}", f"NUMBERS = {NUMBERS!r}")
PROGRAM = ("python3", "-c", SOURCE)
CORE_PATTERN = Path("/proc/sys/kernel/core_pattern")

pytestmark = pytest.mark.skipif(PROCESSOR is None, reason="the system call numbers of this processor are unknown")


def run_as_command(node: ShimMachine, **fields: Any) -> dict[str, Any]:
    """Run the program as the command of a container."""
    reported = node.ended(container(*PROGRAM, mounts=VOLUME, network="pod", **fields))
    assert reported["exitCode"] == 0, node.texts()
    return found_in("".join(text for _, _, text in node.log()))


def run_as_hook(node: ShimMachine, **fields: Any) -> dict[str, Any]:
    """Run the program as a postStart hook."""
    hook = {"exec": {"command": ["sh", "-c", '"$@" > /volume/found', "sh", *PROGRAM]}}
    node.start(container("sleep", "600", mounts=VOLUME, network="pod", hooks={"postStart": hook}, **fields))
    return found_in(until(lambda: (text := text_of(node, "found")).endswith("\n") and text, "the end of the hook"))


def run_in_session(node: ShimMachine, **fields: Any) -> dict[str, Any]:
    """Run the program in a session, as `kubectl exec` does."""
    run = node.start(container("sleep", "600", mounts=VOLUME, network="pod", **fields))
    wait_for_phase(run, "Running")
    reads, writes = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks, Path(os.devnull).open("rb") as nothing:
        asks.connect(state_dir.socket_address(node.folder, "sessions"))
        request = {"run": str(run.relative_to(node.root)), "argv": list(PROGRAM), "tty": False}
        socket.send_fds(asks, [json.dumps(request).encode()], [nothing.fileno(), writes, writes])
        os.close(writes)
        with os.fdopen(reads, "rb") as output:
            text = output.read().decode()
    return found_in(text)


def text_of(node: ShimMachine, name: str) -> str:
    path = node.root / "pods/u/volumes/data" / name
    return path.read_text() if path.exists() else ""


def found_in(text: str) -> dict[str, Any]:
    try:
        result_by_name: dict[str, Any] = json.loads(text)
    except ValueError:
        raise AssertionError(text) from None
    return result_by_name


WAYS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "command": run_as_command,
    "hook": run_as_hook,
    "session": run_in_session,
}
USERS: Mapping[str, Mapping[str, int] | None] = {"as root": None, "as 1000": {"uid": 1000, "gid": 1000}}


class AttemptResults(NamedTuple):
    """The results of all attempts, and the user of the container."""

    result_by_name: dict[str, Any]
    user: Mapping[str, int] | None


_RESULTS: dict[tuple[str, str, str], AttemptResults] = {}


@pytest.fixture(params=["node of root", "node of a user"])
def owner(request: pytest.FixtureRequest) -> str:
    """The owner of the node."""
    if os.geteuid() != 0 and request.param == "node of root":
        pytest.skip("this case needs root")
    return str(request.param)


@contextmanager
def sandbox_node(pool: SharedNodes, owner: str) -> Iterator[ShimMachine]:
    """A node with the sandbox of a pod with a volume. Restores the core pattern of the machine."""
    ordinary = ORDINARY_USER if owner == "node of a user" and os.geteuid() == 0 else None
    with pool.lend("podman,docker", ordinary) as node:
        if not node.features["bubblewrap"]:
            pytest.skip("bubblewrap is missing or does not work on this machine")
        node.make("pods/u/volumes/data", 0o777)
        node.sandbox(**POD)
        before = CORE_PATTERN.read_text()
        try:
            yield node
        finally:
            if CORE_PATTERN.read_text() != before:
                CORE_PATTERN.write_text(before)


@pytest.fixture(params=USERS)
def user(request: pytest.FixtureRequest) -> str:
    """The user of the container."""
    return str(request.param)


@pytest.fixture(params=WAYS)
def attempt_results(request: pytest.FixtureRequest, pool: SharedNodes, owner: str, user: str) -> AttemptResults:
    """The results of all attempts."""
    key = (request.param, owner, user)
    if key not in _RESULTS:
        remember_key()
        with sandbox_node(pool, owner) as node:
            before = CORE_PATTERN.read_text()
            reported = WAYS[request.param](node, user=USERS[user])
            reported |= {"core_pattern": [before, CORE_PATTERN.read_text()], "ran": handlers_of(node)}
            _RESULTS[key] = AttemptResults(reported, USERS[user])
    return _RESULTS[key]


@pytest.fixture
def result_by_name(attempt_results: AttemptResults) -> dict[str, Any]:
    """The results by name."""
    return attempt_results.result_by_name


def remember_key() -> None:
    """Add a key to the session keyring of the machine, which the programs of the node inherit."""
    libc = ctypes.CDLL(None)
    libc.syscall(NUMBERS["add_key"], b"user", b"batchyard-of-the-machine", b"x", 1, ctypes.c_long(-3))


def handlers_of(node: ShimMachine) -> list[str]:
    """The folders with files that a core pattern handler wrote on the machine."""
    return [
        place for place, _, names in os.walk(node.root) if "handler.ran" in names
    ]  # folders may disappear meanwhile


def test_dangerous_system_calls_are_denied(result_by_name: dict[str, Any]) -> None:
    assert len(result_by_name["calls"]) >= 60
    allowed = {
        name: error for name, error in result_by_name["calls"].items() if error not in {"EPERM", "EACCES", "ENOSYS"}
    }
    assert allowed == {}


def test_system_calls_of_other_abis_are_denied(result_by_name: dict[str, Any]) -> None:
    assert set(result_by_name["foreign"].values()) <= {"EPERM", "ENOSYS"}


def test_proc_and_sys_are_not_writable(result_by_name: dict[str, Any]) -> None:
    assert set(result_by_name["writable"]) - HARMLESS == set()


def test_masked_paths_are_hidden(result_by_name: dict[str, Any]) -> None:
    assert [path for path, is_hidden in result_by_name["masked"].items() if not is_hidden] == []


def test_container_has_separate_namespaces_and_cannot_create_others(result_by_name: dict[str, Any]) -> None:
    own = result_by_name["identity"]["namespaces"]
    shared = [name for name in own if name != "time" and own[name] == str(Path(f"/proc/self/ns/{name}").readlink())]
    assert shared == []
    assert set(result_by_name["unshare"].values()) == {"EPERM"}


def test_container_user_is_mapped_and_has_no_capabilities(attempt_results: AttemptResults) -> None:
    identity = attempt_results.result_by_name["identity"]
    ((inside, _, count),) = identity["map"]
    uid = attempt_results.user["uid"] if attempt_results.user else 0
    assert (identity["uid"], inside, count) == (uid, uid, 1)
    assert set(identity["capabilities"]) == {"0000000000000000"}
    assert (identity["seccomp"], identity["no_new_privs"]) == ("2", "1")


def test_container_runs_as_unprivileged_user_of_machine(pool: SharedNodes, owner: str, user: str) -> None:
    with sandbox_node(pool, owner) as node:
        run = node.start(container("sleep", "600", network="pod", user=USERS[user]))
        uid, gid, groups = user_of(wait_for_phase(run, "Running")["pid"])
        own = node.root.stat().st_uid
        assert (uid, gid, groups) == (own, own, groups) if own else uid == gid >= 1 << 16
        assert 0 not in {uid, gid, *groups}


def test_crash_runs_no_core_pattern_handler_on_machine(result_by_name: dict[str, Any]) -> None:
    assert (result_by_name["handler"], result_by_name["ran"]) == ("", [])
    assert result_by_name["core_pattern"][0] == result_by_name["core_pattern"][1]


def test_container_cannot_reach_keyrings_of_machine(result_by_name: dict[str, Any]) -> None:
    assert result_by_name["keys"] == {"search": ["EPERM"] * 3, "seen": False}


def test_unconfined_container_has_separate_keyrings(pool: SharedNodes, owner: str, user: str) -> None:
    remember_key()
    with sandbox_node(pool, owner) as node:
        result_by_name = run_as_command(node, user=USERS[user], seccomp={"type": "Unconfined"})
    assert result_by_name["identity"]["seccomp"] == "0"
    assert result_by_name["keys"] == {"search": ["ENOKEY"] * 3, "seen": False}
