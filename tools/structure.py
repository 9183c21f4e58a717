"""The structure of the sources: files, folders, imports, class names, words; fails beyond the limits.

    python tools/structure.py [--list] [--profile]

`--list` names the files and classes behind each figure. `--profile` also counts the files on the way of a trivial Job
through the simulator, and of a POST of a Job.
"""

import argparse
import ast
import io
import json
import re
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SRC: Final = ROOT / "src"
PACKAGE: Final = "batchyard"
SMALL: Final = 60  # lines
#: The highest value of each figure. They only ever go down.
LIMITS: Final[Mapping[str, float]] = {
    "files": 478,
    "largest folder": 25,
    "small modules imported once": 1,
    "duplicated class names": 2,
    "import share, percent": 5.0,
    "import circles": 0,
    "odd words of sources per 1,000": 1.0,
    "odd words of documents per 1,000": 1.0,
}
_ODD: Final = re.compile(
    r"\b(told|tell|tells|telling|said|whoever|whomever|nobody|somebody|anybody|anew|thereof|therein|wherever|wish|wishes"
    r"|he|him|his|himself|of one's own|one's|let go|goes on|go on|went on|gone on|is to be seen|that is there|is there"
    r"|are there|is not there|lest|henceforth"
    r"|(?:who|what) (?:is|was|has|may|can|wants|waits|does))\b",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z'-]*")
_NOT_TEXT: Final = re.compile(r"`[^`]*`|\]\([^)]*\)")


#: The tests' event loop, which is not on the way of a request to a platform.
_VIRTUAL_LOOP: Final = frozenset({"controller_runtime/kernel.py", "base/memory.py"})
_QUEUE: Final = """\
apiVersion: kueue.x-k8s.io/v1beta1
kind: ResourceFlavor
metadata: {name: f}
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: ClusterQueue
metadata: {name: q}
spec:
  namespaceSelector: {}
  resourceGroups: [{coveredResources: [cpu], flavors: [{name: f, resources: [{name: cpu, nominalQuota: 100}]}]}]
---
apiVersion: kueue.x-k8s.io/v1beta1
kind: LocalQueue
metadata: {name: q, namespace: default}
spec: {clusterQueue: q}"""


class Module(NamedTuple):
    """A module of the sources."""

    name: str
    path: Path
    text: str
    nodes: Sequence[ast.AST]

    @property
    def lines(self) -> int:
        """The number of lines."""
        return self.text.count("\n")

    @property
    def top_level(self) -> Sequence[ast.stmt]:
        """The statements outside of functions and classes."""
        module = self.nodes[0]
        assert isinstance(module, ast.Module)
        return module.body


class Figure(NamedTuple):
    """A measured value, and what is behind it."""

    name: str
    value: float
    behind: Sequence[str] = ()


def modules() -> Sequence[Module]:
    """Read all modules of the package."""
    found = []
    for path in sorted((SRC / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text("utf-8")
        found.append(Module(name, path, text, tuple(ast.walk(ast.parse(text)))))
    return found


def imports(all_modules: Sequence[Module], *, lazy: bool) -> Mapping[str, set[str]]:
    """Return the modules of the package that each module imports; with `lazy` also inside functions."""
    names = {module.name for module in all_modules}
    found: dict[str, set[str]] = {}
    for module in all_modules:
        nodes = module.nodes if lazy else module.top_level
        targets = (target for node in nodes if isinstance(node, ast.ImportFrom) for target in _targets(node, names))
        found[module.name] = {target for target in targets if target != module.name}
    return found


def _targets(node: ast.ImportFrom, names: set[str]) -> Iterator[str]:
    for alias in node.names:
        full = f"{node.module}.{alias.name}"
        target = full if full in names else node.module
        if target in names:
            yield str(target)


def circles(graph: Mapping[str, set[str]]) -> Sequence[Sequence[str]]:
    """Return the strongly connected groups of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[Sequence[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for each in graph[name]:
            if each not in index:
                visit(each)
                low[name] = min(low[name], low[each])
            elif each in stack:
                low[name] = min(low[name], index[each])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def figures() -> Iterator[Figure]:
    """Measure the sources and documents."""
    found = modules()
    lines = sum(module.lines for module in found)
    yield Figure("files", len(found))
    yield Figure("lines", lines)
    yield Figure("median lines of a file", statistics.median(module.lines for module in found))
    by_folder = Counter(str(module.path.parent.relative_to(SRC)) for module in found)
    large = [f"{folder}: {count}" for folder, count in by_folder.most_common() if count > 25]
    yield Figure("largest folder", max(by_folder.values()), large)
    users: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports(found, lazy=True).items():
        for target in targets:
            users[target].add(name)
    once = [module for module in found if len(users[module.name]) == 1 and module.path.name != "__init__.py"]
    yield Figure("modules imported once", len(once), [module.name for module in once])
    small = [module.name for module in once if module.lines < SMALL]
    yield Figure("small modules imported once", len(small), small)
    classes = Counter(node.name for module in found for node in module.nodes if isinstance(node, ast.ClassDef))
    twice = [f"{name}: {count}" for name, count in classes.most_common() if count > 1 and not name.startswith("_")]
    yield Figure("duplicated class names", len(twice), twice)
    imported = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in found
        for node in module.top_level
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    yield Figure("import share, percent", round(100 * imported / lines, 1))
    groups = circles(imports(found, lazy=True))
    yield Figure("import circles", len(groups), [" ".join(group) for group in groups])
    yield _odd("odd words of sources per 1,000", _texts(found))
    yield _odd("odd words of documents per 1,000", _documents())


def _odd(name: str, texts: Iterator[tuple[str, str]]) -> Figure:
    words, behind = 0, []
    hits = 0
    for where, text in texts:
        words += len(_WORD.findall(text))
        odd = _ODD.findall(text)
        hits += len(odd)
        behind += [f"{where}: {text.strip()[:100]}"] if odd else []
    return Figure(name, round(1000 * hits / max(words, 1), 2), behind)


def _texts(found: Sequence[Module]) -> Iterator[tuple[str, str]]:
    """Yield strings, comments and identifiers with their places."""
    for module in found:
        path = module.path.relative_to(ROOT)
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            where = f"{path}:{token.start[0]}"
            if token.type in {tokenize.STRING, tokenize.COMMENT}:
                yield from ((where, line) for line in token.string.splitlines())
            elif token.type == tokenize.NAME and "_" in token.string:
                yield where, token.string.replace("_", " ")


def _documents() -> Iterator[tuple[str, str]]:
    """Yield the lines of documents outside of code."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for path in sorted(paths):
        is_code = False
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.startswith("```"):
                is_code = not is_code
            elif not is_code:
                yield f"{path.relative_to(ROOT)}:{number}", _NOT_TEXT.sub(" ", line)


def profiled() -> Iterator[Figure]:
    """Count the files on the way of a trivial Job through the simulator, and of a POST of a Job.

    A file is on the way if one more Job, or one more POST, runs more of its functions' calls.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from unit.apiserver.api import Api  # noqa: PLC0415 - only with --profile

    api = Api()

    def post(count: int) -> None:
        for each in range(count):
            api.post("/apis/batch/v1/namespaces/default/jobs", _job(10 * count + each))

    with TemporaryDirectory() as folder:
        yield _way("files of a trivial Job", partial(_simulate, Path(folder)))
    yield _way("files of a POST of a Job", post, _VIRTUAL_LOOP)


def _way(name: str, work: Callable[[int], object], besides: frozenset[str] = frozenset()) -> Figure:
    """The files that a second unit of work runs again; the first warms the caches."""
    work(3)
    one, two = _calls(partial(work, 1)), _calls(partial(work, 2))
    found = {code.co_filename.rpartition(f"/src/{PACKAGE}/")[2] for code in two if two[code] > one[code]}
    return Figure(name, len(found - besides), sorted(found - besides))


def _job(number: int) -> dict[str, object]:
    container = {"name": "a", "image": "a", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    metadata = {"name": f"j{number}", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def _simulate(folder: Path, count: int) -> None:
    """Simulate a queue with this number of Jobs, without nodes."""
    from batchyard import simulate  # noqa: PLC0415 - only with --profile

    (folder / "world.yaml").write_text("\n---\n".join([_QUEUE, *(json.dumps(_job(each)) for each in range(count))]))
    simulate(folder)


def _calls(work: Callable[[], object]) -> Counter[CodeType]:
    """Count the calls of each function of the package during a call."""
    found: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and f"/{PACKAGE}/" in code.co_filename and code.co_name != "<module>":
            found[code] += 1

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def main() -> int:
    """Print the figures; return 1 if one exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    exceeded = 0
    for figure in [*figures(), *(profiled() if given.profile else ())]:
        limit = LIMITS.get(figure.name)
        is_over = limit is not None and figure.value > limit
        exceeded += is_over
        about = "" if limit is None else f"  (at most {limit:g})"
        sys.stdout.write(f"{figure.name:36} {figure.value:>10,g}{about}{'  EXCEEDED' if is_over else ''}\n")
        if given.list:
            sys.stdout.writelines(f"    {each}\n" for each in figure.behind)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
