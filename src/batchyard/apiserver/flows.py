"""Flows: the requests that share one bound. Each user has a flow, and each namespace one for all its ServiceAccounts.

A user who may create ServiceAccounts in a namespace has no more than two flows by that. The owner's requests are
exempt from bounds, as those of `system:masters` are from Kubernetes' API Priority and Fairness.
Source: k8s.io/apiserver, pkg/apis/flowcontrol/bootstrap/default.go.
"""

from batchyard.apiserver.authentication import MASTERS, User, account_of


def flow_of(user: User) -> str:
    """The name of the flow that a user's requests belong to."""
    account = account_of(user.name)
    return user.name if account is None else f"system:serviceaccounts:{account[0]}"


def is_exempt(user: User) -> bool:
    """Whether a user's requests are exempt: those of the owner."""
    return MASTERS in user.groups
