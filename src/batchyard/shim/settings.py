"""Host configuration for containers: a copy of the files in /etc that programs need, without secrets.

The copy is the directory `etc` in the node directory, and is updated when a spawner starts. A container gets it with
one mount. A mount per file would take longer than the rest of the container start.
"""

import os
import stat
from contextlib import suppress
from fnmatch import fnmatch

#: The name of the copy in the node directory.
FOLDER = "etc"
#: The files that the sandbox of a pod writes and mounts there.
NAMES = ("hosts", "hostname", "resolv.conf")
_SHOWN = (
    *("OpenCL", "alternatives", "bash.bashrc", "ca-certificates*", "crypto-policies", "debian_version", "default"),
    *("fonts", "gai.conf", "glvnd", "gnutls", "group", "host.conf", "inputrc", "java*", "ld.so.*", "locale.*"),
    *("localtime", "magic*", "mime.types", "mtab", "networks", "nsswitch.conf", "os-release", "passwd", "perl", "pki"),
    *("profile", "profile.d", "protocols", "python3*", "redhat-release", "rpc", "services", "shells", "skel", "ssl"),
    *("terminfo", "timezone", "vulkan", "xattr.conf", "xdg"),
)
#: Names that are left out below the copied directories.
_HIDDEN = ("private", "*.key", "*.pem.key")


def refresh(node: str) -> None:
    """Update the copy in a node directory. Files that the machine no longer has stay in the copy."""
    target = f"{node}/{FOLDER}"
    os.makedirs(target, 0o755, exist_ok=True)
    for name in NAMES:
        with suppress(OSError):
            os.close(os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
    for name in os.listdir("/etc"):
        if any(fnmatch(name, shown) for shown in _SHOWN):
            _copy(f"/etc/{name}", f"{target}/{name}")


def _copy(source: str, target: str) -> None:
    """Copy a file, a link or a directory tree; unreadable files are skipped."""
    with suppress(OSError):
        found = os.lstat(source)
        if stat.S_ISDIR(found.st_mode):
            os.makedirs(target, 0o755, exist_ok=True)
            for name in os.listdir(source):
                if not any(fnmatch(name, hidden) for hidden in _HIDDEN):
                    _copy(f"{source}/{name}", f"{target}/{name}")
        elif stat.S_ISLNK(found.st_mode):
            _link(os.readlink(source), target)
        elif stat.S_ISREG(found.st_mode) and found.st_mode & stat.S_IROTH:
            _copy_file(source, target, found)


def _link(text: str, target: str) -> None:
    if not os.path.islink(target) or os.readlink(target) != text:
        os.symlink(text, f"{target}.new")
        os.rename(f"{target}.new", target)


def _copy_file(source: str, target: str, found: os.stat_result) -> None:
    with suppress(FileNotFoundError):
        copied = os.stat(target)
        if (copied.st_size, copied.st_mtime_ns) == (found.st_size, found.st_mtime_ns):
            return
    with open(source, "rb") as read, open(f"{target}.new", "wb") as written:
        written.write(read.read())
    os.chmod(f"{target}.new", stat.S_IMODE(found.st_mode))
    os.utime(f"{target}.new", ns=(found.st_mtime_ns, found.st_mtime_ns))
    os.rename(f"{target}.new", target)
