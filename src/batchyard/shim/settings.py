"""The machine's settings as containers see them: a copy of what in /etc programs need and is nobody's secret.

It lies in the node's folder as `etc`, and is brought up to date when a spawner starts. One mount shows it to a
container, where a mount for each file would cost more than all else that is done to start it.
"""

import os
import stat
from contextlib import suppress
from fnmatch import fnmatch

#: The name of the copy in the node's folder.
FOLDER = "etc"
#: What the sandbox of a pod writes, and is mounted there.
NAMES = ("hosts", "hostname", "resolv.conf")
_SHOWN = (
    *("OpenCL", "alternatives", "bash.bashrc", "ca-certificates*", "crypto-policies", "debian_version", "default"),
    *("fonts", "gai.conf", "glvnd", "gnutls", "group", "host.conf", "inputrc", "java*", "ld.so.*", "locale.*"),
    *("localtime", "magic*", "mime.types", "mtab", "networks", "nsswitch.conf", "os-release", "passwd", "perl", "pki"),
    *("profile", "profile.d", "protocols", "python3*", "redhat-release", "rpc", "services", "shells", "skel", "ssl"),
    *("terminfo", "timezone", "vulkan", "xattr.conf", "xdg"),
)
#: Below the folders that are shown.
_HIDDEN = ("private", "*.key", "*.pem.key")


def refresh(node: str) -> None:
    """Bring the copy in a node's folder up to date. What is gone from the machine stays in it."""
    target = f"{node}/{FOLDER}"
    os.makedirs(target, 0o755, exist_ok=True)
    for name in NAMES:
        with suppress(OSError):
            os.close(os.open(f"{target}/{name}", os.O_WRONLY | os.O_CREAT, 0o644))
    for name in os.listdir("/etc"):
        if any(fnmatch(name, shown) for shown in _SHOWN):
            _copy(f"/etc/{name}", f"{target}/{name}")


def _copy(source: str, target: str) -> None:
    """Copy a file, a link, or a folder with all that is in it; what cannot be read is left out."""
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
