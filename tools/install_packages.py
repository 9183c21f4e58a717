"""Installs the packages of lock files with pip, prints a line for each download, and compiles the packages.

`make setup` and `make develop` run this script: `python tools/install_packages.py LOCK...`, with the Python of the
virtual environment.
"""

import compileall
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

#: pip would compile the packages with one process; `main` compiles them with all processors.
PIP = (sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off", "--no-compile")
#: pip's lines about a file: whether it comes from the network, its name, and its size.
FILE_LINE = re.compile(
    r"^\s*(Downloading|Using cached|Processing) (?:\S*/)?([^/\s]+\.(?:whl|tar\.gz|zip))(?: \(([^)]*)\))?"
)
INSTALL_LINE = "Installing collected packages"


def main() -> int:
    """Run pip and return its exit code; its errors go to standard error."""
    lock_files = sys.argv[1:]
    pin_count = sum("==" in line for name in lock_files for line in Path(name).read_text("utf-8").splitlines())
    command = [*PIP, "--require-hashes", *(f"--requirement={name}" for name in lock_files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pip:
        assert pip.stdout is not None
        for line in progress_lines(pip.stdout, pin_count):
            print(line, flush=True)
    if pip.returncode == 0:
        compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2, workers=0)
    return pip.returncode


def progress_lines(pip_lines: Iterable[str], pin_count: int) -> Iterator[str]:
    """Yield a line for each package file that pip names, and one when the installation of the packages begins."""
    file_count = 0
    for line in pip_lines:
        named = FILE_LINE.match(line)
        if named is not None:
            file_count += 1
            source, file_name, size = named.groups()
            size = size or "size unknown"
            note = {"Downloading": size, "Using cached": f"cached, {size}", "Processing": "a local file"}[source]
            yield f"      {file_count:>3} of at most {pin_count}: {file_name} ({note})"
        elif line.startswith(INSTALL_LINE):
            yield f"      installing {file_count} packages"


if __name__ == "__main__":
    sys.exit(main())
