"""The page of a running platform in a real Chromium."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser

from e2e_platform.browser import BrowserPage, chromium, needs_chromium
from e2e_platform.platform_process import UpProcess
from racks import rack_nodes, rack_queues, rack_workload

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl on this machine")
pytestmark = [needs_chromium, needs_kubectl]
SCRIPT = "<img src=x onerror='window.taken=1'><script>window.taken=1</script>"
CLUSTER = """
apiVersion: cloud.batchyard.dev/v1alpha1
kind: Cluster
metadata: {name: small}
spec:
  zones: [z]
  nodePools: [{name: gpus, machineType: g2-standard-24, nodeCount: 2}]
"""
PLATFORM = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: plain}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: QUEUE}
spec:
  cohortName: all
  namespaceSelector: {}
  preemption: {withinClusterQueue: LowerPriority}
  resourceGroups:
  - coveredResources: [cpu, nvidia.com/gpu]
    flavors:
    - name: plain
      resources: [{name: cpu, nominalQuota: 4}, {name: nvidia.com/gpu, nominalQuota: 2, borrowingLimit: 0}]
---
apiVersion: v1
kind: Namespace
metadata: {name: TEAM}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: jobs, namespace: TEAM}
spec: {clusterQueue: QUEUE}
---
"""
#: The elements that are wider than the window or than their box.
OVERFLOWING = """() => [document.documentElement, ...document.querySelectorAll("nav, .scroll, .life time")]
    .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.outerHTML.slice(0, 200))"""
#: Without a pointer, the legends of charts show the latest values.
LEGEND_HAS_VALUES = """() => { const values = [...document.querySelectorAll(".u-legend .u-value")];
    return values.length > 2 && values.every((each) => each.textContent !== "\\u2013"); }"""
URGENT_CLASS = """
apiVersion: kueue.x-k8s.io/v1beta2
kind: WorkloadPriorityClass
metadata: {name: urgent}
value: 100
---
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata:
  name: NAME
  namespace: TEAM
  labels: {kueue.x-k8s.io/queue-name: jobs}
  annotations: {batchyard.dev/runtime: 24h}
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: i, resources: {requests: {cpu: "2"}, limits: {nvidia.com/gpu: 2}}}]
---
"""


def job(team: str, name: str) -> str:
    return JOB.replace("TEAM", team).replace("NAME", name)


