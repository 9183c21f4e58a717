"""The links of the documents lead somewhere, and the sources of the documentation site are complete."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def site_sources(root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run tools/site_sources.py of a repository."""
    command = [sys.executable, str(root / "tools" / "site_sources.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with two documents and the tool."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "site_sources.py", tmp_path / "tools")
    (tmp_path / "docs" / "how-to").mkdir(parents=True)
    (tmp_path / "docs" / "index.md").write_text("# Home\n\n[up](how-to/up.md#a-first-start)\n", "utf-8")
    (tmp_path / "docs" / "how-to" / "up.md").write_text(
        "# Up\n\n## A first start\n\n[rules](../../RULES.md)\n", "utf-8"
    )
    (tmp_path / "RULES.md").write_text("# Rules\n\n[script](tools/site_sources.py)\n", "utf-8")
    return tmp_path


def test_every_link_of_the_documents_leads_somewhere() -> None:
    done = site_sources(ROOT)
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("link", "cause"),
    [
        ("gone.md", "there is no docs/gone.md; correct the path"),
        ("how-to/up.md#gone", "docs/how-to/up.md has no such heading; it has: a-first-start, up"),
        ("how-to", "there is no docs/how-to/README.md; correct the path"),
        ("../../other/a.md", "leads out of the repository; link to a file in it"),
    ],
)
def test_a_broken_link_is_reported_with_place_and_remedy(repository: Path, link: str, cause: str) -> None:
    (repository / "docs" / "index.md").write_text(f"# Home\n\n[there]({link})\n", "utf-8")
    done = site_sources(repository)
    assert (done.stderr, done.returncode) == (f"docs/index.md:3: {link}: {cause}\n", 1)


def test_links_in_code_are_not_checked(repository: Path) -> None:
    (repository / "docs" / "index.md").write_text("`[a](gone.md)`\n\n```text\n[a](gone.md)\n```\n", "utf-8")
    assert site_sources(repository).returncode == 0


def test_the_sources_of_the_site_have_all_documents_and_linked_files(repository: Path, tmp_path: Path) -> None:
    index = repository / "docs" / "index.md"
    index.write_text(index.read_text("utf-8") + '\n```bash no-run="needs a cluster"\nls\n```\n', "utf-8")
    folder = tmp_path / "sources"
    assert site_sources(repository, str(folder)).returncode == 0
    assert (folder / "how-to" / "up.md").read_text("utf-8").endswith("[rules](../RULES.md)\n")
    assert (folder / "RULES.md").read_text("utf-8").endswith("[script](tools/site_sources.py)\n")
    assert (folder / "tools" / "site_sources.py").is_file()
    assert (folder / "index.md").read_text("utf-8").endswith("```bash\nls\n```\n")


def test_short_inline_code_of_the_site_does_not_wrap() -> None:
    on_page_content = runpy.run_path(str(ROOT / "tools" / "site_hooks.py"))["on_page_content"]
    long_code, block = f"<code>{'x' * 25}</code>", "<pre><span></span><code><span>ls</span></code></pre>"
    html = f"<td><code>--context NAME</code></td>{long_code}{block}"
    assert on_page_content(html, page=None) == f'<td><code class="short">--context NAME</code></td>{long_code}{block}'
