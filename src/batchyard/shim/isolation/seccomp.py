"""seccomp profiles of containers, compiled to BPF programs that Linux runs before each system call.

The default profile is equivalent to containerd's default profile for a container without capabilities. It denies calls
that load kernel code, mount, enter or create namespaces, use keyrings, trace the kernel, or set the machine's clock. A
Localhost profile is a JSON file in the format of the OCI runtime specification. Every profile denies other ABIs, such
as i386 and x32 on x86_64.

Sources: github.com/containerd/containerd (contrib/seccomp); github.com/opencontainers/runtime-spec (LinuxSeccomp);
Documentation/userspace-api/seccomp_filter.rst of Linux.
"""

import errno
import json
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

# Classic BPF programs that filter system calls (struct seccomp_data).
#
# A program checks the ABI, finds the call number by binary search, and compares arguments where a decision depends on
# them. Linux accepts at most 4096 instructions.


_LOAD, _AND, _RETURN, _JUMP = 0x20, 0x54, 0x06, 0x05
_IF_EQUAL, _IF_GREATER, _IF_AT_LEAST, _IF_BITS = 0x15, 0x25, 0x35, 0x45
#: Offsets in struct seccomp_data; an argument has 8 bytes, its low half first.
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_WORD_MASK: Final = 0xFFFFFFFF
_INSTRUCTIONS_MAX: Final = 4096


class ArgumentComparison(NamedTuple):
    """A condition on a system call argument: `==`, `!=`, `<`, `<=`, `>`, `>=`, or `masked`.

    `argument` is the argument's number, from 0. `masked` means that the argument's bits in the mask `value` equal
    `expected`.
    """

    argument: int
    operator: str
    value: int
    expected: int = 0


class SyscallSpan(NamedTuple):
    """A range of system call numbers with the same rules; the first rule whose conditions all hold applies."""

    first_number: int
    decisions: Sequence[tuple[Sequence[ArgumentComparison], int]]


class _Instruction(NamedTuple):
    """A BPF instruction, with the number of instructions to skip if its condition is true, and if it is false."""

    code: int
    value: int
    skip_if_true: int = 0
    skip_if_false: int = 0


def build_bpf_program(
    spans: Sequence[SyscallSpan], architecture: int, foreign_abi_bit: int, foreign_abi_action: int
) -> bytes:
    """Return the BPF program for ranges of system calls, in ascending order.
    `foreign_abi_action` is the action for calls of another ABI: calls with another architecture than `architecture`, or
    with `foreign_abi_bit` set in their number. Raises ValueError if the program has too many instructions.
    """
    steps = [
        _Instruction(_LOAD, _ARCHITECTURE_OFFSET),
        _Instruction(_IF_EQUAL, architecture, 1),
        _Instruction(_RETURN, foreign_abi_action),
    ]
    steps.append(_Instruction(_LOAD, _NUMBER_OFFSET))
    if foreign_abi_bit:
        steps += [_Instruction(_IF_BITS, foreign_abi_bit, 0, 1), _Instruction(_RETURN, foreign_abi_action)]
    steps += _search_steps(spans)
    if len(steps) > _INSTRUCTIONS_MAX:
        raise ValueError(
            f"the seccomp profile needs {len(steps)} BPF instructions (maximum {_INSTRUCTIONS_MAX}); remove rules"
        )
    return b"".join(struct.pack("=HBBI", s.code, s.skip_if_true, s.skip_if_false, s.value) for s in steps)


def _search_steps(spans: Sequence[SyscallSpan]) -> list[_Instruction]:
    if len(spans) == 1:
        return _decision_steps(spans[0])
    middle_index = len(spans) // 2
    lower_half_steps, upper_half_steps = _search_steps(spans[:middle_index]), _search_steps(spans[middle_index:])
    return [
        _Instruction(_IF_AT_LEAST, spans[middle_index].first_number, 0, 1),
        _Instruction(_JUMP, len(lower_half_steps)),
        *lower_half_steps,
        *upper_half_steps,
    ]


def _decision_steps(span: SyscallSpan) -> list[_Instruction]:
    instructions: list[_Instruction] = []
    for conditions, action in span.decisions:
        test_steps = [step for condition in conditions for step in _comparison_steps(condition)]
        instructions += [*_resolve_jumps(test_steps), _Instruction(_RETURN, action)]
    return instructions


