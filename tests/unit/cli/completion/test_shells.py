"""Completion in the real shells: bash and zsh on a terminal with the Tab key, fish by its command `complete`."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from batchyard.cli.completion.command import Shell, completion_script
from unit.cli.completion.terminal import Terminal

pytestmark = pytest.mark.slow
needs_bash, needs_zsh, needs_fish = (
    pytest.mark.skipif(shutil.which(shell) is None, reason=f"there is no {shell} on this machine") for shell in Shell
)
CASES = [
    pytest.param("batchyard simul\t", "batchyard simulate ", id="command"),
    pytest.param("batchyard simulate --rep\t", "--report ", id="option"),
    pytest.param("batchyard simulate -o j\t", "-o json ", id="choice"),
    pytest.param("batchyard simulate --output=j\t", "--output=json ", id="joined choice"),
    pytest.param("batchyard platform rend\t", "platform render ", id="subcommand"),
    pytest.param("batchyard simulate mani\t", "simulate manifests.yaml ", id="file"),
    pytest.param("batchyard simulate --cluster=mani\t", "--cluster=manifests.yaml ", id="joined file"),
    pytest.param("batchyard up --data-dir fold\t", "--data-dir folder/", id="folder"),
    pytest.param("batchyard why workl\tx", "why workload/x", id="kind of object"),
]


@pytest.fixture
def environment(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a user who has `batchyard`, in a folder with files, without a platform."""
    program = tmp_path / "bin" / "batchyard"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m batchyard "$@"\n', "utf-8")
    program.chmod(0o755)
    (tmp_path / "manifests.yaml").touch()
    (tmp_path / "folder").mkdir()
    for shell in Shell:
        (tmp_path / "scripts" / shell).mkdir(parents=True)
        (tmp_path / "scripts" / shell / "_batchyard").write_text(completion_script(shell), "utf-8")
    kept = {name: value for name, value in os.environ.items() if name not in {"KUBECONFIG", "PROMPT_COMMAND"}}
    path = f"{program.parent}:{os.environ['PATH']}"
    return {**kept, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb", "PS1": "$ ", "PWD": str(tmp_path)}


def type_into(terminal: Terminal, folder: Path, setup: str, typed: str, expected: str) -> None:
    """Set the shell up, type a line, and wait for its completion."""
    terminal.send(f"cd {folder}; {setup}; echo set-'up'\n")
    terminal.read_until("set-up")
    terminal.send(typed)
    terminal.read_until(expected)


@needs_bash
@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_tab_completes_in_bash(environment: Mapping[str, str], tmp_path: Path, typed: str, expected: str) -> None:
    with Terminal(["bash", "--norc", "--noprofile", "-i"], environment) as terminal:
        type_into(terminal, tmp_path, "source scripts/bash/_batchyard", typed, expected)


@needs_zsh
@pytest.mark.parametrize(
    "setup", ["fpath=($PWD/scripts/zsh $fpath); compinit -u -D", "compinit -u -D; source scripts/zsh/_batchyard"]
)
@pytest.mark.parametrize(("typed", "expected"), CASES)
def test_tab_completes_in_zsh(
    environment: Mapping[str, str], tmp_path: Path, setup: str, typed: str, expected: str
) -> None:
    with Terminal(["zsh", "-f", "-i"], environment) as terminal:
        type_into(terminal, tmp_path, f"autoload -U compinit; {setup}", typed, expected)


@needs_zsh
def test_zsh_lists_values_without_help_in_order(environment: Mapping[str, str], tmp_path: Path) -> None:
    with Terminal(["zsh", "-f", "-i"], environment) as terminal:
        setup = "fpath=($PWD/scripts/zsh $fpath); autoload -U compinit; compinit -u -D"
        type_into(terminal, tmp_path, setup, "batchyard simulate -o \t\t", "json")
        listed = terminal.read_until("yaml")
    assert ["json", *listed.split()] == ["json", "table", "wide", "yaml"]


@needs_fish
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("batchyard simul", "simulate\tRun manifests in virtual time."),
        ("batchyard simulate --rep", "--report\tWrite an HTML report of the run."),
        ("batchyard simulate -o j", "json"),
        ("batchyard simulate --output=j", "--output=json"),
        ("batchyard platform rend", "render\tWrite all files of the platform to a folder."),
        ("batchyard simulate mani", "manifests.yaml"),
        ("batchyard up --data-dir fold", "folder/"),
        ("batchyard why workl", "workload/"),
        ("batchyard status ", ""),
    ],
)
def test_fish_completes(environment: Mapping[str, str], tmp_path: Path, line: str, expected: str) -> None:
    code = f"source scripts/fish/_batchyard; complete -C '{line}'"
    done = subprocess.run(
        ["fish", "--no-config", "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert [row.rstrip() for row in done.stdout.splitlines()] == ([expected] if expected else [])


@pytest.mark.parametrize("shell", Shell)
def test_command_prints_script(shell: Shell) -> None:
    done = subprocess.run([sys.executable, "-m", "batchyard", "completion", shell], capture_output=True, check=True)
    assert done.stdout.decode() == completion_script(shell)
