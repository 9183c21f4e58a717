"""`batchyard user`: a kubeconfig for somebody else, with a certificate of limited life."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import NAME_MAX, Authority, CredentialsError, kubeconfig
from batchyard.server.platform.data_dir import process_in, write_private

USERS: Final = "users"
#: Names that begin so are the platform's own.
_RESERVED: Final = "system:"


class NewUser(NamedTuple):
    """Who is to get a kubeconfig."""

    name: str
    groups: Sequence[str]
    namespace: str
    days: int


def user(folder: Path, new: NewUser) -> None:
    """Write a kubeconfig for a user, and say where it is and what to do with it."""
    for name in (new.name, *new.groups):
        if not name:
            output.fail("batchyard: nobody has an empty name")
        if not name.isprintable():
            output.fail(f"batchyard: {name!r} is no name: it has characters that cannot be seen")
        if name.startswith(_RESERVED):
            output.fail(f"batchyard: {name!r} is no name for people: those that begin with {_RESERVED} are reserved")
    if len(new.name) > NAME_MAX:
        output.fail(f"batchyard: {new.name!r} is no name for a certificate, which has {NAME_MAX} letters at most")
    if "/" in new.name or new.name.startswith("."):
        output.fail(f"batchyard: {new.name!r} is no name: it becomes that of a file")
    running = process_in(folder)
    if running is None:
        output.fail(f"batchyard: nothing runs in {folder}; start it first, for its address goes into the kubeconfig")
    if running.url.startswith("http:"):
        output.fail("batchyard: it runs with --insecure-loopback, where everybody on this machine is its owner")
    try:
        path = _written(folder, running.url, new)
    except CredentialsError as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        output.fail(
            f"batchyard: {error.filename or folder}: {error.strerror}; see that {folder / USERS} may be written"
        )
    output.tell(f"batchyard: {path.resolve()} is {new.name}'s for {new.days} days; hand it over like a password")
    output.tell(f"batchyard: what {new.name} may do is said by RoleBindings, for example:")
    where, to = new.namespace or "NAMESPACE", f"--group={new.groups[0]}" if new.groups else f"--user={new.name}"
    output.tell(f"  kubectl create rolebinding {new.name} --clusterrole=edit {to} --namespace={where}")


def _written(folder: Path, url: str, new: NewUser) -> Path:
    """The kubeconfig of a new user, at its place."""
    os.umask(0o077)
    (folder / USERS).mkdir(exist_ok=True)
    path = folder / USERS / f"{new.name}.kubeconfig"
    authority = Authority(folder, wall_clock())
    signed = authority.client(new.name, new.groups, new.days * 24 * HOUR)
    known = authority.certificate_file.read_bytes()
    write_private(path, kubeconfig(url, known, new.name, signed, new.namespace).encode())
    return path
