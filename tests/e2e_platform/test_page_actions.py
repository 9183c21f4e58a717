"""Actions, search, YAML and logs of the page in a real Chromium, and its accessibility by axe."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from e2e_platform.browser import BrowserPage, chromium, needs_chromium
from e2e_platform.platform_process import UpProcess
from e2e_platform.test_page import CLUSTER, PLATFORM, PagePlatform, job, needs_kubectl, workload

pytestmark = [needs_chromium, needs_kubectl]
CLASS = "apiVersion: kueue.x-k8s.io/v1beta2\nkind: WorkloadPriorityClass\nmetadata: {name: urgent}\nvalue: 100\n---\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PagePlatform]:
    """Two teams with Jobs, a viewer of team-a, and an audit log."""
    folder = tmp_path_factory.mktemp("platform")
    cluster, data = folder / "cluster.yaml", folder / "data"
    cluster.write_text(CLUSTER)
    options = ("--cluster", str(cluster), "--speed", "60x", "--audit-log", str(folder / "audit.log"))
    with UpProcess(data, *options) as platform, chromium() as browser:
        created = [PLATFORM.replace("TEAM", team).replace("QUEUE", f"queue-of-{team}") for team in ("team-a", "team-b")]
        created += [CLASS, *(job("team-a", name) for name in ("one", "two", "three", "four"))]
        platform.kubectl("apply", "-f", "-", sent="".join(created))
        platform.kubectl("create", "rolebinding", "view", "-n", "team-a", "--clusterrole=view", "--group=team-a")
        platform.kubectl("wait", "--for=jsonpath={.status.pendingWorkloads}=3", "clusterqueue/queue-of-team-a")
        yield PagePlatform(platform, data, browser)


@pytest.fixture
def looking(site: PagePlatform) -> Iterator[BrowserPage]:
    """The browser of the owner with a link that permits actions."""
    with BrowserPage(site.browser) as looking:
        yield looking.open(site.link("--actions"), "queue-of-team-a")


def route_of(obj: Any) -> str:
    return f"#/workload/{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def confirm(looking: BrowserPage, action: str) -> None:
    """Press the button of an action, and confirm it."""
    looking.page.click(f".actions button:text-is('{action}')")
    looking.page.click("dialog[open] button[type=submit]")


def audited_actions(site: PagePlatform) -> list[str]:
    lines = (site.folder.parent / "audit.log").read_text().splitlines()
    annotations = [json.loads(line).get("annotations", {}) for line in lines]
    return [each["batchyard.dev/page-action"] for each in annotations if "batchyard.dev/page-action" in each]


def test_workload_is_suspended_resumed_reprioritized_and_cancelled(site: PagePlatform, looking: BrowserPage) -> None:
    name = workload(site, "two")["metadata"]["name"]
    looking.go(route_of(workload(site, "two")), "two")
    confirm(looking, "Suspend")
    looking.page.wait_for_selector(".actions button:text-is('Resume')")
    assert workload(site, "two")["spec"]["active"] is False
    confirm(looking, "Resume")
    looking.page.wait_for_selector(".actions button:text-is('Suspend')")
    confirm(looking, "Change priority")
    looking.sees("100 (urgent)")
    confirm(looking, "Cancel")
    looking.sees("Not found")
    assert "two" not in [each["metadata"]["name"] for each in site.get("jobs", "-n", "team-a")["items"]]
    actions = [entry for entry in audited_actions(site) if name in entry]
    assert [entry.split()[0] for entry in actions] == ["suspend", "resume", "priority", "cancel"]


def test_queue_is_stopped_and_resumed(site: PagePlatform, looking: BrowserPage) -> None:
    looking.go("#/queue/queue-of-team-b", "stop policy")
    confirm(looking, "Stop")
    looking.page.wait_for_selector(".actions button:text-is('Resume')")
    assert site.get("clusterqueue", "queue-of-team-b")["spec"]["stopPolicy"] == "Hold"
    confirm(looking, "Resume")
    looking.page.wait_for_selector(".actions button:text-is('Resume')", state="detached")
    assert site.get("clusterqueue", "queue-of-team-b")["spec"]["stopPolicy"] == "None"


def test_rejected_action_shows_the_error(site: PagePlatform, looking: BrowserPage) -> None:
    looking.go(route_of(workload(site, "three")), "three")
    looking.page.click(".actions button:text-is('Suspend')")
    header = "x-batchyard-action-token"
    looking.page.route(
        "**/v1alpha1/actions", lambda route: route.continue_(headers={**route.request.headers, header: "wrong"})
    )
    looking.page.click("dialog[open] button[type=submit]")
    looking.page.wait_for_selector("dialog [role=alert]:has-text('action token is missing or has expired')")
    assert workload(site, "three")["spec"].get("active") is not False


def test_read_only_link_and_viewer_are_offered_no_actions(site: PagePlatform) -> None:
    for options, hint in (((), "read-only link"), (("--actions", "--user", "ann", "--group", "team-a"), "YAML")):
        with BrowserPage(site.browser) as looking:
            looking.open(site.link(*options), "pending").go(route_of(workload(site, "three")), hint)
            looking.page.wait_for_selector(".actions a")
            assert looking.page.locator(".actions button:not(.copy)").count() == 0


def test_search_finds_objects_and_opens_them(site: PagePlatform, looking: BrowserPage) -> None:
    keys = looking.page.keyboard
    keys.type("/")
    looking.page.wait_for_selector("#find:focus")
    keys.type("queue-of")
    looking.page.wait_for_selector(".results a:has-text('queue-of-team-b')")
    keys.press("Escape")
    looking.page.wait_for_selector("dialog", state="detached")
    keys.type("/")
    keys.type("three")
    looking.page.wait_for_selector(".results a:has-text('three')")
    keys.press("ArrowDown")
    keys.press("Enter")
    looking.sees("was created")
    with BrowserPage(site.browser) as other:
        other.open(site.link("--user", "ann", "--group", "team-a"), "Your queues")
        other.page.keyboard.type("/")
        other.page.keyboard.type("queue-of")
        other.page.wait_for_selector(".results :text('Nothing found')")


def test_yaml_and_log_are_shown(site: PagePlatform, looking: BrowserPage) -> None:
    looking.go("#/yaml/Job/team-a/one", "kind: Job")
    assert "managedFields:" not in looking.text()
    looking.page.click("button:has-text('managedFields')")
    looking.sees("managedFields:")
    pod = site.get("pods", "-n", "team-a")["items"][0]["metadata"]["name"]
    looking.go(f"#/logs/team-a/{pod}", "last 500")
    looking.page.wait_for_function("() => document.querySelector('[role=log]').textContent.length > 0")
    looking.go("#/yaml/Secret/team-a/x", "Not found")


def test_unknown_address_links_to_the_overview(looking: BrowserPage) -> None:
    looking.go("#/nonsense/1", "Unknown address")
    looking.page.click("main a:has-text('overview')")
    looking.sees("queue-of-team-a")


def test_sort_is_in_the_address(looking: BrowserPage) -> None:
    looking.go("#/workloads?sort=name", "three")
    names = looking.page.locator("main td.main a").all_inner_texts()
    assert names == sorted(names)
    looking.page.click("th button:has-text('workload')")
    looking.page.wait_for_function("() => location.hash.includes('sort=-name')")
    looking.page.wait_for_selector("th[aria-sort=descending]")


def test_cohort_stays_collapsed_after_changes(site: PagePlatform, looking: BrowserPage) -> None:
    looking.go("#/cohorts", "queue-of-team-b")
    looking.page.click("details.children > summary")
    site.platform.kubectl("label", "clusterqueue/queue-of-team-b", "changed=yes", "--overwrite")
    looking.page.wait_for_function("() => !document.querySelector('details.children').open")
    assert not looking.page.locator("text=queue-of-team-b").first.is_visible()


def test_phone_shows_state_and_reason(site: PagePlatform) -> None:
    with BrowserPage(site.browser, viewport={"width": 390, "height": 800}) as looking:
        looking.open(site.link(), "pending").go("#/workloads?state=Pending", "more needed")
        for selector in ("td .state", "td.why .clip"):
            box = looking.page.locator(selector).first.bounding_box()
            assert box is not None
            assert 0 <= box["x"] <= box["x"] + box["width"] <= 390


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_every_view_passes_axe(site: PagePlatform, width: int, scheme: Any) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    texts_by_route = {
        "#/": "Over time",
        "#/cohorts": "all resources",
        "#/queue/queue-of-team-a": "stop policy",
        "#/workloads": "all namespaces",
        route_of(workload(site, "one")): "Pod sets",
        route_of(workload(site, "three")): "Changes that would help",
        "#/timeline": "by node",
        "#/nodes": "gpus",
        f"#/node/{site.get('nodes')['items'][0]['metadata']['name']}": "Requested",
        "#/costs": "By team",
        "#/yaml/Job/team-a/one": "kind: Job",
        "#/nonsense": "Unknown address",
    }
    problems = []
    size = {"width": width, "height": 900}
    with BrowserPage(site.browser, viewport=size, color_scheme=scheme, reduced_motion="reduce") as looking:
        looking.open(site.link("--actions"), "queue-of-team-a")
        for route, text in texts_by_route.items():
            looking.go(route, text)
            result = axe.run(looking.page, options={"resultTypes": ["violations"]}).response
            problems += [(route, each["id"], each["nodes"][0]["html"]) for each in result["violations"]]
    assert problems == []
