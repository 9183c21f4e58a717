"""System call filters: Linux enforces the rules of a profile."""

import ctypes
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batchyard.shim import linux
from batchyard.shim.isolation import seccomp
from integration_shim.machine import ShimMachine, shell

PROCESSOR = seccomp.find_processor()
pytestmark = pytest.mark.skipif(PROCESSOR is None, reason="the system call numbers of this processor are unknown")


def outcomes(rules: bytes, *calls: tuple[str, Sequence[int]]) -> list[str]:
    """The error names of system calls in a process with a filter, or '' for success."""
    assert PROCESSOR is not None
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            linux.drop_privileges()
            linux.install_seccomp_filter(rules)
            libc = ctypes.CDLL(None, use_errno=True)
            reported = []
            for name, arguments in calls:
                number = PROCESSOR.call_numbers.get(name, 100000)
                result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, arguments))
                reported.append(errno.errorcode[ctypes.get_errno()] if result == -1 else "")
            os.write(writes, json.dumps(reported).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    found: list[str] = json.loads(text)
    return found


def write_profile(folder: Path, **fields: Any) -> str:
    path = folder / "profile.json"
    path.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", **fields}))
    return str(path)


def row(name: str, action: str, **fields: Any) -> dict[str, Any]:
    return {"names": [name], "action": action, **fields}


def test_system_call_fails_with_errno_of_its_rule(tmp_path: Path) -> None:
    rows = [
        row("getppid", "SCMP_ACT_ERRNO", errnoRet=7),
        row("getuid", "SCMP_ACT_ERRNO"),
        row("getgid", "SCMP_ACT_LOG"),
    ]
    rules = seccomp.compile_profile_file(write_profile(tmp_path, syscalls=rows))
    calls = [(name, ()) for name in ("getppid", "getuid", "getgid", "getpid")]
    assert outcomes(rules, *calls) == ["E2BIG", "EPERM", "", ""]


@pytest.mark.parametrize(
    ("operator", "value", "denied", "allowed"),
    [
        ("SCMP_CMP_EQ", 1 << 32 | 5, [1 << 32 | 5], [5, 1 << 32, 0]),
        ("SCMP_CMP_NE", 1 << 32 | 5, [5, 1 << 32, 0], [1 << 32 | 5]),
        ("SCMP_CMP_LT", 1 << 32 | 5, [4, 1 << 32 | 4, 1 << 31], [1 << 32 | 5, 1 << 32 | 6, 1 << 33]),
        ("SCMP_CMP_LE", 1 << 32 | 5, [4, 1 << 32 | 5, 1 << 31], [1 << 32 | 6, 1 << 33]),
        ("SCMP_CMP_GT", 1 << 32 | 5, [1 << 32 | 6, 1 << 33], [4, 1 << 32 | 5, 1 << 31]),
        ("SCMP_CMP_GE", 1 << 32 | 5, [1 << 32 | 5, 1 << 33], [4, 1 << 32 | 4, 1 << 31]),
    ],
)
def test_arguments_are_compared_with_all_64_bits(
    tmp_path: Path, operator: str, value: int, denied: list[int], allowed: list[int]
) -> None:
    tested = [{"index": 0, "op": operator, "value": value}]
    rows = [row("umask", "SCMP_ACT_ERRNO", args=tested)]
    rules = seccomp.compile_profile_file(write_profile(tmp_path, syscalls=rows))
    assert set(outcomes(rules, *(("umask", [each]) for each in denied))) == {"EPERM"}
    assert set(outcomes(rules, *(("umask", [each]) for each in allowed))) == {""}


def test_rule_applies_if_all_its_argument_tests_including_masks_pass(tmp_path: Path) -> None:
    masked = {"index": 0, "op": "SCMP_CMP_MASKED_EQ", "value": 0xF0, "valueTwo": 0x50}
    rows = [row("umask", "SCMP_ACT_ERRNO", args=[masked, {"index": 1, "op": "SCMP_CMP_EQ", "value": 1}])]
    rules = seccomp.compile_profile_file(write_profile(tmp_path, syscalls=rows))
    result = outcomes(rules, ("umask", [0x53, 1]), ("umask", [0x53, 2]), ("umask", [0x63, 1]))
    assert result == ["EPERM", "", ""]


def test_system_calls_newer_than_profile_fail_with_enosys(tmp_path: Path) -> None:
    assert outcomes(seccomp.default_filter(), ("nosuch", ())) == ["ENOSYS"]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("{", "decoding seccomp profile failed"),
        ("[]", "decoding seccomp profile failed"),
        ('{"defaultAction": "SCMP_ACT_NO"}', "invalid seccomp action SCMP_ACT_NO"),
        ('{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 5000}', "invalid errno 5000"),
    ],
)
def test_malformed_profile_is_rejected(tmp_path: Path, text: str, reported: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=reported):
        seccomp.compile_profile_file(str(path))


def test_missing_profile_is_reported_with_containerd_error(tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    with pytest.raises(
        ValueError, match=f'cannot load seccomp profile "{path}": open {path}: no such file or directory'
    ):
        seccomp.compile_profile_file(str(path))


def test_container_uses_its_localhost_profile(node: ShimMachine) -> None:
    place = node.make("seccomp", 0o700)
    rows = [row("mkdir", "SCMP_ACT_ERRNO", errnoRet=28), row("mkdirat", "SCMP_ACT_ERRNO", errnoRet=28)]
    (place / "own.json").write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rows}))
    (place / "own.json").chmod(0o644)
    node.sandbox()
    node.ended(shell("mkdir /tmp/x 2>&1; true", seccomp={"type": "Localhost", "profile": "own.json"}))
    assert node.texts() == ["mkdir: cannot create directory '/tmp/x': No space left on device"]


def test_unconfined_container_has_no_filter(node: ShimMachine) -> None:
    node.sandbox()
    node.ended(shell("grep Seccomp: /proc/self/status | tr -d '\\t'", seccomp={"type": "Unconfined"}))
    assert node.texts() == ["Seccomp:0"]


def test_proc_is_masked_by_default(node: ShimMachine) -> None:
    node.sandbox()
    script = "grep -c ' /proc/' /proc/self/mountinfo; true"
    node.ended(shell(script, procMount="Unmasked"))
    node.ended(shell(script, attempt=1))
    (unmasked,) = node.texts()
    ((_, _, default),) = node.log(name="main/1.log")
    assert (unmasked, int(default) > 3) == ("0", True)
