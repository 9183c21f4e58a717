"""What this machine can do for pods, tried and not guessed; and what to do about what it cannot."""

import os
import signal
import socket
from collections.abc import Callable, Collection
from typing import NamedTuple

from batchyard.node import cgroups, linux, switch
from batchyard.node.cgroups import Cgroups

_MISSING = {
    "user namespaces": (
        "containers are plain processes, and pods have no network of their own",
        "run as root, or allow them: sysctl user.max_user_namespaces and kernel.apparmor_restrict_unprivileged_userns",
    ),
    "bubblewrap": (
        "containers are plain processes: they see all files that this user sees, and volumes cannot be mounted",
        "apt-get install bubblewrap",
    ),
    "pod network": (
        "pods share the machine's network: two cannot listen to the same port",
        "run as root, or allow user namespaces; the kernel needs its modules bridge and veth",
    ),
    "cgroups": (
        "memory is bounded for each process, not for all of a container, and is refused; processor time is not bounded",
        "run as root, or as a service of systemd's user manager: systemd-run --user --scope -p Delegate=yes",
    ),
}


class Features(NamedTuple):
    """What the programs of a node may use."""

    is_root: bool
    #: Namespaces can be made: because this is root, or in a user namespace of the spawner's own.
    namespaces: bool
    #: The spawner has made itself a user namespace.
    user_namespace: bool
    #: What keeps the switch alive, as long as anybody has it.
    switch: socket.socket | None
    #: The network namespace into which pods are plugged, held open.
    network: int | None
    #: Why there is none.
    network_failure: str
    #: The path of bubblewrap, if it works here.
    bubblewrap: str | None
    bubblewrap_version: str | None
    cgroups: Cgroups | None


def look(node: int, without: Collection[str]) -> Features:
    """Find out what works, enter a user namespace where that is needed, and see that there is a switch."""
    is_root = os.geteuid() == 0
    held = switch.find(node)
    namespaces = works(_make_namespaces)
    user_namespace = not namespaces and "userns" not in without and works(_make_user_namespace)
    if user_namespace:
        linux.become_root_of_a_user_namespace(held.user_namespace if held else None)
        namespaces = True
    if namespaces and not held:
        held = switch.start(node)
    network = held.network if held and "network" not in without else None
    failure = held.failure if held else "no namespaces can be made"
    program = None if "bubblewrap" in without or not namespaces else _program("bwrap")
    version = _version(program) if program else None
    return Features(
        is_root=is_root,
        namespaces=namespaces,
        user_namespace=user_namespace,
        switch=held.connection if held else None,
        network=network,
        network_failure=failure,
        bubblewrap=program if version else None,
        bubblewrap_version=version,
        cgroups=None if "cgroups" in without else cgroups.find(),
    )


def told(found: Features) -> dict[str, object]:
    """The same as the platform is told it."""
    return {
        "spawner": os.getpid(),
        "isRoot": found.is_root,
        "userNamespaces": found.user_namespace,
        "bubblewrap": found.bubblewrap_version,
        "podNetwork": found.network is not None,
        "cgroups": found.cgroups and {"version": found.cgroups.version, "controllers": sorted(found.cgroups.base)},
        "missing": missing(found),
    }


def missing(found: Features) -> list[dict[str, str]]:
    """What does not work here, what that means, and what to do about it."""
    gone = {
        "user namespaces": found.namespaces or found.is_root,
        "bubblewrap": found.bubblewrap is not None,
        "pod network": found.network is not None,
        "cgroups": found.cgroups is not None,
    }
    because = {"pod network": found.network_failure}
    return [
        {"what": what, "means": means + (f" ({because[what]})" if because.get(what) else ""), "remedy": remedy}
        for what, (means, remedy) in _MISSING.items()
        if not gone[what]
    ]


def named_in(environment: str) -> list[str]:
    """What an environment variable says to do without."""
    return os.environ.get(environment, "").replace(",", " ").split()


def works(trial: Callable[[], None]) -> bool:
    """Whether something can be done, tried in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(10)
            trial()
            code = 0
        except OSError:
            code = 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _make_namespaces() -> None:
    linux.unshare(linux.NEWNS | linux.NEWIPC | linux.NEWUTS)
    linux.keep_mounts_to_oneself()


def _make_user_namespace() -> None:
    linux.become_root_of_a_user_namespace(None)
    _make_namespaces()


def _program(name: str) -> str | None:
    """Where a program lies."""
    paths = (f"{folder}/{name}" for folder in os.get_exec_path())
    return next((path for path in paths if os.access(path, os.X_OK)), None)


def _version(bubblewrap: str) -> str | None:
    """The version of bubblewrap, where it can do here what containers need."""
    trial = ["--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--cap-drop", "ALL", "true"]
    if _output([bubblewrap, "--die-with-parent", *trial]) is None:
        return None
    return (_output([bubblewrap, "--version"]) or "").split()[-1]


def _output(argv: list[str]) -> str | None:
    """What a command writes; None where it fails."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writes, 1)
        os.dup2(os.open("/dev/null", os.O_RDWR), 2)
        try:
            os.execv(argv[0], argv)
        finally:
            os._exit(1)
    os.close(writes)
    with open(reads, encoding="utf-8") as output:
        text = output.read()
    return text if os.waitpid(child, 0)[1] == 0 else None