#: Placeholder jump targets of a test: the next decision, and the next test.
_JUMP_FAIL, _JUMP_PASS = 300, 301


def _comparison_steps(comparison: ArgumentComparison) -> list[_Instruction]:
    low_half, high = comparison.value & _WORD_MASK, comparison.value >> 32 & _WORD_MASK
    argument_offset = _ARGUMENTS_OFFSET + 8 * comparison.argument
    load_high, load_low = _Instruction(_LOAD, argument_offset + 4), _Instruction(_LOAD, argument_offset)
    match comparison.operator:
        case "==":
            return [
                load_high,
                _Instruction(_IF_EQUAL, high, 0, _JUMP_FAIL),
                load_low,
                _Instruction(_IF_EQUAL, low_half, _JUMP_PASS, _JUMP_FAIL),
            ]
        case "!=":
            return [
                load_high,
                _Instruction(_IF_EQUAL, high, 0, _JUMP_PASS),
                load_low,
                _Instruction(_IF_EQUAL, low_half, _JUMP_FAIL, _JUMP_PASS),
            ]
        case ">" | ">=":
            low_half_test = _IF_GREATER if comparison.operator == ">" else _IF_AT_LEAST
            high_steps = [_Instruction(_IF_GREATER, high, _JUMP_PASS), _Instruction(_IF_EQUAL, high, 0, _JUMP_FAIL)]
            return [load_high, *high_steps, load_low, _Instruction(low_half_test, low_half, _JUMP_PASS, _JUMP_FAIL)]
        case "<" | "<=":
            low_half_test = _IF_AT_LEAST if comparison.operator == "<" else _IF_GREATER
            high_steps = [_Instruction(_IF_GREATER, high, _JUMP_FAIL), _Instruction(_IF_EQUAL, high, 0, _JUMP_PASS)]
            return [load_high, *high_steps, load_low, _Instruction(low_half_test, low_half, _JUMP_FAIL, _JUMP_PASS)]
    operand = comparison.expected
    masked_high_steps = [_Instruction(_AND, high), _Instruction(_IF_EQUAL, operand >> 32 & _WORD_MASK, 0, _JUMP_FAIL)]
    masked_low = [_Instruction(_AND, low_half), _Instruction(_IF_EQUAL, operand & _WORD_MASK, _JUMP_PASS, _JUMP_FAIL)]
    return [load_high, *masked_high_steps, load_low, *masked_low]


def _resolve_jumps(tests: list[_Instruction]) -> list[_Instruction]:
    """Return the tests of one decision (their results are combined by AND) with relative jumps for the placeholders.

    `_JUMP_PASS` jumps to the next test, or after the last test to the decision's return instruction. `_JUMP_FAIL` jumps
    behind the return instruction, where the next decision begins.
    """
    resolved_steps = []
    for position, step in enumerate(tests):
        fail_distance = len(tests) - position
        next_test_index = next((i for i in range(position + 1, len(tests)) if _is_test_start(tests, i)), len(tests))
        jump_distances = {_JUMP_FAIL: fail_distance, _JUMP_PASS: next_test_index - position - 1}
        resolved_steps.append(
            step._replace(
                skip_if_true=jump_distances.get(step.skip_if_true, step.skip_if_true),
                skip_if_false=jump_distances.get(step.skip_if_false, step.skip_if_false),
            )
        )
    return resolved_steps


def _is_test_start(test_steps: list[_Instruction], index: int) -> bool:
    return test_steps[index].code == _LOAD and (test_steps[index].value - _ARGUMENTS_OFFSET) % 8 == 4


# System call numbers by name, for the supported processors.
#
# Sources: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h, scripts/syscall.tbl (Linux 6.18).


