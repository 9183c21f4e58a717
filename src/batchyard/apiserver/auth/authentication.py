"""Users and groups. Sources: k8s.io/apiserver, pkg/authentication (user, x509, serviceaccount)."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

MASTERS: Final = "system:masters"
#: The group that may read metrics and health.
MONITORING: Final = "system:monitoring"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
_ACCOUNT: Final = "system:serviceaccount:"
_ACCOUNTS: Final = "system:serviceaccounts"


class UserInfo(NamedTuple):
    """A user: name and groups, and uid and extra attributes if known."""

    name: str
    groups: tuple[str, ...]
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def reported(self) -> Mapping[str, Any]:
        """Return the user as `UserInfo` of the API."""
        reported = {"username": self.name, "uid": self.uid, "groups": list(self.groups)}
        extra = {key: list(values) for key, values in self.extra}
        return {name: value for name, value in {**reported, "extra": extra}.items() if value}


ANONYMOUS: Final = UserInfo("system:anonymous", (UNAUTHENTICATED,))


def of_certificate(name: str, groups: tuple[str, ...]) -> UserInfo:
    """Return the user that a verified client certificate names."""
    return UserInfo(name, (*groups, AUTHENTICATED))


def account_name(namespace: str, name: str) -> str:
    """Return the user name of a ServiceAccount."""
    return f"{_ACCOUNT}{namespace}:{name}"


def account_of(user: str) -> tuple[str, str] | None:
    """Return namespace and name of the ServiceAccount of a user name; None if the user is not a ServiceAccount."""
    namespace, separator, name = user.removeprefix(_ACCOUNT).partition(":")
    is_account = user.startswith(_ACCOUNT) and separator and namespace and name and ":" not in name
    return (namespace, name) if is_account else None


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of the ServiceAccounts in a namespace."""
    return (_ACCOUNTS, f"{_ACCOUNTS}:{namespace}")


# --- flows ---
#
# A flow is a set of requests that share one limit. Each user has a flow, and each namespace one for all its
# ServiceAccounts.
#
# A user who creates many ServiceAccounts in a namespace therefore gains only one further flow. Requests of the owner
# are exempt from limits, like those of `system:masters` in API Priority and Fairness.
# Source: k8s.io/apiserver, pkg/apis/flowcontrol/bootstrap/default.go.


def flow_of(user: UserInfo) -> str:
    """Return the name of the flow of a user's requests."""
    account = account_of(user.name)
    return user.name if account is None else f"system:serviceaccounts:{account[0]}"


def is_exempt(user: UserInfo) -> bool:
    """Report whether a user's requests are exempt from limits; true for the owner."""
    return MASTERS in user.groups