class PagePlatform(NamedTuple):
    """A platform with Jobs of two teams, and a browser."""

    platform: UpProcess
    folder: Path
    browser: Browser

    def link(self, *options: str) -> str:
        """The link to the page that the command prints."""
        command = [sys.executable, "-m", "batchyard", "page", "--data-dir", str(self.folder), *options]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def get(self, *arguments: str) -> Any:
        """The JSON output of kubectl get."""
        return json.loads(self.platform.kubectl("get", *arguments, "-o", "json"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagePlatform]:
    """Two teams, each with a running Job and two pending Jobs."""
    folder = tmp_path_factory.mktemp("platform")
    cluster = folder / "cluster.yaml"
    cluster.write_text(CLUSTER)
    data = folder / "data"
    with UpProcess(data, "--cluster", str(cluster), "--speed", "60x") as platform, chromium() as browser:
        teams = ("team-a", "team-b")
        created = [PLATFORM.replace("TEAM", team).replace("QUEUE", f"queue-of-{team}") for team in teams]
        created += [job(team, f"{team}-{name}") for team in teams for name in ("one", "two", "three")]
        platform.kubectl("apply", "-f", "-", sent="".join(created))
        platform.kubectl("create", "rolebinding", "view", "-n", "team-a", "--clusterrole=view", "--group=team-a")
        platform.kubectl("wait", "--for=jsonpath={.status.pendingWorkloads}=2", "clusterqueue", "--all")
        yield PagePlatform(platform, data, browser)


@pytest.fixture
def looking(site: PagePlatform) -> Iterator[BrowserPage]:
    """The browser of the owner with the overview open."""
    with BrowserPage(site.browser) as looking:
        yield looking.open(site.link(), "queue-of-team-a")


def workload(site: PagePlatform, name: str) -> Any:
    """The Workload of a Job."""
    result = site.get("workloads", "-A")["items"]
    return next(each for each in result if each["metadata"]["ownerReferences"][0]["name"] == name)


def test_page_opens_every_view_without_errors(site: PagePlatform, looking: BrowserPage) -> None:
    one = workload(site, "team-a-one")["metadata"]
    node = site.get("nodes")["items"][0]["metadata"]["name"]
    looking.go("#/cohorts", "all resources")
    looking.go("#/queue/queue-of-team-a", "Pending")
    looking.go("#/workloads", "team-b-three")
    looking.go(f"#/workload/{one['namespace']}/{one['name']}", "was admitted")
    looking.go("#/timeline", "by node")
    looking.go("#/timeline?by=node", "Wheel or")
    looking.go("#/nodes", "gpus")
    looking.go(f"#/node/{node}", node)
    looking.go("#/costs", "By team")
    looking.go("#/workload/team-a/none", "Not found")
    assert [reported for reported in looking.wrong if "404" not in reported] == []
    assert {url.split("/")[2] for url in looking.asked} == {site.platform.url.split("/")[2]}


def test_page_shows_same_counts_and_messages_as_api(site: PagePlatform, looking: BrowserPage) -> None:
    for queue in site.get("clusterqueues")["items"]:
        row = looking.page.locator(f"tr[data-key='{queue['metadata']['name']}']")
        cells = row.locator("td").all_inner_texts()
        status = queue["status"]
        assert cells[2:4] == [str(status["pendingWorkloads"]), str(status["admittedWorkloads"])]
    waiting = workload(site, "team-b-two")["metadata"]
    looking.go(f"#/workload/{waiting['namespace']}/{waiting['name']}", "insufficient unused quota")
    message = workload(site, "team-b-two")["status"]["conditions"][0]["message"]
    assert message in looking.text()


def test_page_shows_changes_without_reload(site: PagePlatform, looking: BrowserPage) -> None:
    looking.go("#/workloads?namespace=team-b", "team-b-one")
    looking.page.evaluate("() => { window.stays = true }")
    site.platform.kubectl("apply", "-f", "-", sent=job("team-b", "latecomer"))
    looking.sees("latecomer")
    site.platform.kubectl("delete", "job", "-n", "team-b", "latecomer")
    looking.page.wait_for_function("() => !document.body.innerText.includes('latecomer')")
    assert looking.page.evaluate("() => window.stays")


def test_page_supports_keyboard_navigation(looking: BrowserPage) -> None:
    keys = looking.page.keyboard
    keys.type("gn")
    looking.sees("requested, of allocatable")
    keys.type("gw")
    looking.sees("team-b-two")
    looking.page.fill("#search", "a-two")
    looking.page.wait_for_function("() => document.querySelectorAll('main tbody tr').length === 1")
    looking.page.wait_for_function("() => location.hash.includes('a-two')")
    keys.press("Escape")
    keys.press("j")
    keys.press("Enter")
    looking.sees("was created")
    looking.page.go_back()
    looking.page.wait_for_function("() => document.querySelector('#search')?.value === 'a-two'")
    keys.type("?")
    looking.page.wait_for_selector("dialog[open]")
    keys.press("Escape")
    looking.page.wait_for_selector("dialog", state="detached")


def test_timeline_zooms_and_its_bars_are_links(looking: BrowserPage) -> None:
    looking.go("#/timeline", "Wheel or")
    looking.page.wait_for_function("() => document.querySelector('#gantt').gantt.hits.length === 2")
    looking.page.focus("#gantt")
    looking.page.keyboard.press("+")
    looking.page.wait_for_function("() => document.querySelector('#gantt').gantt.from !== null")
    looking.page.keyboard.press("0")
    looking.page.wait_for_function("() => document.querySelector('#gantt').gantt.from === null")
    place = looking.page.evaluate(
        "() => { const { x, y } = document.querySelector('#gantt').gantt.hits[0]; return { x, y } }"
    )
    looking.page.click("#gantt", position={"x": place["x"] + 1, "y": place["y"] + 4})
    looking.sees("was admitted")


def test_legends_explain_bars_and_lines(looking: BrowserPage) -> None:
    for route, texts in (
        ("#/", ("used of its own quota", "borrowed", "lent to others")),
        ("#/cohorts", ("used of its own quota",)),
        ("#/timeline", ("holds quota now", "evicted", "preemption")),
    ):
        for text in texts:
            looking.go(route, text)
    looking.go("#/", "queue-of-team-a")
    looking.page.wait_for_function(LEGEND_HAS_VALUES)


def test_workload_page_names_holders_and_preemptor(site: PagePlatform, looking: BrowserPage) -> None:
    victim = workload(site, "team-b-one")["metadata"]["name"]
    urgent = job("team-b", "urgent").replace(": jobs}", ": jobs, kueue.x-k8s.io/priority-class: urgent}")
    site.platform.kubectl("apply", "-f", "-", sent=URGENT_CLASS + urgent)
    site.platform.kubectl("wait", "--for=condition=Evicted", "-n", "team-b", f"workload/{victim}", "--timeout=60s")
    looking.go(f"#/workload/team-b/{victim}", "preempted by").sees("why it stays").sees("InClusterQueue")
    site.platform.kubectl("delete", "job", "-n", "team-b", "urgent")


def test_page_escapes_text_of_objects(site: PagePlatform, looking: BrowserPage) -> None:
    result = workload(site, "team-a-two")["metadata"]
    about = {"kind": "Workload", "namespace": "team-a", "name": result["name"], "uid": result["uid"]}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "told", "namespace": "team-a"}}
    site.platform.kubectl("create", "-f", "-", sent=json.dumps({**event, "involvedObject": about, "message": SCRIPT}))
    looking.go(f"#/workload/team-a/{result['name']}", SCRIPT)
    looking.go(f"#/queue/{SCRIPT}", "Not found")
    looking.go(
        "#/workloads?namespace=javascript:window.taken=1&text=<svg onload=window.taken=1>", "No matching Workloads"
    )
    assert looking.page.evaluate("() => window.taken === undefined")


