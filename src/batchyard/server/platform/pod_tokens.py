"""ServiceAccount tokens for the projected volumes of pods."""

from batchyard.api.meta import Key
from batchyard.api.scheme import SERVICE_ACCOUNT
from batchyard.apiserver.auth.tokens import ISSUER, Tokens
from batchyard.base.instant import SECOND
from batchyard.interfaces.client import Reader
from batchyard.kubelet.local.errors import InputError


def pod_token(tokens: Tokens, reader: Reader, namespace: str, account: str, audience: str, seconds: int) -> str:
    """Issue a token of a ServiceAccount, valid for `seconds`. Raises InputError if the account does not exist."""
    found = reader.get(Key(SERVICE_ACCOUNT, namespace, account))
    if found is None:
        raise InputError(f'failed to fetch token: serviceaccounts "{account}" not found')
    return tokens.issue(found, None, (audience or ISSUER,), tokens.clock() + seconds * SECOND)
