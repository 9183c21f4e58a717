"""Gathers below a folder what a Python program needs to run without anything else: `python gather.py FOLDER`.

The interpreter, its standard library without what no program needs, the shared libraries that they and the packages in
FOLDER/app load, the authorities of certificates, and a user who is nobody. Bytecode is compiled here.
"""

import compileall
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: Parts of the standard library that only developers need, or that need libraries missing from the image.
UNUSED = (
    "test",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "distutils",
    "site-packages",
    "dist-packages",
)
#: Parts of packages that batchyard does not use.
UNUSED_OF_APP = ("bin", "share/man")
#: The CA certificates, and the dynamic linker's configuration of library paths.
BESIDE = (Path("/etc/ssl/certs/ca-certificates.crt"), Path("/etc/ld.so.cache"))
NOBODY = "nobody:x:65532:65532:nobody:/:/none\n"


def main() -> None:
    """Gather all of it."""
    root = Path(sys.argv[1])
    interpreter = Path(sys.executable).resolve()
    library = Path(sysconfig.get_path("stdlib"))
    copied(interpreter, root)
    shutil.copytree(
        library,
        root / library.relative_to("/"),
        ignore=shutil.ignore_patterns(*UNUSED, "__pycache__"),
        dirs_exist_ok=True,
    )
    for name in UNUSED_OF_APP:
        shutil.rmtree(root / "app" / name, ignore_errors=True)
    for path in [interpreter, *root.rglob("*.so*")]:
        for needed in libraries_of(path):
            copied(needed, root)
    (root / "python").symlink_to(interpreter)
    # Programs that batchyard starts with `python -I` do not read PYTHONPATH.
    packages = root / Path(sysconfig.get_path("purelib")).relative_to("/")
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "batchyard.pth").write_text("/app\n")
    for path in filter(Path.exists, BESIDE):
        copied(path, root)
    (root / "etc").mkdir(exist_ok=True)
    (root / "etc/passwd").write_text(NOBODY)
    (root / "etc/group").write_text("nobody:x:65532:\n")
    (root / "tmp").mkdir(mode=0o1777, exist_ok=True)
    for place in (root / "app", root / library.relative_to("/")):
        compileall.compile_dir(place, quiet=2, stripdir=str(root), workers=os.cpu_count() or 1)


def copied(path: Path, root: Path) -> None:
    """A file at its place, and links on the way to it as links."""
    target = root / path.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy2(path, target)


def libraries_of(path: Path) -> Iterator[Path]:
    """The shared libraries that a program or library loads, those of the system."""
    told = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=False).stdout
    for found in re.findall(r"(?:=> )?(/\S+) \(0x", told):
        if not found.startswith(sys.argv[1]):
            yield Path(found)


if __name__ == "__main__":
    main()
