"""Who a user is that an image or a pod names, by the image's own /etc/passwd and /etc/group.

Source: github.com/moby/sys/user (GetExecUser), which runc and containerd ask.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Account(NamedTuple):
    """Whoever runs a container."""

    uid: int
    gid: int
    home: str


def account(named: str, passwd: str, group: str) -> Account:
    """Who `user` or `user:group` is, by name or number; root where nothing is said. ValueError where nobody knows."""
    user, _, own_group = named.partition(":")
    found = _user(user or "0", passwd)
    if not own_group:
        return found
    rows = [row for row in _rows(group, 3) if own_group in (row[0], row[2])]
    if not rows and not own_group.isdigit():
        raise ValueError(f"unable to find group {own_group}: no matching entries in group file")
    return found._replace(gid=int(rows[0][2] if rows else own_group))


def _user(user: str, passwd: str) -> Account:
    rows = [row for row in _rows(passwd, 6) if user in (row[0], row[2])]
    if rows:
        return Account(int(rows[0][2]), int(rows[0][3]), rows[0][5] or "/")
    if not user.isdigit():
        raise ValueError(f"unable to find user {user}: no matching entries in passwd file")
    return Account(int(user), 0, "/")


def _rows(text: str, fields: int) -> Iterator[list[str]]:
    """The entries that have so many fields, of which the third is a number, and the fourth too if there are more."""
    for line in text.splitlines():
        row = line.split(":")
        if len(row) >= fields and all(number.isdigit() for number in row[2 : 4 if fields > 3 else 3]):
            yield row
