"""The style of this repository, as tests: the tree keeps every rule, and every rule can fail."""

import gc
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import pytest

from batchyard.cli.app import COMMANDS
from tidy import modules, names, order, sizes, words
from tidy.bans import NameBan, banned_names
from tidy.source import SourceFile, Violation, files_below

ROOT = Path(__file__).parent.parent
TABLES = tomllib.loads((ROOT / "tests" / "tidy.toml").read_text("utf-8"))
BANS = [NameBan.of(row) for row in TABLES["ban"]]
#: The entry points: programs that users run, the spawner, and the modules that only tests import.
#: The command line imports the module of a command by its name.
ENTRY_POINTS = (
    "batchyard",
    "batchyard.__main__",
    "batchyard.cli.main",
    "batchyard.shim.spawner",
    "batchyard.server.local_node.service_proxy",
    "batchyard.sim.invariants.checker",
    "batchyard.sim.random_worlds",
    "batchyard.sim.random_clusters",
    *(entry.module for entry in COMMANDS.values()),
)

EVERYWHERE = ("src/", "tests/", "benchmarks/", "tools/")
BUT_TESTS = ("src/", "benchmarks/", "tools/")
SRC = ("src/",)
TESTS = ("tests/",)

FileRule: TypeAlias = Callable[[SourceFile], Iterator[Violation]]


def banned(file: SourceFile) -> Iterator[Violation]:
    """Uses of names that the table bans."""
    return banned_names(file, BANS)


def synonyms(file: SourceFile) -> Iterator[Violation]:
    """Identifiers that contain a wrong word of the table."""
    return names.synonyms(file, TABLES["synonyms"])


PYTHON_RULES: dict[str, tuple[FileRule, tuple[str, ...]]] = {
    "functions are short": (sizes.long_functions, EVERYWHERE),
    "classes are short": (sizes.long_classes, EVERYWHERE),
    "modules are short": (sizes.long_modules, EVERYWHERE),
    "parameters are few": (sizes.many_parameters, BUT_TESTS),
    "nesting is shallow": (sizes.deep_nesting, EVERYWHERE),
    "modules say what they are": (modules.undocumented_modules, EVERYWHERE),
    "private names stay private": (modules.private_imports, EVERYWHERE),
    "clock, chance, files and terminal have one place": (banned, EVERYWHERE),
    "files and classes have telling names": (names.empty_names, EVERYWHERE),
    "one word a thing": (synonyms, EVERYWHERE),
    "tests are named as facts": (names.unnamed_tests, TESTS),
    "the order of sets is never seen": (order.set_iteration, SRC),
    "no debris": (words.debris, EVERYWHERE),
}


@pytest.fixture(scope="module", autouse=True)
def trees_are_dropped() -> Iterator[None]:
    """Keep the millions of nodes of the syntax trees from the garbage collector, and drop them after the last test."""
    gc.disable()
    yield
    for function in (tree, violations_of, banned_words, dead_modules):
        function.cache_clear()
    gc.enable()


@cache
def tree() -> tuple[SourceFile, ...]:
    """Every text file of the repository."""
    return tuple(files_below(ROOT))


def python_files(places: Sequence[str]) -> list[SourceFile]:
    """The Python files below some folders."""
    return [file for file in tree() if file.path.endswith(".py") and any(map(file.lies_in, places))]


def is_excepted(violation: Violation) -> bool:
    """Whether the table of exceptions names the violation."""
    place = (violation.rule, violation.path, violation.subject)
    return any((row["rule"], row["path"], row["subject"]) == place for row in TABLES.get("exception", []))


def all_violations() -> list[Violation]:
    """Every violation of every rule, excepted or not."""
    of_python = map(violations_of, PYTHON_RULES)
    return [*chain.from_iterable(of_python), *banned_words(), *dead_modules()]


@cache
def violations_of(name: str) -> tuple[Violation, ...]:
    """The violations of a rule for Python files, excepted or not."""
    rule, places = PYTHON_RULES[name]
    return tuple(chain.from_iterable(rule(file) for file in python_files(places)))


@cache
def banned_words() -> tuple[Violation, ...]:
    """Texts of the tree that contain a banned word."""
    return tuple(chain.from_iterable(words.banned_words(file) for file in tree()))


@cache
def dead_modules() -> tuple[Violation, ...]:
    """Modules of the tree that no entry point reaches."""
    return tuple(modules.dead_modules(python_files(SRC), ENTRY_POINTS))


def assert_none(violations: Iterable[Violation]) -> None:
    """Fail with the list of violations that no exception covers."""
    result = [violation for violation in violations if not is_excepted(violation)]
    assert not result, "\n" + "\n".join(map(str, result))


