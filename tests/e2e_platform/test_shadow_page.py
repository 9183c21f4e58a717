"""The page of a shadow in a real Chromium: it reports different decisions of another Kueue, with the reasons."""

import shutil
from pathlib import Path

import pytest

from e2e_platform.browser import BrowserPage, chromium, needs_chromium
from e2e_platform.operator_process import OperatorRun, free_port
from e2e_platform.platform_process import UpProcess
from e2e_platform.test_shadow import OPTIONS, QUEUES

pytestmark = [
    needs_chromium,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine"),
]


def token_of(platform: UpProcess, name: str) -> str:
    """The token of a ServiceAccount with all permissions."""
    of_it = ("--clusterrole=cluster-admin", f"--serviceaccount=default:{name}")
    platform.kubectl("create", "serviceaccount", name)
    platform.kubectl("create", "clusterrolebinding", name, *of_it)
    return platform.kubectl("create", "token", name).strip()


def test_page_of_shadow_reports_workload_left_pending_with_hints(tmp_path: Path) -> None:
    port = free_port()
    options = ("--shadow", "--patience", "500ms", "--port", str(port))
    with UpProcess(tmp_path, *OPTIONS) as platform, OperatorRun(platform.kubeconfig, *options) as beside:
        beside.wait_until("comparing with Kueue")
        platform.kubectl("create", "-f", "-", sent=QUEUES)
        with chromium() as browser, BrowserPage(browser) as looking:
            looking.open(f"http://127.0.0.1:{port}/ui/#token={token_of(platform, 'ann')}", "left waiting in theirs")
            assert "0 decisions agree, 1 diverge" in looking.text()
            looking.page.click("text=Where to look")
            looking.sees("kubectl get clusterqueue theirs -o yaml # stopPolicy")
            looking.page.click(".partings a")
            looking.sees("we admit it with 1 of main on no flavor")
        assert beside.end() == 1
