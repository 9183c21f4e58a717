"""Address and credentials of an API server, and the owner's access to a local platform.

This module is separate from the kubeconfig loader, because importing the loader's libraries is slow.
"""

import base64
import ssl
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, NamedTuple

import yaml

from batchyard.server.platform.data_dir import KUBECONFIG_FILE, PlatformProcess

_REWRITE_HINT: Final = "restart the platform to write a new one"


class KubeconfigError(Exception):
    """The kubeconfig cannot be used. The message contains the reason and the remedy."""


class KubeconfigSource(NamedTuple):
    """Where to read the kubeconfig: files (a path list like $KUBECONFIG) and a context; '' for the defaults."""

    kubeconfig: str = ""
    context: str = ""


class ApiServerAccess(NamedTuple):
    """How to reach an API server: its URL, TLS settings, proxy, and credentials."""

    url: str
    tls: ssl.SSLContext | bool
    #: The value of the Authorization header; '' if requests have none, for example with a client certificate.
    authorization: str
    proxy: str | None
    #: The expected name in the server's certificate; '' for the host of the URL.
    server_name: str
    namespace: str
    #: Additional request headers for impersonation; a name may occur more than once.
    headers: Sequence[tuple[str, str]] = ()
    #: The TLS settings without the client certificate, for requests with the token of another user.
    tls_without_certificate: ssl.SSLContext | bool = True

    def for_user(self, token: str) -> "ApiServerAccess":
        """Return the access of the user with a bearer token: without this access's certificate and impersonation."""
        return self._replace(tls=self.tls_without_certificate, authorization=f"Bearer {token}", headers=())


def owner_access(process: PlatformProcess, folder: Path) -> ApiServerAccess:
    """Return the owner's access to a running platform, with the credentials in its data directory `folder`.

    Without TLS, the platform requires no credentials. Raises KubeconfigError.
    """
    tls = owner_tls_context(folder) if process.url.startswith("https:") else True
    return ApiServerAccess(process.url, tls, "", None, "", "default")


def owner_tls_context(folder: Path) -> ssl.SSLContext:
    """Return a TLS context with the credentials from a data directory's kubeconfig. Raises KubeconfigError."""
    path = folder / KUBECONFIG_FILE
    try:
        kubeconfig = yaml.safe_load(path.read_text("utf-8"))
        cluster, user = kubeconfig["clusters"][0]["cluster"], kubeconfig["users"][0]["user"]
        tls_context = ssl.create_default_context(cadata=_decode_base64(cluster["certificate-authority-data"]).decode())
        certificate_and_key = _decode_base64(user["client-certificate-data"]) + _decode_base64(user["client-key-data"])
    except FileNotFoundError as error:
        raise KubeconfigError(f"{path} is missing; {_REWRITE_HINT}") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, ssl.SSLError) as error:
        raise KubeconfigError(f"{path} is damaged; {_REWRITE_HINT}") from error
    with NamedTemporaryFile(dir=folder) as certificate_file:
        certificate_file.write(certificate_and_key)
        certificate_file.flush()
        try:
            tls_context.load_cert_chain(certificate_file.name)
        except ssl.SSLError as error:
            raise KubeconfigError(f"{path} is damaged; {_REWRITE_HINT}") from error
    return tls_context


def _decode_base64(text: str) -> bytes:
    return base64.b64decode(text)
