"""Measures the structure of the sources: files, folders, imports, class names, odd words.

    python tools/structure.py [--list] [--profile]

`--list` also prints the files, classes or lines that contribute to each figure. `--profile` also counts the files with
code that runs for a trivial Job in the simulator, and for a POST of a Job. Exits with 1 if a figure exceeds its limit.
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
#: The maximum of each figure. Only `files` may rise, for a new feature.
LIMITS: Final[Mapping[str, float]] = {
    "files": 690,
    "largest folder": 25,
    "small modules imported once": 1,
    "duplicated class names": 2,
    "import share, percent": 5.0,
    "import cycles": 0,
    "files of a trivial Job": 60,
    "files of a POST of a Job": 35,
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


#: The event loop of the tests, which a platform does not use.
_VIRTUAL_LOOP: Final = frozenset({"controller_runtime/kernel.py"})
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


class SourceModule(NamedTuple):
    """A module of the sources, with its syntax tree."""

    name: str
    path: Path
    text: str
    nodes: Sequence[ast.AST]

    @property
    def lines(self) -> int:
        """Return the number of lines."""
        return self.text.count("\n")

    @property
    def top_level(self) -> Sequence[ast.stmt]:
        """Return the statements outside of functions and classes."""
        module = self.nodes[0]
        assert isinstance(module, ast.Module)
        return module.body


class StructureFigure(NamedTuple):
    """A measured value, and the files, classes or lines that contribute to it."""

    name: str
    value: float
    details: Sequence[str] = ()


def read_modules() -> Sequence[SourceModule]:
    """Read all modules of the package."""
    modules = []
    for path in sorted((SRC / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        text = path.read_text("utf-8")
        modules.append(SourceModule(name, path, text, tuple(ast.walk(ast.parse(text)))))
    return modules


def imports(modules: Sequence[SourceModule], *, lazy: bool) -> Mapping[str, set[str]]:
    """Return the modules of the package that each module imports; with `lazy` also inside functions."""
    names = {module.name for module in modules}
    graph: dict[str, set[str]] = {}
    for module in modules:
        nodes = module.nodes if lazy else module.top_level
        targets = (target for node in nodes if isinstance(node, ast.ImportFrom) for target in _targets(node, names))
        graph[module.name] = {target for target in targets if target != module.name}
    return graph


def _targets(node: ast.ImportFrom, names: set[str]) -> Iterator[str]:
    for alias in node.names:
        full = f"{node.module}.{alias.name}"
        target = full if full in names else node.module
        if target in names:
            yield str(target)


def import_cycles(graph: Mapping[str, set[str]]) -> Sequence[Sequence[str]]:
    """Return the strongly connected components with more than one module (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[Sequence[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for target in graph[name]:
            if target not in index:
                visit(target)
                low[name] = min(low[name], low[target])
            elif target in stack:
                low[name] = min(low[name], index[target])
        if low[name] == index[name]:
            component = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(component) > 1:
                components.append(sorted(component))

    for name in graph:
        if name not in index:
            visit(name)
    return components


def structure_figures() -> Iterator[StructureFigure]:
    """Measure the sources and documents."""
    modules = read_modules()
    lines = sum(module.lines for module in modules)
    yield StructureFigure("files", len(modules))
    yield StructureFigure("lines", lines)
    yield StructureFigure("median lines of a file", statistics.median(module.lines for module in modules))
    by_folder = Counter(str(module.path.parent.relative_to(SRC)) for module in modules)
    large = [f"{folder}: {count}" for folder, count in by_folder.most_common() if count > 25]
    yield StructureFigure("largest folder", max(by_folder.values()), large)
    importers: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports(modules, lazy=True).items():
        for target in targets:
            importers[target].add(name)
    once = [module for module in modules if len(importers[module.name]) == 1 and module.path.name != "__init__.py"]
    yield StructureFigure("modules imported once", len(once), [module.name for module in once])
    small = [module.name for module in once if module.lines < SMALL]
    yield StructureFigure("small modules imported once", len(small), small)
    classes = Counter(node.name for module in modules for node in module.nodes if isinstance(node, ast.ClassDef))
    duplicates = [f"{name}: {count}" for name, count in classes.most_common() if count > 1 and not name.startswith("_")]
    yield StructureFigure("duplicated class names", len(duplicates), duplicates)
    imported = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for module in modules
        for node in module.top_level
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    yield StructureFigure("import share, percent", round(100 * imported / lines, 2))
    cycles = import_cycles(imports(modules, lazy=True))
    yield StructureFigure("import cycles", len(cycles), [" ".join(cycle) for cycle in cycles])
    yield _count_odd_words("odd words of sources per 1,000", _source_texts(modules))
    yield _count_odd_words("odd words of documents per 1,000", _document_lines())


def _count_odd_words(name: str, texts: Iterator[tuple[str, str]]) -> StructureFigure:
    """Return the rate of odd words in texts, given with their locations."""
    words, hits = 0, 0
    details: list[str] = []
    for location, text in texts:
        words += len(_WORD.findall(text))
        odd = _ODD.findall(text)
        hits += len(odd)
        details += [f"{location}: {text.strip()[:100]}"] if odd else []
    return StructureFigure(name, round(1000 * hits / max(words, 1), 2), details)


def _source_texts(modules: Sequence[SourceModule]) -> Iterator[tuple[str, str]]:
    """Yield the strings, comments and identifiers with their locations."""
    for module in modules:
        path = module.path.relative_to(ROOT)
        for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
            location = f"{path}:{token.start[0]}"
            if token.type in {tokenize.STRING, tokenize.COMMENT}:
                yield from ((location, line) for line in token.string.splitlines())
            elif token.type == tokenize.NAME and "_" in token.string:
                yield location, token.string.replace("_", " ")


def _document_lines() -> Iterator[tuple[str, str]]:
    """Yield the lines of documents outside of code blocks, with their locations."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for path in sorted(paths):
        is_code = False
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if line.startswith("```"):
                is_code = not is_code
            elif not is_code:
                yield f"{path.relative_to(ROOT)}:{number}", _NOT_TEXT.sub(" ", line)


def profile_figures() -> Iterator[StructureFigure]:
    """Count the files with code that runs for a trivial Job in the simulator, and for a POST of a Job.

    A file counts if an additional Job or POST causes additional calls of its functions.
    """
    sys.path.insert(0, str(ROOT / "tests"))
    from unit.apiserver.api import Api  # noqa: PLC0415 - only with --profile

    api = Api()

    def post(count: int) -> None:
        for number in range(count):
            api.post("/apis/batch/v1/namespaces/default/jobs", _job(10 * count + number))

    with TemporaryDirectory() as folder:
        yield _count_files("files of a trivial Job", partial(_simulate, Path(folder)))
    yield _count_files("files of a POST of a Job", post, _VIRTUAL_LOOP)


def _count_files(name: str, work: Callable[[int], object], excluded: frozenset[str] = frozenset()) -> StructureFigure:
    """Count the files with more calls for two units of work than for one; a first execution fills the caches."""
    work(3)
    one, two = _count_calls(partial(work, 1)), _count_calls(partial(work, 2))
    files = {code.co_filename.rpartition(f"/src/{PACKAGE}/")[2] for code in two if two[code] > one[code]}
    return StructureFigure(name, len(files - excluded), sorted(files - excluded))


def _job(number: int) -> dict[str, object]:
    container = {"name": "a", "image": "a", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    metadata = {"name": f"j{number}", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}


def _simulate(folder: Path, count: int) -> None:
    """Simulate a queue with this number of Jobs, without nodes."""
    from batchyard import simulate  # noqa: PLC0415 - only with --profile

    (folder / "world.yaml").write_text("\n---\n".join([_QUEUE, *(json.dumps(_job(number)) for number in range(count))]))
    simulate(folder)


def _count_calls(work: Callable[[], object]) -> Counter[CodeType]:
    """Execute work, and count the calls of each function of the package."""
    calls: Counter[CodeType] = Counter()

    def observe(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and f"/src/{PACKAGE}/" in code.co_filename and code.co_name != "<module>":
            calls[code] += 1

    sys.setprofile(observe)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def main() -> int:
    """Print the figures; return 1 if a figure exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    exceeded = 0
    for figure in [*structure_figures(), *(profile_figures() if arguments.profile else ())]:
        limit = LIMITS.get(figure.name)
        is_over = limit is not None and figure.value > limit
        exceeded += is_over
        note = "" if limit is None else f"  (limit {limit:g})"
        sys.stdout.write(f"{figure.name:36} {figure.value:>10,g}{note}{'  EXCEEDED' if is_over else ''}\n")
        if arguments.list:
            sys.stdout.writelines(f"    {detail}\n" for detail in figure.details)
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
