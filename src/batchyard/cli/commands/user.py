"""`batchyard user`: writes a kubeconfig for another user, with a short-lived certificate."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.cli.options import DATA_DIR, PlatformDir
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import NAME_MAX, CertificateAuthority, CredentialsError, kubeconfig
from batchyard.server.platform.data_dir import process_in, write_private

USERS: Final = "users"
#: The prefix of names that are reserved for the platform.
_RESERVED: Final = "system:"


class NewUser(NamedTuple):
    """The user to create: name, groups, default namespace, days of validity."""

    name: str
    groups: Sequence[str]
    namespace: str
    days: int


def create(folder: Path, new: NewUser) -> None:
    """Write a user's kubeconfig and print how to use it."""
    for name in (new.name, *new.groups):
        if not name:
            output.fail("batchyard: a name must not be empty")
        if not name.isprintable():
            output.fail(f"batchyard: {name!r} is not a valid name: it has unprintable characters")
        if name.startswith(_RESERVED):
            output.fail(f"batchyard: {name!r} is not a valid user name: the prefix {_RESERVED} is reserved")
    if len(new.name) > NAME_MAX:
        output.fail(f"batchyard: {new.name!r} is not a valid name: a certificate allows at most {NAME_MAX} characters")
    if "/" in new.name or new.name.startswith("."):
        output.fail(f"batchyard: {new.name!r} is not a valid name: it must also be a valid file name")
    running = process_in(folder)
    if running is None:
        output.fail(
            f"batchyard: no platform runs in {folder}; start it first, because the kubeconfig needs its address"
        )
    if running.url.startswith("http:"):
        output.fail(
            "batchyard: the platform runs with --insecure-loopback, where all users of this machine are its owner"
        )
    try:
        path = _written(folder, running.url, new)
    except CredentialsError as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        output.fail(f"batchyard: {error.filename or folder}: {error.strerror}; check that {folder / USERS} is writable")
    output.report_line(
        f"batchyard: {path.resolve()} is the kubeconfig of {new.name}, valid {new.days} days; treat it like a password"
    )
    output.report_line(f"batchyard: RoleBindings grant {new.name}'s rights, for example:")
    where, to = new.namespace or "NAMESPACE", f"--group={new.groups[0]}" if new.groups else f"--user={new.name}"
    output.report_line(f"  kubectl create rolebinding {new.name} --clusterrole=edit {to} --namespace={where}")


def _written(folder: Path, url: str, new: NewUser) -> Path:
    """Write the kubeconfig of a new user; return its path."""
    os.umask(0o077)
    (folder / USERS).mkdir(exist_ok=True)
    path = folder / USERS / f"{new.name}.kubeconfig"
    authority = CertificateAuthority(folder, wall_clock())
    signed = authority.client(new.name, new.groups, new.days * 24 * HOUR)
    known = authority.certificate_file.read_bytes()
    write_private(path, kubeconfig(url, known, new.name, signed, new.namespace).encode())
    return path


def user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the user.")],
    group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group of the user, such as a team; repeatable.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", "-n", metavar="NAMESPACE", help="The default namespace in the kubeconfig.")
    ] = "",
    days: Annotated[
        int, typer.Option(metavar="N", min=1, max=365, help="Days of validity; it cannot be revoked.")
    ] = 30,
    data_dir: PlatformDir = DATA_DIR,
) -> None:
    """Write a kubeconfig for another user of the platform; RoleBindings grant the user's rights."""
    create(data_dir, NewUser(name, group or [], namespace, days))