@pytest.mark.parametrize("name", PYTHON_RULES)
def test_the_tree_keeps_the_rule(name: str) -> None:
    assert_none(violations_of(name))


def test_no_text_holds_a_banned_word() -> None:
    assert_none(banned_words())


def test_an_entry_point_reaches_every_module() -> None:
    assert_none(dead_modules())


def compiled() -> list[str]:
    """The files and folders that are compiled."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["hatch"]["build"]["targets"]["wheel"]
    return [place.removeprefix("/") for place in hook["hooks"]["mypyc"]["include"]]


def test_every_place_that_is_compiled_exists() -> None:
    assert [place for place in compiled() if not (ROOT / place).exists()] == []


def test_what_is_compiled_inherits_and_is_inherited_from_only_as_it_can_be() -> None:
    assert_none(modules.interpreted_heirs(python_files(SRC), compiled()))
    assert_none(modules.builtin_heirs(python_files(SRC), compiled()))


def test_functions_of_what_is_compiled_are_decorated_only_where_that_can_be() -> None:
    assert_none(modules.decorated_within(python_files(SRC), compiled()))


def test_what_is_compiled_has_only_statements_that_mypyc_supports() -> None:
    assert_none(modules.uncompilable(python_files(SRC), compiled()))


def test_every_exported_name_exists() -> None:
    packages = [path.parent.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("__init__.py")]
    missing = []
    for package in packages:
        module = import_module(".".join(package.parts))
        missing += [f"{package}: {name}" for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
    assert missing == []


def test_every_exception_is_still_needed_and_has_a_reason() -> None:
    result = {(violation.rule, violation.path, violation.subject) for violation in all_violations()}
    rows = TABLES.get("exception", [])
    assert [row for row in rows if (row["rule"], row["path"], row["subject"]) not in result] == []
    assert all(row["reason"] for row in chain(rows))


def test_every_place_that_the_bans_name_exists() -> None:
    paths = [path for ban in BANS for path in (*ban.within, *ban.allowed)]
    named = [name for ban in BANS for name in re.findall(r"batchyard(?:\.\w+)+", ban.instead)]
    paths += [f"src/{name.replace('.', '/')}" for name in named]
    assert [path for path in paths if not (ROOT / path).exists() and not (ROOT / f"{path}.py").is_file()] == []


def test_every_mutation_still_has_its_place() -> None:
    rows = tomllib.loads((ROOT / "tools" / "mutations.toml").read_text("utf-8"))["mutation"]
    result = {row["name"]: (ROOT / "src/batchyard" / row["file"]).read_text("utf-8").count(row["find"]) for row in rows}
    assert {name: count for name, count in result.items() if count != 1} == {}


def test_every_right_word_is_in_the_glossary() -> None:
    bold = re.findall(r"\*\*([^*]+)\*\*|`([^`]+)`", (ROOT / "docs" / "concepts" / "glossary.md").read_text("utf-8"))
    terms = {names.snake("".join(term)).replace(" ", "_") for term in bold}
    short = {"flavor": "resource_flavor"}
    assert [word for word in TABLES["synonyms"].values() if short.get(word, word) not in terms] == []


# Every rule can fail: each has a test with a bad text and a similar good text.

LONG = "\n    ".join(["def f(): pass"] + ["x = 1"] * 70)
DEEP = "if a:\n  for b in c:\n   while d:\n    with e:\n     if g:\n      pass"


def function(body: str, head: str = "def f():") -> str:
    """The text of a module with one function that has this body."""
    return head + "\n" + "\n".join(f" {line}" for line in body.splitlines())


def found_in(rule: FileRule, text: str, path: str = "src/batchyard/scheduling/cycle.py") -> list[str]:
    """The violations of a rule in a text."""
    return [violation.what for violation in rule(SourceFile(path, text))]


def test_a_violation_reads_as_place_fault_and_remedy() -> None:
    violation = next(modules.undocumented_modules(SourceFile("src/a.py", "x = 1")))
    assert str(violation) == "src/a.py:1: module has no docstring; say in a line what it is and why it is there"


def test_long_functions_are_found() -> None:
    assert found_in(sizes.long_functions, function("x = 1\n" * 60)) == ["function f has 61 lines, more than 60"]
    assert found_in(sizes.long_functions, function("x = 1\n" * 59)) == []


def test_long_tests_are_found_sooner() -> None:
    text = function("x = 1\n" * 30, "def test_f():")
    assert found_in(sizes.long_functions, text, "tests/test_a.py") == ["function test_f has 31 lines, more than 25"]


def test_long_classes_are_found() -> None:
    text = function("x = 1\n" * 275, "class A:")
    assert found_in(sizes.long_classes, text) == ["class A has 276 lines, more than 275"]


def test_long_modules_are_found() -> None:
    assert found_in(sizes.long_modules, "x = 1\n" * 601) == ["module has 601 lines, more than 600"]
    assert found_in(sizes.long_modules, "x = 1\n" * 600, "tests/test_a.py") == []


def test_many_parameters_are_found_self_excluded() -> None:
    many = "def f(a, b, c, d, *, e, f, g): pass"
    assert found_in(sizes.many_parameters, many) == ["function f has 7 parameters, more than 6"]
    assert found_in(sizes.many_parameters, function("def f(self, a, b, c, d, e, f): pass", "class A:")) == []
    static = function("@staticmethod\ndef f(a, b, c, d, e, f, g): pass", "class A:")
    assert len(found_in(sizes.many_parameters, static)) == 1


def test_deep_nesting_is_found() -> None:
    assert found_in(sizes.deep_nesting, function(DEEP)) == ["function f nests 5 deep, more than 4"]


def test_elif_and_inner_functions_do_not_nest() -> None:
    chain_of_ifs = "if a:\n pass\n" + "elif b:\n pass\n" * 6
    assert found_in(sizes.deep_nesting, function(chain_of_ifs)) == []
    assert found_in(sizes.deep_nesting, function("if a:\n def g():\n  for b in c:\n   while d:\n    if e: pass")) == []


def test_an_heir_of_a_compiled_class_is_found() -> None:
    base = SourceFile("src/a/b.py", "class B: pass\nclass P(Protocol): pass")
    heir = SourceFile("src/c.py", "from a.b import B, P\nclass C(B): pass\nclass D(P): pass")
    result = modules.interpreted_heirs([base, heir], ["src/a/"])
    assert [violation.subject for violation in result] == ["C"]
    assert not list(modules.interpreted_heirs([base, heir], ["src/"]))


def test_an_heir_of_what_is_pythons_own_in_a_compiled_module_is_found() -> None:
    containers = "class A(OrderedDict[str, int], Generic[K]): pass\nclass B(list): pass\nclass C(A): pass"
    file = SourceFile("src/a/b.py", f"{containers}\nclass D(RuntimeError): pass\nclass E(Exception): pass")
    assert [violation.subject for violation in modules.builtin_heirs([file], ["src/a/"])] == ["A", "B", "D"]
    assert not list(modules.builtin_heirs([file], ["src/c/"]))


def test_a_statement_that_mypyc_does_not_support_is_found() -> None:
    text = "for a in b:\n    try:\n        continue\n    finally:\n        c()\nd = e in (*f, 1)\n"
    file = SourceFile("src/a/b.py", text)
    assert [violation.line for violation in modules.uncompilable([file], ["src/a/"])] == [3, 6]
    assert not list(modules.uncompilable([file], ["src/c/"]))


def test_a_function_decorated_within_another_in_a_compiled_module_is_found() -> None:
    text = "@cache\ndef a():\n    @cache\n    def b(): pass\n    def c(): pass\nclass D:\n    @cache\n    def e(): pass"
    file = SourceFile("src/a/b.py", text)
    assert [violation.subject for violation in modules.decorated_within([file], ["src/a/"])] == ["b"]
    assert not list(modules.decorated_within([file], ["src/c/"]))


def test_a_module_without_docstring_is_found() -> None:
    assert found_in(modules.undocumented_modules, "x = 1") == ["module has no docstring"]
    assert found_in(modules.undocumented_modules, '"""What it is."""') == []


def test_an_import_of_a_private_name_is_found() -> None:
    text = "from batchyard.scheduling.quota import _local"
    assert found_in(modules.private_imports, text) == ["imports _local, private to batchyard.scheduling.quota"]


@pytest.mark.parametrize(
    "text",
    [
        "import time",
        "import datetime as dt",
        "from time import monotonic",
        "from zoneinfo import ZoneInfo",
        "import random",
        "import uuid\nuuid.uuid4()",
        "from uuid import uuid1",
        "print('x')",
        "import os\nos.environ['A']",
        "from os import getenv as g",
        "clock.sleep(1)",
        "open('x')",
        "Path('x').read_text()",
        "try:\n pass\nexcept:\n pass",
        "try:\n pass\nexcept (KeyError, Exception):\n pass",
        "import contextlib\nwith contextlib.suppress(Exception): pass",
        "eval('1')",
        "breakpoint()",
    ],
)
def test_a_banned_name_is_found(text: str) -> None:
    assert len(found_in(banned, text)) == 1


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("import datetime", "src/batchyard/api/times.py"),
        ("from time import monotonic", "src/batchyard/cli/output.py"),
        ("from time import perf_counter", "benchmarks/cycle.py"),
        ("print('x')", "src/batchyard/cli/output.py"),
        ("try:\n pass\nexcept Exception:\n pass", "src/batchyard/controller_runtime/runner.py"),
        ("import uuid\nuuid.UUID(bytes=b'')", "src/batchyard/base/primitives.py"),
        ("time = random = 1\ntime.now, random", "src/batchyard/scheduling/cycle.py"),
    ],
)
def test_a_name_is_free_where_it_is_allowed(text: str, path: str) -> None:
    assert found_in(banned, text, path) == []


def test_an_allowed_part_does_not_allow_the_rest() -> None:
    assert found_in(banned, "import time", "src/batchyard/cli/output.py") == ["uses time"]


def test_empty_names_of_files_and_classes_are_found() -> None:
    assert found_in(names.empty_names, "", "src/batchyard/scheduling/string_utils.py") == ["the path says 'utils'"]
    assert found_in(names.empty_names, "class HTTPHelper: pass") == ["class HTTPHelper says 'helper'"]
    assert found_in(names.empty_names, "class Metadata: pass", "src/batchyard/api/metadata.py") == []


def test_synonyms_are_found_in_any_case() -> None:
    assert found_in(synonyms, "tenant_queues = 1") == ["tenant_queues says tenant_queue"]
    assert found_in(synonyms, "class PoolQuota: pass") == ["PoolQuota says pool_quota"]
    assert found_in(synonyms, "def f(borrowLimit): pass") == ["borrowLimit says borrow_limit"]
    assert found_in(synonyms, "borrowing_limit = nominal_quota = 1") == []


def test_tests_without_a_fact_are_found() -> None:
    assert len(found_in(names.unnamed_tests, "def test_quota(): pass", "tests/test_a.py")) == 1
    assert found_in(names.unnamed_tests, "def test_quota_is_kept(): pass", "tests/test_a.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: pass",
        "for x in set(y): pass",
        "[x for x in frozenset(y)]",
        "list({x for x in y})",
        "names = set(y)\nfor x in names | other: pass",
        "def f(names: frozenset[str]) -> None:\n for x in names: pass",
        "class A:\n names: set[str]\n def f(self): return [*self.names]",
        "','.join({a, b})",
        "dict.fromkeys(set(y))",
        "for x in set(a).union(b): pass",
    ],
)
def test_a_set_whose_order_is_seen_is_found(text: str) -> None:
    assert len(found_in(order.set_iteration, text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "for x in sorted(set(y)): pass",
        "any(x for x in set(y))",
        "x in {1, 2}",
        "{x for x in set(y)}",
        "names = {1: 2}\nfor x in names: pass",
        "for x in total - {1}: pass",
        "def f(names: set[str]) -> int:\n return len(names)",
    ],
)
def test_a_set_whose_order_is_not_seen_is_free(text: str) -> None:
    assert found_in(order.set_iteration, text) == []


@pytest.mark.parametrize(
    "text",
    [
        "# TO~DO later",
        "see /wo~rk/shared/x",
        "cd /ro~ot/.cache",
        "https://py~pi.org/simple",
        "pip install --index~-url x",
        "Fixes iss~ue #12",
    ],
)
def test_a_banned_word_is_found(text: str) -> None:
    assert len(found_in(words.banned_words, text.replace("~", ""), "docs/a.md")) == 1


@pytest.mark.parametrize("text", ["network/wo~rk/a", "../shared/wo~rk", "`/ro~ot/cohort/queue`", "an issue of quota"])
def test_words_close_to_banned_ones_are_free(text: str) -> None:
    assert found_in(words.banned_words, text.replace("~", ""), "docs/a.md") == []


@pytest.mark.parametrize(
    "text", ["x = 1  # no~qa", "x = 1  # type: ig~nore", "  break~point()", "import pd~b", "<<<<~<<< HEAD"]
)
def test_debris_is_found(text: str) -> None:
    assert len(found_in(words.debris, text.replace("~", ""))) == 1


def test_a_module_out_of_reach_is_found() -> None:
    files = [
        SourceFile("src/batchyard/cli/main.py", "def f():\n from batchyard.scheduling import cycle"),
        SourceFile("src/batchyard/scheduling/__init__.py", ""),
        SourceFile("src/batchyard/scheduling/cycle.py", "import batchyard.scheduling.quota"),
        SourceFile("src/batchyard/scheduling/quota.py", ""),
        SourceFile("src/batchyard/scheduling/old.py", "import batchyard.scheduling.older"),
        SourceFile("src/batchyard/scheduling/older.py", "import batchyard.scheduling.old"),
    ]
    result = [violation.subject for violation in modules.dead_modules(files, ENTRY_POINTS)]
    assert result == ["batchyard.scheduling.old", "batchyard.scheduling.older"]
