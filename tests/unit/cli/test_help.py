"""The help of all commands: its size, its examples, and one meaning for each option letter."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperArgument, TyperGroup

from batchyard.cli.app import COMMANDS, command_contexts
from batchyard.cli.examples import EXAMPLES
from batchyard.cli.help import command_name, first_sentence, parameter_groups

ROOT = Path(__file__).parents[3]
LINES_MAX, COLUMNS, SUMMARY_MAX = 40, 80, 50
CONTEXTS = {command_name(context): context for context in command_contexts()}
ALL_EXAMPLES = [(name, example) for name, examples in EXAMPLES.items() for example in examples]
#: The only meaning of each option letter: the long name, and the placeholders of its value.
LETTERS = {
    "-A": ("--all-namespaces", {""}),
    "-e": ("--env", {"NAME=VALUE"}),
    "-f": ("--filename", {"FILE", "PATH"}),
    "-h": ("--help", {""}),
    "-n": ("--namespace", {"NS", "NAMESPACE"}),
    "-o": ("--output", {"FORMAT"}),
    "-v": ("--verbose", {""}),
    "-w": ("--watch", {""}),
    "-y": ("--yes", {""}),
}
#: Letters of `kubectl logs`.
EXCEPTIONS = {("logs", "-f"): ("--follow", {""}), ("logs", "-c"): ("--container", {"NAME"})}
#: Examples that need no platform, no other file, and at most some seconds.
RUNNABLE = re.compile(
    r"source|batchyard (simulate|completion|(compare|whatif|lint) examples|why .* -f|install$|install --rep"
    r"|guide -o|platform (init|plan|render ex))"
)


@pytest.fixture(autouse=True)
def narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


def help_lines(*command: str) -> list[str]:
    done = subprocess.run([sys.executable, "-m", "batchyard", *command, "--help"], capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def test_overview_fits_on_a_terminal() -> None:
    lines = help_lines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= COLUMNS
    assert [line.split()[:2] for line in lines if line.startswith("Simulate")] == [["Simulate", "simulate"]]
    assert all(any(f" {name} " in line and entry.summary in line for line in lines) for name, entry in COMMANDS.items())


@pytest.mark.parametrize("name", CONTEXTS)
def test_summary_is_short_and_a_sentence(name: str) -> None:
    summary = COMMANDS[name].summary if name in COMMANDS else first_sentence(CONTEXTS[name].command.help or "")
    assert 0 < len(summary) <= SUMMARY_MAX
    assert summary.endswith(".")


@pytest.mark.parametrize("name", CONTEXTS)
def test_help_of_command_is_complete(name: str) -> None:
    context = CONTEXTS[name]
    text = context.get_help()
    assert max(map(len, text.splitlines())) <= COLUMNS
    assert "..." not in text.replace("]...", "").replace("PATH...", "").replace("COMMAND...", "").replace(
        "ARGS]...", ""
    ).replace("JOB...", "")
    groups = parameter_groups(context.command.get_params(context))
    for group, parameters in groups.items():
        assert f"\n{group}:\n" in text or isinstance(context.command, TyperGroup)
        assert [parameter.name for parameter in parameters if not (parameter.help or "").endswith(".")] == []
    visible = [parameter for parameter in context.command.get_params(context) if not parameter.hidden]
    assert sum(map(len, groups.values())) == len(visible)
    for parameter in visible:
        assert parameter.opts[0] in text or isinstance(parameter, TyperArgument)


def test_every_command_has_two_to_four_examples() -> None:
    assert {name: len(examples) for name, examples in EXAMPLES.items() if not 2 <= len(examples) <= 4} == {}
    assert sorted(EXAMPLES) == sorted(CONTEXTS)


def batchyard_words(example: str) -> list[str]:
    """Return the words after `batchyard` up to a redirection, a pipe or a closing parenthesis."""
    words = shlex.split(example.replace("\\\n", " ").partition("batchyard ")[2].removesuffix(")" * ("<(" in example)))
    end = next((index for index, word in enumerate(words) if word in {"|", ">"}), len(words))
    return words[:end]


@pytest.mark.parametrize(("name", "example"), ALL_EXAMPLES, ids=[example for _, example in ALL_EXAMPLES])
def test_example_is_parsed(name: str, example: str) -> None:
    """Parsing checks the options and their values, without running the command."""
    words = batchyard_words(example)
    command_words = name.split()
    assert words[: len(command_words)] == command_words
    context = CONTEXTS[name]
    words = words[len(command_words) :]
    if isinstance(context.command, TyperGroup):
        context, words = CONTEXTS[f"{name} {words[0]}"], words[1:]
    context.command.make_context(context.info_name, words, parent=context.parent)
    assert all((ROOT / word).exists() for word in words if word.startswith("examples/"))


@pytest.mark.slow
@pytest.mark.parametrize("example", [example for _, example in ALL_EXAMPLES if RUNNABLE.match(example)])
def test_example_runs_as_pasted(tmp_path: Path, example: str) -> None:
    """The shell runs it in a folder that has the repository's examples."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if "render --out" in example:
        (tmp_path / "platform.yaml").symlink_to(ROOT / "examples" / "platforms" / "dws.yaml")
    home = tmp_path / "home"
    for folder in (".zfunc", ".config/fish/completions"):
        (home / folder).mkdir(parents=True)
    code = f'batchyard() {{ "{sys.executable}" -m batchyard "$@"; }}\nHOME="{home}"\n{example}\n'
    done = subprocess.run(["bash", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    found_problems = example.startswith("batchyard lint examples/refarch")
    assert (done.returncode, "Traceback" in done.stderr) == (int(found_problems), False), done.stderr


def options_with_letters() -> list[tuple[str, str, Any]]:
    return [
        (name, letter, option)
        for name, context in CONTEXTS.items()
        for option in context.command.get_params(context)
        if not isinstance(option, TyperArgument)
        for letter in option.opts
        if re.fullmatch(r"-\w", letter)
    ]


@pytest.mark.parametrize(("name", "letter", "option"), options_with_letters())
def test_letter_has_one_meaning(name: str, letter: str, option: Any) -> None:
    if option.hidden:
        assert (name, letter) == ("snapshot", "-o")
        return
    long_name, placeholders = EXCEPTIONS.get((name, letter)) or LETTERS[letter]
    has_choices = bool(option.type_descriptor.choices)
    placeholder = "FORMAT" if has_choices else "" if option.is_flag else option.metavar
    assert long_name in option.opts
    assert placeholder in placeholders


@pytest.mark.parametrize("name", CONTEXTS)
def test_same_long_name_has_same_letter(name: str) -> None:
    """An option with a long name of LETTERS also has the letter of this name."""
    context = CONTEXTS[name]
    for option in context.command.get_params(context):
        for letter, (long_name, _) in LETTERS.items():
            assert long_name not in option.opts or letter in option.opts


def test_old_spelling_works_with_a_notice(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batchyard", "snapshot", "--data-dir", str(tmp_path)]
    new, old, both = (
        subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        for words in (["x"], ["-o", "x"], ["y", "-o", "x"])
    )
    notice = "batchyard: -o is the output format in all commands; write `batchyard snapshot x` without it\n"
    assert old.stderr == notice + new.stderr
    assert (new.returncode, old.returncode, both.returncode) == (1, 1, 2)
    assert f"no platform runs in {tmp_path}" in new.stderr
    assert "--output x and y are two files: remove --output" in " ".join(both.stderr.split())