#: From number 424 on, calls have the same numbers on all processors.
_COMMON_FIRST_NUMBER: Final = 424
_COMMON_CALLS: Final = """
pidfd_send_signal io_uring_setup io_uring_enter io_uring_register open_tree move_mount fsopen fsconfig fsmount
fspick pidfd_open clone3 close_range openat2 pidfd_getfd faccessat2 process_madvise epoll_pwait2 mount_setattr
quotactl_fd landlock_create_ruleset landlock_add_rule landlock_restrict_self memfd_secret process_mrelease
futex_waitv set_mempolicy_home_node cachestat fchmodat2 map_shadow_stack futex_wake futex_wait futex_requeue
statmount listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat
listxattrat removexattrat open_tree_attr file_getattr file_setattr
"""
_X86_64_CALLS: Final = """
read write open close stat fstat lstat poll lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask
rt_sigreturn ioctl pread64 pwrite64 readv writev access pipe select sched_yield mremap msync mincore madvise
shmget shmat shmctl dup dup2 pause nanosleep getitimer alarm setitimer getpid sendfile socket connect accept
sendto recvfrom sendmsg recvmsg shutdown bind listen getsockname getpeername socketpair setsockopt getsockopt
clone fork vfork execve exit wait4 kill uname semget semop semctl shmdt msgget msgsnd msgrcv msgctl fcntl
flock fsync fdatasync truncate ftruncate getdents getcwd chdir fchdir rename mkdir rmdir creat link unlink
symlink readlink chmod fchmod chown fchown lchown umask gettimeofday getrlimit getrusage sysinfo times ptrace
getuid syslog getgid setuid setgid geteuid getegid setpgid getppid getpgrp setsid setreuid setregid getgroups
setgroups setresuid getresuid setresgid getresgid getpgid setfsuid setfsgid getsid capget capset rt_sigpending
rt_sigtimedwait rt_sigqueueinfo rt_sigsuspend sigaltstack utime mknod uselib personality ustat statfs fstatfs
sysfs getpriority setpriority sched_setparam sched_getparam sched_setscheduler sched_getscheduler
sched_get_priority_max sched_get_priority_min sched_rr_get_interval mlock munlock mlockall munlockall vhangup
modify_ldt pivot_root _sysctl prctl arch_prctl adjtimex setrlimit chroot sync acct settimeofday mount umount2
swapon swapoff reboot sethostname setdomainname iopl ioperm create_module init_module delete_module
get_kernel_syms query_module quotactl nfsservctl getpmsg putpmsg afs_syscall tuxcall security gettid readahead
setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr
lremovexattr fremovexattr tkill time futex sched_setaffinity sched_getaffinity set_thread_area io_setup
io_destroy io_getevents io_submit io_cancel get_thread_area lookup_dcookie epoll_create epoll_ctl_old
epoll_wait_old remap_file_pages getdents64 set_tid_address restart_syscall semtimedop fadvise64 timer_create
timer_settime timer_gettime timer_getoverrun timer_delete clock_settime clock_gettime clock_getres
clock_nanosleep exit_group epoll_wait epoll_ctl tgkill utimes vserver mbind set_mempolicy get_mempolicy
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr kexec_load waitid add_key request_key
keyctl ioprio_set ioprio_get inotify_init inotify_add_watch inotify_rm_watch migrate_pages openat mkdirat
mknodat fchownat futimesat newfstatat unlinkat renameat linkat symlinkat readlinkat fchmodat faccessat
pselect6 ppoll unshare set_robust_list get_robust_list splice tee sync_file_range vmsplice move_pages
utimensat epoll_pwait signalfd timerfd_create eventfd fallocate timerfd_settime timerfd_gettime accept4
signalfd4 eventfd2 epoll_create1 dup3 pipe2 inotify_init1 preadv pwritev rt_tgsigqueueinfo perf_event_open
recvmmsg fanotify_init fanotify_mark prlimit64 name_to_handle_at open_by_handle_at clock_adjtime syncfs
sendmmsg setns getcpu process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr
renameat2 seccomp getrandom memfd_create kexec_file_load bpf execveat userfaultfd membarrier mlock2
copy_file_range preadv2 pwritev2 pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq uretprobe uprobe
"""
#: The numbers 244 to 259 are reserved for each processor's own calls; arm64 has none.
_ARM64_CALLS: Final = """
io_setup io_destroy io_submit io_cancel io_getevents setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr
listxattr llistxattr flistxattr removexattr lremovexattr fremovexattr getcwd lookup_dcookie eventfd2
epoll_create1 epoll_ctl epoll_pwait dup dup3 fcntl inotify_init1 inotify_add_watch inotify_rm_watch ioctl
ioprio_set ioprio_get flock mknodat mkdirat unlinkat symlinkat linkat renameat umount2 mount pivot_root
nfsservctl statfs fstatfs truncate ftruncate fallocate faccessat chdir fchdir chroot fchmod fchmodat fchownat
fchown openat close vhangup pipe2 quotactl getdents64 lseek read write readv writev pread64 pwrite64 preadv
pwritev sendfile pselect6 ppoll signalfd4 vmsplice splice tee readlinkat newfstatat fstat sync fsync fdatasync
sync_file_range timerfd_create timerfd_settime timerfd_gettime utimensat acct capget capset personality exit
exit_group waitid set_tid_address unshare futex set_robust_list get_robust_list nanosleep getitimer setitimer
kexec_load init_module delete_module timer_create timer_gettime timer_getoverrun timer_settime timer_delete
clock_settime clock_gettime clock_getres clock_nanosleep syslog ptrace sched_setparam sched_setscheduler
sched_getscheduler sched_getparam sched_setaffinity sched_getaffinity sched_yield sched_get_priority_max
sched_get_priority_min sched_rr_get_interval restart_syscall kill tkill tgkill sigaltstack rt_sigsuspend
rt_sigaction rt_sigprocmask rt_sigpending rt_sigtimedwait rt_sigqueueinfo rt_sigreturn setpriority getpriority
reboot setregid setgid setreuid setuid setresuid getresuid setresgid getresgid setfsuid setfsgid times setpgid
getpgid getsid setsid getgroups setgroups uname sethostname setdomainname getrlimit setrlimit getrusage umask
prctl getcpu gettimeofday settimeofday adjtimex getpid getppid getuid geteuid getgid getegid gettid sysinfo
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr msgget msgctl msgrcv msgsnd semget
semctl semtimedop semop shmget shmctl shmat shmdt socket socketpair bind listen accept connect getsockname
getpeername sendto recvfrom setsockopt getsockopt shutdown sendmsg recvmsg readahead brk munmap mremap add_key
request_key keyctl clone execve mmap fadvise64 swapon swapoff mprotect msync mlock munlock mlockall munlockall
mincore madvise remap_file_pages mbind get_mempolicy set_mempolicy migrate_pages move_pages rt_tgsigqueueinfo
perf_event_open accept4 recvmmsg
"""
_ARM64_CALLS_FROM_260: Final = """
wait4 prlimit64 fanotify_init fanotify_mark name_to_handle_at open_by_handle_at clock_adjtime syncfs setns
sendmmsg process_vm_readv process_vm_writev kcmp finit_module sched_setattr sched_getattr renameat2 seccomp
getrandom memfd_create bpf execveat userfaultfd membarrier mlock2 copy_file_range preadv2 pwritev2
pkey_mprotect pkey_alloc pkey_free statx io_pgetevents rseq kexec_file_load
"""


