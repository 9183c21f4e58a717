"""The tokens that pods find in their volumes."""

from batchyard.api.meta import Key
from batchyard.api.scheme import SERVICE_ACCOUNT
from batchyard.apiserver.auth.tokens import ISSUER, Tokens
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import InputError


def pod_token(tokens: Tokens, reader: Reader, namespace: str, account: str, audience: str, seconds: int) -> str:
    """A token of a ServiceAccount; InputError if there is none of that name."""
    found = reader.get(Key(SERVICE_ACCOUNT, namespace, account))
    if found is None:
        raise InputError(f'failed to fetch token: serviceaccounts "{account}" not found')
    return tokens.issue(found, None, (audience or ISSUER,), tokens.clock() + seconds * SECOND)
