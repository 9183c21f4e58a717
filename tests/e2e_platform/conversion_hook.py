"""A process that serves a conversion webhook over HTTPS: `python conversion_hook.py FOLDER` prints its port.

Objects named `slow` are converted after a minute.
"""

import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hook_server import HookCertificates, HookServer
from unit.apiserver.crd.converting_api import convert_review


def respond(_path: str, review: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer a ConversionReview."""
    for obj in review["request"]["objects"]:
        if obj["metadata"]["name"] == "slow":
            sys.stdout.write("waiting\n")
            sys.stdout.flush()
            threading.Event().wait(60)
    return convert_review(review)


if __name__ == "__main__":
    certificates = HookCertificates(Path(sys.argv[1]))
    with HookServer(certificates, respond) as server:
        sys.stdout.write(f"{server.port} {certificates.bundle}\n")
        sys.stdout.flush()
        sys.stdin.read()
