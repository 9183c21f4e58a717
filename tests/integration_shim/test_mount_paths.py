"""Targets and sources of mounts stay inside the container, even with malicious symlinks in volumes."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from batchyard.shim import state_dir
from integration_shim.machine import ShimMachine, container, shell, state, until, wait_for_phase

OUTER = {"source": "volumes/outer", "target": "/outer", "readOnly": False}


def with_volumes(node: ShimMachine) -> Path:
    """Create a ready pod with the volumes `outer` and `inner`; return the folder of `outer`."""
    outer = node.make("pods/u/volumes/outer", 0o777)
    node.make("pods/u/volumes/inner", 0o777)
    node.sandbox()
    return outer


def link(node: ShimMachine, path: Path, target: str) -> None:
    path.symlink_to(target)
    if node.user is not None:
        os.lchown(path, node.user, node.user)


def inner(target: str, *, is_read_only: bool = False) -> dict[str, Any]:
    return {"source": "volumes/inner", "target": target, "readOnly": is_read_only}


@pytest.mark.parametrize("target", ["/proc/self/root/oldroot/tmp", "/proc/1", "/proc", "/", "/proc/self/cwd/x"])
def test_mount_in_proc_or_at_root_is_rejected(node: ShimMachine, target: str) -> None:
    with_volumes(node)
    reported = node.ended(shell("true", mounts=[inner(target)]))
    assert reported["reason"] == "StartError"
    assert (
        "cannot be mounted because it is inside /proc" in reported["message"]
        or "a volume cannot be mounted at /" in reported["message"]
    )


@pytest.mark.parametrize(
    "target", ["/oldroot", "/oldroot/tmp", "/proc/self/root/oldroot/var/tmp", "../../oldroot", "/"]
)
def test_mount_through_symlink_of_another_volume_is_rejected(node: ShimMachine, target: str) -> None:
    link(node, with_volumes(node) / "link", target)
    for attempt, place in enumerate(("/outer/link", "/outer/link/x")):
        reported = node.ended(shell("true", attempt=attempt, mounts=[OUTER, inner(place)]))
        assert (reported["reason"], "contains a symbolic link in another volume" in reported["message"]) == (
            "StartError",
            True,
        )


def test_mount_through_symlinks_of_machine_and_volume_is_rejected(node: ShimMachine) -> None:
    link(node, with_volumes(node) / "link", "/oldroot")
    outer = OUTER | {"target": "/usr/bin/outer"}
    reported = node.ended(shell("true", mounts=[outer, inner("/bin/outer/link/x")]))
    assert "contains a symbolic link in another volume" in reported["message"]


@pytest.mark.parametrize("field", ["terminationMessagePath", "workingDir"])
def test_path_field_through_symlink_of_volume_is_rejected(node: ShimMachine, field: str) -> None:
    link(node, with_volumes(node) / "link", f"/oldroot{node.root}")
    for attempt, place in enumerate(("/outer/link/made", f"/proc/self/root/oldroot{node.root}/made")):
        reported = node.ended(shell("true", attempt=attempt, mounts=[OUTER], **{field: place}))
        assert reported["reason"] == "StartError"
    assert not (node.root / "made").exists()


@pytest.mark.parametrize("field", ["terminationMessagePath", "workingDir"])
def test_path_field_with_parent_steps_stays_in_container(node: ShimMachine, field: str) -> None:
    with_volumes(node)
    node.ended(shell("true", **{field: f"/usr/../../../oldroot{node.root}/made"}))
    node.ended(shell("true", attempt=1, **{field: f"/usr/../../../..{node.root}/made"}))
    assert not (node.root / "made").exists()


def test_image_with_symlink_at_proc_is_rejected(node: ShimMachine) -> None:
    node.make("image/usr")
    link(node, node.root / "image/proc", "usr")
    node.sandbox()
    reported = node.ended(shell("true", image={"name": "own", "root": str(node.root / "image")}))
    assert reported["reason"] == "StartError"
    assert "/proc in the image" in reported["message"]
    assert "is a symbolic link" in reported["message"]


def test_nested_volumes_keep_their_own_access_mode(node: ShimMachine) -> None:
    with_volumes(node)
    node.make("pods/u/volumes/third", 0o777)
    third = {"source": "volumes/third", "target": "/outer/a/inner/third", "readOnly": False}
    for attempt, (outer, is_read_only) in enumerate(
        ((OUTER, False), (OUTER, True), (OUTER | {"readOnly": True}, False))
    ):
        node.ended(
            shell(
                "for place in /outer /outer/a/inner /outer/a/inner/third; do "
                "(echo x > $place/file) 2>/dev/null && echo writes || echo no; done",
                attempt=attempt,
                mounts=[third, inner("/outer/a/inner", is_read_only=is_read_only), outer]
                if attempt != 1
                else [inner("/outer/a/inner", is_read_only=True), outer],
            )
        )
    assert [text for _, _, text in node.log()] == ["writes", "writes", "writes"]
    assert [text for _, _, text in node.log(name="main/1.log")] == ["writes", "no", "no"]
    assert [text for _, _, text in node.log(name="main/2.log")] == ["no", "writes", "writes"]


def test_nested_volume_is_visible_at_its_target_only(node: ShimMachine) -> None:
    outer = with_volumes(node)
    mounts = [OUTER, OUTER | {"target": "/again"}, inner("/outer/in")]
    node.ended(shell("touch /outer/in/x; ls /outer/in; ls /again/in; pwd", mounts=mounts, workingDir="/outer/in/here"))
    assert node.texts() == ["here", "x", "/outer/in/here"]
    assert sorted(path.name for path in outer.iterdir()) == ["in"]
    assert not list((outer / "in").iterdir())


def test_termination_message_is_read_from_volume(node: ShimMachine) -> None:
    with_volumes(node)
    reported = node.ended(shell("echo so > /outer/deep/words", mounts=[OUTER], terminationMessagePath="/outer/words"))
    assert reported["message"] == ""
    reported = node.ended(
        shell("echo so > /outer/words", attempt=1, mounts=[OUTER], terminationMessagePath="/outer/words")
    )
    assert reported["message"] == "so\n"


def test_host_path_with_symlink_is_rejected(node: ShimMachine) -> None:
    with_volumes(node)
    real = node.make("real/below", 0o777)
    link(node, node.root / "link", "real")
    for attempt, (path, is_right) in enumerate(((real, True), (node.root / "link/below", False))):
        mount = {"source": str(path), "target": "/machine", "readOnly": False}
        reported = node.ended(shell("touch /machine/made", attempt=attempt, mounts=[mount]))
        assert ("leads out of its volume" in reported["message"]) is not is_right
    assert [path.name for path in real.iterdir()] == ["made"]


def test_container_inherits_no_file_descriptors(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(container("python3", "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"))
    assert node.texts() == ["[0, 1, 2, 3]"]  # the last is the listed folder itself


def test_working_directory_replaced_by_symlink_to_descriptor_is_rejected(node: ShimMachine) -> None:
    """See CVE-2024-21626 of runc."""
    outer = with_volumes(node)
    command = ["sh", "-c", "ls .. > /outer/found"]
    hook = {"exec": {"command": command}}
    run = node.start(container("sleep", "600", mounts=[OUTER], workingDir="/outer/here", hooks={"preStop": hook}))
    assert wait_for_phase(run, "Running")
    (outer / "here").rename(outer / "was")
    for number in range(3, 32):
        link(node, outer / "here", f"/proc/self/fd/{number}")
        reported = session(node, run, command)
        assert "started" not in reported or "error" in reported, reported
        (outer / "here").unlink()
    link(node, outer / "here", "/proc/self/fd/5")
    node.stop(run)
    until(lambda: state(run)["phase"] == "Exited", "its end")
    assert not (outer / "found").exists()


def session(node: ShimMachine, run: Path, argv: list[str]) -> dict[str, Any]:
    """The reported state of another command in a container."""
    reported: dict[str, Any] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks, Path(os.devnull).open("rb+") as nothing:
        asks.connect(state_dir.socket_address(node.folder, "sessions"))
        request = {"run": str(run.relative_to(node.root)), "argv": argv, "tty": False}
        socket.send_fds(asks, [json.dumps(request).encode()], [nothing.fileno()] * 3)
        while not {"error", "exit_code"} & reported.keys():
            reported |= json.loads(asks.recv(4096))
    return reported
