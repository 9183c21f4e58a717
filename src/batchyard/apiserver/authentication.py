"""Who asks. Sources: k8s.io/apiserver, pkg/authentication (x509, bearertoken, group)."""

from typing import Final, NamedTuple

MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"


class User(NamedTuple):
    """A user by name, with groups."""

    name: str
    groups: tuple[str, ...]


ANONYMOUS: Final = User("system:anonymous", (UNAUTHENTICATED,))


def of_certificate(name: str, groups: tuple[str, ...]) -> User:
    """The user that a verified certificate names."""
    return User(name, (*groups, AUTHENTICATED))
