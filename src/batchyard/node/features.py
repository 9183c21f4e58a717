"""What this machine can do for pods, tried and not guessed; and what to do about what it cannot."""

import os
import signal
import socket
from collections.abc import Callable, Collection
from typing import NamedTuple

from batchyard.node import cgroups, commands, engine, linux, switch
from batchyard.node.cgroups import Cgroups
from batchyard.node.engine import Engine, Found

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
    "container engine": (
        "it is here and cannot be used: images are what --image says, and no others",
        "run as root with podman and runc (apt-get install podman runc), and try: podman run --rm IMAGE true",
    ),
}


_TRIAL_SECONDS = 10.0


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
    engine: Engine | None
    #: An engine that is there and cannot be used, and why.
    engine_found: str
    engine_failure: str


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
    program = None if "bubblewrap" in without or not namespaces else engine.program("bwrap")
    version = _version(program) if program else None
    groups = None if "cgroups" in without else cgroups.find()
    found = Found(None)
    if "podman" not in without:
        found = engine.find(node, dict(os.environ), groups, is_root=is_root and namespaces)
    return Features(
        is_root=is_root,
        namespaces=namespaces,
        user_namespace=user_namespace,
        switch=held.connection if held else None,
        network=network,
        network_failure=failure,
        bubblewrap=program if version else None,
        bubblewrap_version=version,
        cgroups=groups,
        engine=found.engine,
        engine_found=found.what,
        engine_failure=found.why,
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
        "engine": found.engine and {"name": "podman", "version": found.engine.version},
        "missing": missing(found),
    }


def missing(found: Features) -> list[dict[str, str]]:
    """What does not work here, what that means, and what to do about it."""
    gone = {
        "user namespaces": found.namespaces or found.is_root,
        "bubblewrap": found.bubblewrap is not None,
        "pod network": found.network is not None,
        "cgroups": found.cgroups is not None,
        "container engine": not found.engine_failure,
    }
    because = {"pod network": found.network_failure, "container engine": found.engine_failure}
    return [
        {
            "what": _named(what, found),
            "means": means + (f" ({because[what]})" if because.get(what) else ""),
            "remedy": remedy,
        }
        for what, (means, remedy) in _MISSING.items()
        if not gone[what]
    ]


def _named(what: str, found: Features) -> str:
    return found.engine_found if what == "container engine" else what


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


def _version(bubblewrap: str) -> str | None:
    """The version of bubblewrap, where it can do here what containers need."""
    trial = ["--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--cap-drop", "ALL", "true"]
    if commands.run([bubblewrap, "--die-with-parent", *trial], os.environ, _TRIAL_SECONDS).code != 0:
        return None
    return commands.run([bubblewrap, "--version"], os.environ, _TRIAL_SECONDS).output.split()[-1]
