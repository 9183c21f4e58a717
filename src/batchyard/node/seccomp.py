"""seccomp profiles: which system calls a container may make, as programs that Linux runs before each call.

The default profile makes the decisions of containerd's default profile for a container without capabilities: it denies
the calls that load code into the kernel, mount, enter or make namespaces, use keyrings, trace the machine, or set its
clock. A Localhost profile is a JSON file in the format of the OCI runtime specification. Every profile denies the ABIs
of other processors, such as i386 and x32 on x86_64.

Sources: github.com/containerd/containerd (contrib/seccomp); github.com/opencontainers/runtime-spec (LinuxSeccomp);
Documentation/userspace-api/seccomp_filter.rst of Linux.
"""

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from batchyard.node import filters, syscalls
from batchyard.node.filters import Comparison

#: The folder of the node's folder with the profiles that pods name by `localhostProfile`.
FOLDER: Final = "seccomp"
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_DENY: Final = _ERRNO | errno.EPERM
_UNKNOWN: Final = _ERRNO | errno.ENOSYS
_ACTION_MASK: Final = 0xFFFF0000
_ERRNO_MAX: Final = 4095
_ACTIONS: Final = {
    "SCMP_ACT_ALLOW": _ALLOW,
    "SCMP_ACT_ERRNO": _ERRNO,
    "SCMP_ACT_KILL": 0,
    "SCMP_ACT_KILL_THREAD": 0,
    "SCMP_ACT_KILL_PROCESS": 0x80000000,
    "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_TRACE": 0x7FF00000,
    "SCMP_ACT_TRAP": 0x00030000,
}

#: The calls that the default profile denies, by their purpose.
_DENIED: Final = {
    "kernel code": "create_module delete_module finit_module get_kernel_syms init_module query_module",
    "other kernels": "kexec_file_load kexec_load",
    "mounts": "chroot mount mount_setattr move_mount open_tree open_tree_attr pivot_root umount2",
    "file systems": "fsconfig fsmount fsopen fspick",
    "namespaces": "setdomainname sethostname setns unshare",
    "keyrings": "add_key keyctl request_key",
    "tracing": "bpf fanotify_init kcmp lookup_dcookie perf_event_open syslog uprobe",
    "other processes": "pidfd_getfd process_madvise userfaultfd",
    "files by handle": "file_getattr file_setattr open_by_handle_at",
    "hardware and machine": "acct ioperm iopl quotactl quotactl_fd reboot swapoff swapon vhangup",
    "clock": "clock_settime settimeofday",
    "memory placement": "get_mempolicy mbind migrate_pages move_pages set_mempolicy set_mempolicy_home_node",
    "asynchronous input and output that other filters do not see": "io_uring_enter io_uring_register io_uring_setup",
    "obsolete": "_sysctl afs_syscall getpmsg nfsservctl putpmsg security sysfs tuxcall uselib ustat vserver",
}
#: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET.
_NAMESPACE_FLAGS: Final = 0x7E020000
_AF_ALG, _AF_VSOCK = 38, 40
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)


class Rule(NamedTuple):
    """What happens to some calls, if their arguments meet all conditions."""

    names: Sequence[str]
    action: int
    conditions: Sequence[Comparison] = ()


class Profile(NamedTuple):
    """What happens to the calls that no rule names, and the rules; the first that fits a call decides."""

    default: int
    rules: Sequence[Rule]


@cache
def default_filter() -> bytes:
    """Return the default profile as a program. ValueError if the node does not know this machine's processor."""
    return compile_profile(_default_profile(_processor()), _processor())


def filter_of_file(path: str) -> bytes:
    """Return the profile in a file as a program. ValueError, in containerd's words, if it cannot be loaded."""
    try:
        with open(path, "rb") as file:
            found = json.load(file)
    except OSError as error:
        what = (error.strerror or "").lower()
        raise ValueError(f'cannot load seccomp profile "{path}": open {path}: {what}') from error
    except ValueError as error:
        raise ValueError(f'decoding seccomp profile failed "{path}": {error}') from error
    try:
        return compile_profile(_profile_of_document(found), _processor())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f'decoding seccomp profile failed "{path}": {error}') from error


