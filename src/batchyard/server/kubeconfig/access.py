"""An API server and what we show it. Apart from what reads kubeconfigs, which takes long to load."""

import base64
import ssl
from collections.abc import Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Final, NamedTuple

import yaml

from batchyard.server.platform.data_dir import KUBECONFIG, Process

_ANEW: Final = "end the platform and start it again, which writes it anew"


class KubeconfigError(Exception):
    """The kubeconfig cannot be used; says why and what to do."""


class Source(NamedTuple):
    """Which kubeconfig, or several as the variable KUBECONFIG has them; '' for what is found. And which context."""

    kubeconfig: str = ""
    context: str = ""


class Access(NamedTuple):
    """An API server, and what we show it."""

    url: str
    tls: ssl.SSLContext | bool
    #: The header `authorization`; '' where a certificate is enough.
    authorization: str
    proxy: str | None
    #: The name that its certificate is to have; '' for that of its address.
    server_name: str
    namespace: str
    #: Further headers, each as often as it is there: as whom we ask, where that is another than who we are.
    headers: Sequence[tuple[str, str]] = ()


def access_of_owner(running: Process, folder: Path) -> Access:
    """What reaches the platform of a data directory as its owner."""
    tls = tls_of_owner(folder) if running.url.startswith("https:") else True
    return Access(running.url, tls, "", None, "", "default")


def tls_of_owner(folder: Path) -> ssl.SSLContext:
    """TLS with what the kubeconfig of a data directory holds; KubeconfigError where it is not as it was written."""
    path = folder / KUBECONFIG
    try:
        config = yaml.safe_load(path.read_text("utf-8"))
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=_decoded(cluster["certificate-authority-data"]).decode())
        pair = _decoded(user["client-certificate-data"]) + _decoded(user["client-key-data"])
    except FileNotFoundError as error:
        raise KubeconfigError(f"{path} is missing; {_ANEW}") from error
    except (yaml.YAMLError, ValueError, LookupError, TypeError, ssl.SSLError) as error:
        raise KubeconfigError(f"{path} is damaged; {_ANEW}") from error
    with NamedTemporaryFile(dir=folder) as file:
        file.write(pair)
        file.flush()
        try:
            context.load_cert_chain(file.name)
        except ssl.SSLError as error:
            raise KubeconfigError(f"{path} is damaged; {_ANEW}") from error
    return context


def _decoded(text: str) -> bytes:
    return base64.b64decode(text)