class Processor(NamedTuple):
    """A processor architecture: its audit number in Linux, and its system call numbers by name."""

    #: AUDIT_ARCH_* of <linux/audit.h>.
    audit_number: int
    call_numbers: Mapping[str, int]
    #: The bit in the number of a call that marks another ABI, such as x32; 0 for none.
    foreign_abi_bit: int


def _number_syscalls(text: str, first_number: int = 0) -> dict[str, int]:
    return {name: first_number + number for number, name in enumerate(text.split())}


_COMMON_NUMBERS: Final = _number_syscalls(_COMMON_CALLS, _COMMON_FIRST_NUMBER)
_PROCESSORS: Final = {
    "x86_64": Processor(0xC000003E, _number_syscalls(_X86_64_CALLS) | _COMMON_NUMBERS, 0x40000000),
    "aarch64": Processor(
        0xC00000B7, _number_syscalls(_ARM64_CALLS) | _number_syscalls(_ARM64_CALLS_FROM_260, 260) | _COMMON_NUMBERS, 0
    ),
}


def find_processor(machine: str | None = None) -> Processor | None:
    """Return the processor architecture for a name of `uname -m` (default: this machine); None if unsupported."""
    return _PROCESSORS.get(machine or os.uname().machine)


#: The directory in the node directory with the profiles that pods name by `localhostProfile`.
PROFILES_FOLDER: Final = "seccomp"
_ALLOW: Final = 0x7FFF0000
_RET_ERRNO: Final = 0x00050000
_DENY: Final = _RET_ERRNO | errno.EPERM
_UNKNOWN_CALL: Final = _RET_ERRNO | errno.ENOSYS
_ACTION_MASK: Final = 0xFFFF0000
_ERRNO_MAX: Final = 4095
_ACTIONS_BY_NAME: Final = {
    "SCMP_ACT_ALLOW": _ALLOW,
    "SCMP_ACT_ERRNO": _RET_ERRNO,
    "SCMP_ACT_KILL": 0,
    "SCMP_ACT_KILL_THREAD": 0,
    "SCMP_ACT_KILL_PROCESS": 0x80000000,
    "SCMP_ACT_LOG": 0x7FFC0000,
    "SCMP_ACT_TRACE": 0x7FF00000,
    "SCMP_ACT_TRAP": 0x00030000,
}

