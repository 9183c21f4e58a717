"""Takes the screenshots docs/images/*.png for docs/how-to/page.md and compare.md, with the installed Chromium.

    .venv/bin/python tools/page_images.py

Most images show an HTML report of the guide at the step high-priority. `why.png` shows a pending Workload on a running
platform. `benchmarks/page.py --shots docs/images/many` takes the screenshots with 10,000 Workloads.
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
#: File name, route, size, and color scheme of each screenshot.
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


def run_batchyard(*arguments: str) -> None:
    """Run a batchyard command; raise an error if it fails."""
    subprocess.run([sys.executable, "-m", "batchyard", *arguments], check=True, capture_output=True)


@contextmanager
def open_page(browser: Browser, size: Any, scheme: Any) -> Iterator[Page]:
    """Open a page with a size and a color scheme."""
    context = browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce")
    yield context.new_page()
    context.close()


def save_screenshot(page: Page, name: str) -> None:
    """Save the visible part of a page after the next frame."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.screenshot(path=IMAGES / f"{name}.png")
    print(f"{name}.png {(IMAGES / f'{name}.png').stat().st_size // 1000} KB")


def capture_report(browser: Browser, folder: Path) -> None:
    """Take the screenshots of a report of the guide."""
    report = folder / "guide.html"
    run_batchyard("guide", "--step", "high-priority", "--report", str(report))
    for name, route, size, scheme in SHOTS:
        with open_page(browser, size, scheme) as page:
            page.goto(f"{report.as_uri()}{route}")
            page.wait_for_selector("main .page")
            save_screenshot(page, name)
    with open_page(browser, LARGE, "light") as page:
        page.goto(f"{report.as_uri()}#/timeline")
        page.click("main table a")
        page.wait_for_selector(".life")
        save_screenshot(page, "workload")


def capture_platform(browser: Browser, folder: Path) -> None:
    """Take the screenshot of a pending Workload, with its reason, on a running platform with the same Jobs."""
    data, refarch = str(folder / "data"), ROOT / "examples" / "refarch"
    options = ("--speed", "2x", "--insecure-loopback", "--detach")
    run_batchyard("up", "--data-dir", data, "--cluster", str(refarch / "cluster.yaml"), *options)
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
        with open_page(browser, LARGE, "light") as page:
            page.goto(f"{url}/ui/#/workloads?state=Pending&text=high")
            page.click("main table a")
            page.wait_for_selector("section[aria-label='Why']")
            save_screenshot(page, "why")
    finally:
        run_batchyard("down", "--data-dir", data)


def capture_comparison(browser: Browser, folder: Path) -> None:
    """Take the screenshot of the comparison in docs/how-to/compare.md."""
    example, html = ROOT / "examples" / "compare", folder / "comparison.html"
    sides = [str(example / "configurations" / name) for name in ("apart.yaml", "borrowing.yaml")]
    clusters = [f"--cluster-{side}={example / 'cluster.yaml'}" for side in "ab"]
    run_batchyard("compare", *sides, "--trace", str(example / "load"), *clusters, "--html", str(html))
    with open_page(browser, LARGE, "light") as page:
        page.goto(html.as_uri())
        save_screenshot(page, "compare")


def main() -> None:
    """Take all screenshots."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        capture_report(browser, Path(folder))
        capture_comparison(browser, Path(folder))
        capture_platform(browser, Path(folder))
        browser.close()


if __name__ == "__main__":
    main()
