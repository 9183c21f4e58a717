"""Who asks. Sources: k8s.io/apiserver, pkg/authentication (user, x509, serviceaccount)."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MASTERS: Final = "system:masters"
#: Who may read metrics and health.
MONITORING: Final = "system:monitoring"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
_ACCOUNT: Final = "system:serviceaccount:"
_ACCOUNTS: Final = "system:serviceaccounts"


class User(NamedTuple):
    """A user by name, with groups; a uid and what else is known where there is more to know."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def told(self) -> Mapping[str, Any]:
        """The user as the API tells of users."""
        told = {"username": self.name, "uid": self.uid, "groups": list(self.groups)}
        extra = {key: list(values) for key, values in self.extra}
        return {name: value for name, value in {**told, "extra": extra}.items() if value}


ANONYMOUS: Final = User("system:anonymous", (UNAUTHENTICATED,))


def of_certificate(name: str, groups: tuple[str, ...]) -> User:
    """The user that a verified certificate names."""
    return User(name, (*groups, AUTHENTICATED))


def account_name(namespace: str, name: str) -> str:
    """The user name of a ServiceAccount."""
    return f"{_ACCOUNT}{namespace}:{name}"


def account_of(user: str) -> tuple[str, str] | None:
    """Namespace and name of the ServiceAccount behind a user name; None if it is none."""
    namespace, separator, name = user.removeprefix(_ACCOUNT).partition(":")
    is_account = user.startswith(_ACCOUNT) and separator and namespace and name and ":" not in name
    return (namespace, name) if is_account else None


def account_groups(namespace: str) -> tuple[str, ...]:
    """The groups of the ServiceAccounts of a namespace."""
    return (_ACCOUNTS, f"{_ACCOUNTS}:{namespace}")


# --- flows ---
#
# Flows: the requests that share one bound. Each user has a flow, and each namespace one for all its ServiceAccounts.
#
# A user who may create ServiceAccounts in a namespace has no more than two flows by that. The owner's requests are
# exempt from bounds, as those of `system:masters` are from Kubernetes' API Priority and Fairness.
# Source: k8s.io/apiserver, pkg/apis/flowcontrol/bootstrap/default.go.


def flow_of(user: User) -> str:
    """The name of the flow that a user's requests belong to."""
    account = account_of(user.name)
    return user.name if account is None else f"system:serviceaccounts:{account[0]}"


def is_exempt(user: User) -> bool:
    """Whether a user's requests are exempt: those of the owner."""
    return MASTERS in user.groups