def test_page_shows_team_only_its_own_objects(site: PagePlatform) -> None:
    with BrowserPage(site.browser) as looking:
        looking.open(site.link("--user", "ann", "--group", "team-a"), "Your queues")
        assert "token" not in looking.page.url
        looking.go("#/workloads", "team-a-three")
        seen = looking.text()
        looking.go("#/cohorts", "You may not list clusterqueues")
        assert "team-b" not in seen + looking.text()
        looking.go(f"#/workload/team-b/{workload(site, 'team-b-one')['metadata']['name']}", "Not found")


def test_page_asks_for_missing_token(site: PagePlatform) -> None:
    link = site.link()
    with BrowserPage(site.browser) as looking:
        looking.open(link.partition("#")[0], "Sign in")
        looking.page.fill("input", link.partition("#token=")[2])
        looking.page.keyboard.press("Enter")
        looking.sees("queue-of-team-b")


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1280, "dark")])
def test_page_fits_small_screens_and_dark_scheme(site: PagePlatform, width: int, scheme: Any) -> None:
    with BrowserPage(site.browser, viewport={"width": width, "height": 800}, color_scheme=scheme) as looking:
        looking.open(site.link(), "queue-of-team-a")
        waiting = workload(site, "team-a-two")["metadata"]["name"]
        routes = ("#/", "#/cohorts", "#/queue/queue-of-team-a", "#/workloads", "#/timeline", "#/nodes", "#/costs")
        for route in (*routes, f"#/workload/team-a/{waiting}"):
            looking.go(route, "")
            assert looking.page.evaluate(OVERFLOWING) == [], route
        dark = looking.page.evaluate("() => getComputedStyle(document.documentElement).getPropertyValue('--is-dark')")
        assert dark.strip() == str(int(scheme == "dark"))


