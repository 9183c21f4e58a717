"""A registry of images that asks who is there, on a port of this machine."""

import base64
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from integration_shim.bringers import Bringer, asked, ordinary_user
from integration_shim.machine import until

#: Of the password `secret`, as htpasswd -B writes it.
_ACCOUNTS = "puller:$2b$05$BATCHYARDBATCHYARDBATOoKPx/mP8eDW4va7I79MGoWn59hgtS7a\n"
_AUTH = base64.b64encode(b"puller:secret").decode()
_LISTENS = re.compile(rb"listening on 127\.0\.0\.1:(\d+)")


class Registry(NamedTuple):
    """Where it is, and what to say to it."""

    host: str
    folder: Path

    @property
    def auth(self) -> dict[str, Any]:
        """Who may have its images, as engines read it."""
        return {"auths": {self.host: {"auth": _AUTH}}}

    def push(self, bringer: Bringer) -> str:
        """Have it an image, which its engine has no more under that name; the name."""
        name = f"{self.host}/team/{bringer.engine}:1"
        user = None if bringer.engine == "docker" else ordinary_user()
        stated = self.folder / "config.json"
        stated.write_text(json.dumps(self.auth))
        stated.chmod(0o644)
        known = {**bringer.variables, "DOCKER_CONFIG": str(self.folder), "REGISTRY_AUTH_FILE": str(stated)}
        for words in (("tag", bringer.image, name), ("push", name), ("image", "rm", name)):
            asked(bringer.engine, known, user, *words)
        return name


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry, as long as it is wanted; skips where there is none."""
    if shutil.which("docker-registry") is None:
        pytest.skip("no registry is here: apt-get install docker-registry")
    with TemporaryDirectory(prefix="registry-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "accounts").write_text(_ACCOUNTS)
        (folder / "config.yml").write_text("version: 0.1\nlog: {level: info}\nstorage: {inmemory: {}}\n")
        settings = {"HTTP_ADDR": "127.0.0.1:0", "AUTH": "htpasswd", "AUTH_HTPASSWD_REALM": "team"}
        settings |= {"AUTH_HTPASSWD_PATH": f"{made}/accounts"}
        variables = {f"REGISTRY_{name}": value for name, value in settings.items()}
        log = folder / "log"
        with log.open("wb") as reported:
            argv = ["docker-registry", "serve", f"{made}/config.yml"]
            server = subprocess.Popen(argv, stdout=reported, stderr=reported, env=os.environ | variables)
        try:
            found = until(lambda: _LISTENS.search(log.read_bytes()), "the registry listens")
            yield Registry(f"127.0.0.1:{int(found[1])}", folder)
        finally:
            server.terminate()
            server.wait()
