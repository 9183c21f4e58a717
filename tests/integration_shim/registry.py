"""An image registry with authentication on a port of this machine."""

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

from integration_shim.image_engines import EngineImage, engine_output, ordinary_user
from integration_shim.machine import until

#: The hash of the password `secret` from htpasswd -B.
_ACCOUNTS = "puller:$2b$05$BATCHYARDBATCHYARDBATOoKPx/mP8eDW4va7I79MGoWn59hgtS7a\n"
_AUTH = base64.b64encode(b"puller:secret").decode()
_LISTENS = re.compile(rb"listening on 127\.0\.0\.1:(\d+)")


class Registry(NamedTuple):
    """The address and the credentials of a registry."""

    host: str
    folder: Path

    @property
    def auth(self) -> dict[str, Any]:
        """The credentials in the format of engines."""
        return {"auths": {self.host: {"auth": _AUTH}}}

    def push(self, engine_image: EngineImage) -> str:
        """Push an image and remove its tag from the engine; return the name."""
        name = f"{self.host}/team/{engine_image.engine}:1"
        user = None if engine_image.engine == "docker" else ordinary_user()
        stated = self.folder / "config.json"
        stated.write_text(json.dumps(self.auth))
        stated.chmod(0o644)
        known = {**engine_image.variables, "DOCKER_CONFIG": str(self.folder), "REGISTRY_AUTH_FILE": str(stated)}
        for words in (("tag", engine_image.image, name), ("push", name), ("image", "rm", name)):
            engine_output(engine_image.engine, known, user, *words)
        return name


@contextmanager
def registry() -> Iterator[Registry]:
    """A temporary registry; skips if the program is missing."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is missing: apt-get install docker-registry")
    with TemporaryDirectory(prefix="registry-") as created:
        folder = Path(created)
        folder.chmod(0o755)
        (folder / "accounts").write_text(_ACCOUNTS)
        (folder / "config.yml").write_text("version: 0.1\nlog: {level: info}\nstorage: {inmemory: {}}\n")
        settings = {"HTTP_ADDR": "127.0.0.1:0", "AUTH": "htpasswd", "AUTH_HTPASSWD_REALM": "team"}
        settings |= {"AUTH_HTPASSWD_PATH": f"{created}/accounts"}
        variables = {f"REGISTRY_{name}": value for name, value in settings.items()}
        log = folder / "log"
        with log.open("wb") as reported:
            argv = ["docker-registry", "serve", f"{created}/config.yml"]
            server = subprocess.Popen(argv, stdout=reported, stderr=reported, env=os.environ | variables)
        try:
            result = until(lambda: _LISTENS.search(log.read_bytes()), "the registry listens")
            yield Registry(f"127.0.0.1:{int(result[1])}", folder)
        finally:
            server.terminate()
            server.wait()