#: The calls that the default profile denies, by purpose.
_DENIED_CALLS: Final = {
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


class SeccompRule(NamedTuple):
    """A rule of a seccomp profile: the action for named system calls whose arguments meet all conditions."""

    names: Sequence[str]
    action: int
    conditions: Sequence[ArgumentComparison] = ()


class SeccompProfile(NamedTuple):
    """A seccomp profile: a default action, and rules in order. The first rule that matches a system call applies."""

    default: int
    rules: Sequence[SeccompRule]


@cache
def default_filter() -> bytes:
    """Return the BPF program of the default seccomp profile. Raises ValueError if this processor is not supported."""
    return compile_profile(_default_profile(_require_processor()), _require_processor())


def compile_profile_file(path: str) -> bytes:
    """Return the BPF program of a seccomp profile file. Raises ValueError if the file cannot be read or compiled."""
    try:
        with open(path, "rb") as file:
            document = json.load(file)
    except OSError as error:
        reason = (error.strerror or "").lower()
        raise ValueError(f'cannot load seccomp profile "{path}": open {path}: {reason}') from error
    except ValueError as error:
        raise ValueError(f'decoding seccomp profile failed "{path}": {error}') from error
    try:
        return compile_profile(_parse_profile(document), _require_processor())
    except KeyError as error:
        raise ValueError(f'decoding seccomp profile failed "{path}": the field {error.args[0]} is missing') from error
    except (TypeError, AttributeError) as error:
        raise ValueError(f'decoding seccomp profile failed "{path}": a field has a wrong type') from error
    except ValueError as error:
        raise ValueError(f'decoding seccomp profile failed "{path}": {error}') from error


def compile_profile(profile: SeccompProfile, processor: Processor) -> bytes:
    """Compile a seccomp profile to a BPF program for one processor architecture.

    Rules for calls that the processor does not have are ignored. Raises ValueError if the program has too many
    instructions.
    """
    decisions_by_number: dict[int, list[tuple[Sequence[ArgumentComparison], int]]] = {}
    for rule in profile.rules:
        for name in rule.names:
            call_number = processor.call_numbers.get(name)
            if call_number is not None:
                decisions_by_number.setdefault(call_number, []).append((rule.conditions, rule.action))
    highest_number = max(processor.call_numbers.values())
    action_beyond_highest = _UNKNOWN_CALL if profile.default & _ACTION_MASK == _RET_ERRNO else profile.default
    spans = list(_merge_spans(decisions_by_number, profile.default, highest_number))
    spans.append(SyscallSpan(highest_number + 1, (((), action_beyond_highest),)))
    return build_bpf_program(spans, processor.audit_number, processor.foreign_abi_bit, _UNKNOWN_CALL)


def _merge_spans(
    call_decisions: Mapping[int, Sequence[tuple[Sequence[ArgumentComparison], int]]], default: int, highest_number: int
) -> Iterator[SyscallSpan]:
    """Yield ranges of system call numbers in ascending order; neighboring calls with the same rules share a range."""
    previous_decision: tuple[tuple[Sequence[ArgumentComparison], int], ...] | None = None
    for number in range(highest_number + 1):
        all_decisions = (*call_decisions.get(number, ()), ((), default))
        first_unconditional_index = next(index for index, (conditions, _) in enumerate(all_decisions) if not conditions)
        effective_decisions = all_decisions[: first_unconditional_index + 1]
        if effective_decisions != previous_decision:
            yield SyscallSpan(number, effective_decisions)
        previous_decision = effective_decisions


def _require_processor() -> Processor:
    processor = find_processor()
    if processor is None:
        raise ValueError("seccomp filters are supported only on x86_64 and aarch64")
    return processor


def _default_profile(processor: Processor) -> SeccompProfile:
    denied_names = {name for names in _DENIED_CALLS.values() for name in names.split()}
    conditional = {"clone", "clone3", "personality", "socket"}
    allowed_names = [name for name in processor.call_numbers if name not in denied_names | conditional and name != "-"]
    return SeccompProfile(
        _DENY,
        (
            SeccompRule(allowed_names, _ALLOW),
            SeccompRule(["clone"], _ALLOW, [ArgumentComparison(0, "masked", _NAMESPACE_FLAGS, 0)]),
            SeccompRule(["clone3"], _UNKNOWN_CALL),  # the C library falls back to clone, whose flags a filter can read
            *(SeccompRule(["personality"], _ALLOW, [ArgumentComparison(0, "==", value)]) for value in _PERSONALITIES),
            SeccompRule(
                ["socket"], _ALLOW, [ArgumentComparison(0, "!=", _AF_ALG), ArgumentComparison(0, "!=", _AF_VSOCK)]
            ),
        ),
    )


_OPERATORS: Final = {
    "SCMP_CMP_NE": "!=",
    "SCMP_CMP_LT": "<",
    "SCMP_CMP_LE": "<=",
    "SCMP_CMP_EQ": "==",
    "SCMP_CMP_GE": ">=",
    "SCMP_CMP_GT": ">",
    "SCMP_CMP_MASKED_EQ": "masked",
}
_SYSCALL_ARGUMENTS_MAX: Final = 6


def _parse_profile(document: Mapping[str, Any]) -> SeccompProfile:
    default_action = _parse_action(document["defaultAction"], document.get("defaultErrnoRet"))
    rules = []
    for syscall_rule in document.get("syscalls") or ():
        names = [*(syscall_rule.get("names") or ()), *([syscall_rule["name"]] if syscall_rule.get("name") else [])]
        action = _parse_action(syscall_rule["action"], syscall_rule.get("errnoRet"))
        conditions = [_parse_condition(condition) for condition in syscall_rule.get("args") or ()]
        if len({condition.argument for condition in conditions}) < len(conditions):
            # As in runc, one of several conditions on the same argument suffices.
            rules += [SeccompRule(names, action, [condition]) for condition in conditions]
        else:
            rules.append(SeccompRule(names, action, conditions))
    return SeccompProfile(default_action, rules)


def _parse_action(name: str, error_number: int | None) -> int:
    if name not in _ACTIONS_BY_NAME:
        raise ValueError(f"invalid seccomp action {name}; use one of {', '.join(_ACTIONS_BY_NAME)}")
    if _ACTIONS_BY_NAME[name] != _RET_ERRNO and name != "SCMP_ACT_TRACE":
        return _ACTIONS_BY_NAME[name]
    value = errno.EPERM if error_number is None else int(error_number)
    if not 0 <= value <= _ERRNO_MAX:
        raise ValueError(f"invalid errno {value}: must be from 0 to {_ERRNO_MAX}")
    return _ACTIONS_BY_NAME[name] | value


def _parse_condition(fields: Mapping[str, Any]) -> ArgumentComparison:
    if fields["op"] not in _OPERATORS:
        raise ValueError(f"invalid seccomp operator {fields['op']}; use one of {', '.join(_OPERATORS)}")
    index = int(fields["index"])
    if not 0 <= index < _SYSCALL_ARGUMENTS_MAX:
        raise ValueError(f"invalid argument index {index}: must be from 0 to {_SYSCALL_ARGUMENTS_MAX - 1}")
    return ArgumentComparison(index, _OPERATORS[fields["op"]], int(fields["value"]), int(fields.get("valueTwo") or 0))
