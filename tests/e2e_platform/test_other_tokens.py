"""kubectl with a token of another issuer, and with a token that a webhook reviews."""

import asyncio
import shutil
from pathlib import Path

import pytest

from batchyard.base.instant import SECOND
from batchyard.server.clocks.wall import wall_clock
from e2e_platform.platform_process import UpProcess
from unit.apiserver.external_tokens.tokens import token
from unit.server.platform.issuer_server import IssuerServer

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")


def whoami(platform: UpProcess, text: str, *, fails: bool = False) -> str:
    """The output of `kubectl auth whoami` with a token."""
    certificate = f"--certificate-authority={platform.kubeconfig.parent / 'ca.crt'}"
    options = ("--kubeconfig=/dev/null", f"--server={platform.url}", certificate, f"--token={text}")
    return platform.kubectl(*options, "auth", "whoami", fails=fails)


async def check_tokens(folder: Path) -> None:
    """Log in with tokens of an issuer and of a webhook."""
    async with IssuerServer(folder).serve() as server:
        options = ["--authentication-config", str(server.write_configuration())]
        options += ["--authentication-token-webhook-config-file", str(server.write_webhook())]
        server.reviews["opaque"] = {"authenticated": True, "user": {"username": "eve"}}
        good, late = (token(iss=server.url, exp=wall_clock() // SECOND + seconds) for seconds in (600, -1))
        platform = await asyncio.to_thread(UpProcess, folder / "data", *options)
        with platform:
            assert "x:ada" in await asyncio.to_thread(whoami, platform, good)
            assert "eve" in await asyncio.to_thread(whoami, platform, "opaque")
            for bad in (late, "unknown"):
                assert "Unauthorized" in await asyncio.to_thread(whoami, platform, bad, fails=True)


def test_users_of_other_issuers_log_in(tmp_path: Path) -> None:
    asyncio.run(check_tokens(tmp_path))