def test_report_has_same_views_and_sends_no_requests(site: PagePlatform, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    command = ["guide", "--step", "high-priority", "--report", str(file), "-o", "json"]
    subprocess.run([sys.executable, "-m", "batchyard", *command], check=True, capture_output=True)
    with BrowserPage(site.browser) as looking:
        looking.open(file.as_uri(), "cq-team-a-hp")
        for route, holding in (
            ("#/cohorts", "team-c-d"),
            ("#/queue/cq-team-c-hp", "Over time"),
            ("#/workloads?state=Pending&text=high", "pending"),
            ("#/timeline", "Preemptions"),
            ("#/timeline?by=node", "Preemptions"),
            ("#/nodes", "spot-np"),
            ("#/costs", "By team"),
        ):
            looking.go(route, holding)
        looking.go("#/timeline", "preempted")
        looking.page.click("table a")
        looking.sees("was preempted")
        looking.page.click("nav >> text=Nodes")
        looking.page.click(".cell[data-key]:has-text('100') >> nth=-1")
        looking.sees("Requested")
        assert looking.wrong == []
        assert {url.partition(":")[0] for url in looking.asked} == {"file"}


def test_page_rejects_invalid_token_and_accepts_valid_token_afterwards(site: PagePlatform) -> None:
    with BrowserPage(site.browser) as visitor:
        visitor.open(f"{site.platform.url}/ui/", "Sign in")
        assert "token is invalid" not in visitor.text()
        assert not visitor.page.inner_text("#clock").startswith("1970")
        for wrong in ("rubbish", "not\u2603in a header"):
            visitor.page.fill("input", wrong)
            visitor.page.keyboard.press("Enter")
            visitor.sees("The token is invalid or has expired.").sees("signed out")
        visitor.page.fill("input", f" {site.link().partition('token=')[2]} ")
        visitor.page.keyboard.press("Enter")
        visitor.sees("queue-of-team-a")


def test_page_handles_invalid_percent_encoding_in_address(looking: BrowserPage) -> None:
    looking.go("#/queue/%zz", "Not found")
    assert [reported for reported in looking.wrong if "404" not in reported] == []


def test_current_navigation_link_is_visible_on_small_screen(site: PagePlatform) -> None:
    with BrowserPage(site.browser, viewport={"width": 380, "height": 800}) as looking:
        looking.open(site.link(), "queue-of-team-a").go("#/costs", "By team")
        box = looking.page.locator("nav [aria-current]").bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 380


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_topology_view_shows_domains_and_placement(site: PagePlatform, tmp_path: Path, width: int, scheme: Any) -> None:
    manifests, report = tmp_path / "racks.yaml", tmp_path / "report.html"
    nodes = rack_nodes("b1r1h1", "b1r1h2", "b1r2h1")
    manifests.write_text(rack_queues() + nodes + rack_workload("one", 6) + rack_workload("two", 3, at=2))
    command = [sys.executable, "-m", "batchyard", "simulate", str(manifests), "--until", "1m", "--report", str(report)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    viewport = {"width": width, "height": 800}
    with BrowserPage(site.browser, viewport=viewport, color_scheme=scheme) as page:
        page.open(f"{report.as_uri()}#/nodes", "Topology")
        page.page.click("text=Topology")
        page.sees("usual request: 6 pods of 1 cpu")
        page.go("#/topologies?workload=team%2Fone", "placement of")
        assert page.page.locator(".cell-own[data-key]").all_inner_texts() == ["4 pods", "2 pods"]
        assert page.page.evaluate(OVERFLOWING) == []
        assert page.wrong == []