def compile_profile(profile: Profile, processor: syscalls.Processor) -> bytes:
    """Return a profile as a program for one processor."""
    decisions: dict[int, list[tuple[Sequence[Comparison], int]]] = {}
    for rule in profile.rules:
        for name in rule.names:
            number = processor.numbers.get(name)
            if number is not None:
                decisions.setdefault(number, []).append((rule.conditions, rule.action))
    newest = max(processor.numbers.values())
    beyond = _UNKNOWN if profile.default & _ACTION_MASK == _ERRNO else profile.default
    spans = list(_spans(decisions, profile.default, newest))
    spans.append(filters.Span(newest + 1, (((), beyond),)))
    return filters.program(spans, processor.audit, processor.foreign_bit, _UNKNOWN)


def _spans(
    decisions: Mapping[int, Sequence[tuple[Sequence[Comparison], int]]], default: int, newest: int
) -> Iterator[filters.Span]:
    """Yield the numbers of calls in ascending order; neighbours of the same decision are one span."""
    last: tuple[tuple[Sequence[Comparison], int], ...] | None = None
    for number in range(newest + 1):
        found = (*decisions.get(number, ()), ((), default))
        first_certain = next(index for index, (conditions, _) in enumerate(found) if not conditions)
        decision = found[: first_certain + 1]
        if decision != last:
            yield filters.Span(number, decision)
        last = decision


def _processor() -> syscalls.Processor:
    found = syscalls.processor()
    if found is None:
        raise ValueError("the numbers of this processor's system calls are not known")
    return found


def _default_profile(processor: syscalls.Processor) -> Profile:
    denied = {name for names in _DENIED.values() for name in names.split()}
    conditional = {"clone", "clone3", "personality", "socket"}
    allowed = [name for name in processor.numbers if name not in denied | conditional and name != "-"]
    return Profile(
        _DENY,
        (
            Rule(allowed, _ALLOW),
            Rule(["clone"], _ALLOW, [Comparison(0, "masked", _NAMESPACE_FLAGS, 0)]),
            Rule(["clone3"], _UNKNOWN),  # a C library falls back to clone, whose flags a filter can see
            *(Rule(["personality"], _ALLOW, [Comparison(0, "==", value)]) for value in _PERSONALITIES),
            Rule(["socket"], _ALLOW, [Comparison(0, "!=", _AF_ALG), Comparison(0, "!=", _AF_VSOCK)]),
        ),
    )


# --- profiles in files ---


_OPERATORS: Final = {
    "SCMP_CMP_NE": "!=",
    "SCMP_CMP_LT": "<",
    "SCMP_CMP_LE": "<=",
    "SCMP_CMP_EQ": "==",
    "SCMP_CMP_GE": ">=",
    "SCMP_CMP_GT": ">",
    "SCMP_CMP_MASKED_EQ": "masked",
}
_ARGUMENTS: Final = 6


def _profile_of_document(found: Mapping[str, Any]) -> Profile:
    """Return the profile that a JSON document describes. ValueError, KeyError or TypeError if it is malformed."""
    default = _action(found["defaultAction"], found.get("defaultErrnoRet"))
    rules = []
    for row in found.get("syscalls") or ():
        names = [*(row.get("names") or ()), *([row["name"]] if row.get("name") else [])]
        action = _action(row["action"], row.get("errnoRet"))
        conditions = [_condition(each) for each in row.get("args") or ()]
        if len({each.argument for each in conditions}) < len(conditions):
            rules += [Rule(names, action, [each]) for each in conditions]  # as runc does: each one suffices
        else:
            rules.append(Rule(names, action, conditions))
    return Profile(default, rules)


def _action(name: str, number: int | None) -> int:
    if name not in _ACTIONS:
        raise ValueError(f"invalid seccomp action {name}")
    if _ACTIONS[name] != _ERRNO and name != "SCMP_ACT_TRACE":
        return _ACTIONS[name]
    value = errno.EPERM if number is None else int(number)
    if not 0 <= value <= _ERRNO_MAX:
        raise ValueError(f"invalid errno {value}")
    return _ACTIONS[name] | value


def _condition(found: Mapping[str, Any]) -> Comparison:
    if found["op"] not in _OPERATORS:
        raise ValueError(f"invalid seccomp operator {found['op']}")
    index = int(found["index"])
    if not 0 <= index < _ARGUMENTS:
        raise ValueError(f"invalid argument index {index}")
    return Comparison(index, _OPERATORS[found["op"]], int(found["value"]), int(found.get("valueTwo") or 0))
