"""Makes the pictures of docs/page.md anew: docs/images/*.png, with a Chromium of this machine.

    .venv/bin/python tools/page_images.py

Most are of the guide at its step of high priority, as a report of it shows it; that of a Workload that waits is of a
platform that runs. Those at 10,000 Workloads are made by benchmarks/page.py --shots docs/images/many.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs" / "images"
LARGE, SMALL = {"width": 1280, "height": 900}, {"width": 400, "height": 800}
#: By file, the view, the size, and light or dark.
SHOTS: Final = (
    ("overview", "#/", LARGE, "light"),
    ("overview-dark", "#/", LARGE, "dark"),
    ("overview-small", "#/", SMALL, "light"),
    ("cohorts", "#/cohorts", LARGE, "light"),
    ("queue", "#/queue/cq-team-c-hp", LARGE, "light"),
    ("workloads", "#/workloads", LARGE, "dark"),
    ("timeline", "#/timeline", LARGE, "light"),
    ("timeline-nodes", "#/timeline?by=node", LARGE, "dark"),
    ("nodes", "#/nodes", LARGE, "light"),
    ("cost", "#/costs", LARGE, "light"),
)


def command(*arguments: str) -> None:
    """Run batchyard."""
    subprocess.run([sys.executable, "-m", "batchyard", *arguments], check=True, capture_output=True)


@contextmanager
def looking(browser: Browser, size: Any, scheme: Any) -> Iterator[Page]:
    """A page of a size, light or dark."""
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    yield context.new_page()
    context.close()


def shot(page: Page, name: str) -> None:
    """A picture of what is to be seen."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"{name}.png {(IMAGES / f'{name}.png').stat().st_size // 1000} KB")


def of_the_guide(browser: Browser, folder: Path) -> None:
    """The views of a report."""
    report = folder / "guide.html"
    command("guide", "--step", "high-priority", "--report", str(report))
    for name, route, size, scheme in SHOTS:
        with looking(browser, size, scheme) as page:
            page.goto(f"{report.as_uri()}{route}")
            page.wait_for_selector("main .page")
            shot(page, name)
    with looking(browser, LARGE, "light") as page:
        page.goto(f"{report.as_uri()}#/timeline")
        page.click("main table a")
        page.wait_for_selector(".life")
        shot(page, "workload")


def of_a_platform(browser: Browser, folder: Path) -> None:
    """A Workload that waits on a platform that plays the same, with why it does."""
    data, refarch = str(folder / "data"), ROOT / "examples" / "refarch"
    options = ("--speed", "2x", "--insecure-loopback", "--detach")
    command("up", "--data-dir", data, "--cluster", str(refarch / "cluster.yaml"), *options)
    try:
        url = json.loads((folder / "data" / "up.json").read_text("utf-8"))["url"]
        kubectl = ("kubectl", "--server", url)
        for name in ("teams", "priorityclass", "kueue"):
            subprocess.run(
                [*kubectl, "apply", "-R", "-f", str(refarch / "platform" / name)],
                capture_output=True,
                check=name != "teams",
            )
        for step in ("low_priority", "high_priority"):
            subprocess.run([*kubectl, "create", "-R", "-f", str(refarch / step)], capture_output=True, check=True)
        with looking(browser, LARGE, "light") as page:
            page.goto(f"{url}/ui/#/workloads?state=Pending&text=high")
            page.click("main table a")
            page.wait_for_selector("section[aria-label='Why']")
            shot(page, "why")
    finally:
        command("down", "--data-dir", data)


def main() -> None:
    """Make them all."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        of_the_guide(browser, Path(folder))
        of_a_platform(browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
