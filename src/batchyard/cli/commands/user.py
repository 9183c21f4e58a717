"""The command `batchyard user`: writes a kubeconfig for another user, with a short-lived certificate."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import typer

from batchyard.base.counts import count_with_noun
from batchyard.base.instant import HOUR
from batchyard.cli import output
from batchyard.cli.options import DATA_DIR, PlatformDir
from batchyard.server.clocks.wall import wall_clock
from batchyard.server.platform.credentials import (
    COMMON_NAME_MAX,
    CertificateAuthority,
    CredentialsError,
    kubeconfig_text,
)
from batchyard.server.platform.data_dir import running_process_in, write_private

USERS_FOLDER: Final = "users"
#: The prefix of user and group names that are reserved for the platform.
_RESERVED_NAME_PREFIX: Final = "system:"


class NewUser(NamedTuple):
    """The user to create: name, groups, default namespace, and days of validity."""

    name: str
    groups: Sequence[str]
    namespace: str
    days: int


def create_user(folder: Path, user: NewUser) -> None:
    """Write the kubeconfig of a new user and print how to use it; exit with 1 on failure."""
    for name in (user.name, *user.groups):
        if not name:
            output.fail("batchyard: the names of users and groups must not be empty; set NAME and each --group")
        if not name.isprintable():
            output.fail(f"batchyard: {name!r} is not a valid name: it has unprintable characters; use another")
        if name.startswith(_RESERVED_NAME_PREFIX):
            problem = f"the prefix {_RESERVED_NAME_PREFIX} is reserved for Kubernetes"
            output.fail(f"batchyard: {name!r} is not a valid name of a user or group: {problem}; use another")
    if len(user.name) > COMMON_NAME_MAX:
        message = f"{user.name!r} is too long: certificates allow at most {COMMON_NAME_MAX} characters"
        output.fail(f"batchyard: {message}; use a shorter name")
    if "/" in user.name or user.name.startswith("."):
        output.fail(f"batchyard: {user.name!r} is not a valid name: it contains / or starts with a dot; use another")
    platform_process = running_process_in(folder)
    if platform_process is None:
        output.fail(f"batchyard: no platform runs in {folder}; start one with `batchyard up`, or set its --data-dir")
    if platform_process.url.startswith("http:"):
        output.fail(
            "batchyard: every user of this machine has the owner's permissions; start the platform without "
            "--insecure-loopback to create users"
        )
    try:
        path = _write_kubeconfig(folder, platform_process.url, user)
    except CredentialsError as error:
        output.fail(f"batchyard: {error}")
    except OSError as error:
        problem = f"batchyard: cannot write the kubeconfig of {user.name}: {error.filename or folder}: {error.strerror}"
        remedy = "check its permissions and the free disk space"
        is_denied = isinstance(error, PermissionError) and str(error.filename).startswith(str(folder / USERS_FOLDER))
        output.fail(f"{problem}; make {folder / USERS_FOLDER} writable" if is_denied else f"{problem}; {remedy}")
    output.report_line(
        f"batchyard: {path.resolve()} is the kubeconfig of {user.name}, valid {count_with_noun(user.days, 'day')};"
        " treat it like a password"
    )
    output.report_line(f"batchyard: RoleBindings grant {user.name}'s permissions, for example:")
    namespace = user.namespace or "NAMESPACE"
    subject = f"--group={user.groups[0]}" if user.groups else f"--user={user.name}"
    output.report_line(f"  kubectl create rolebinding {user.name} --clusterrole=edit {subject} --namespace={namespace}")


def _write_kubeconfig(folder: Path, url: str, user: NewUser) -> Path:
    os.umask(0o077)
    (folder / USERS_FOLDER).mkdir(exist_ok=True)
    path = folder / USERS_FOLDER / f"{user.name}.kubeconfig"
    certificate_authority = CertificateAuthority(folder, wall_clock())
    client_identity = certificate_authority.issue_client_certificate(user.name, user.groups, user.days * 24 * HOUR)
    ca_certificate = certificate_authority.certificate_file.read_bytes()
    write_private(path, kubeconfig_text(url, ca_certificate, user.name, client_identity, user.namespace).encode())
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
        int, typer.Option(metavar="N", min=1, max=365, help="Days of validity; the certificate cannot be revoked.")
    ] = 30,
    data_dir: PlatformDir = DATA_DIR,
) -> None:
    """Write a kubeconfig for another user of the platform; RoleBindings grant the user's permissions."""
    create_user(data_dir, NewUser(name, group or [], namespace, days))
