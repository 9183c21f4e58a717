"""Locations of the data files of the package: examples, and the files of monitoring.

In the repository they are beside the package, in an installation among its data files.
"""

import sysconfig
from pathlib import Path


def find_folder(name: str) -> Path | None:
    """The folder of a name such as `examples/refarch`; None if it does not exist."""
    return next((folder for root in _roots() if (folder := root / name).is_dir()), None)


def find_file(name: str) -> Path | None:
    """The file of a name such as `LICENSE`; None if it does not exist."""
    return next((file for root in _roots() if (file := root / name).is_file()), None)


def _roots() -> tuple[Path, Path]:
    return Path(__file__).parents[2], Path(sysconfig.get_path("data"), "share", "batchyard")


def read_folder(name: str, suffix: str) -> dict[str, str]:
    """The texts of a folder's files with that suffix by their names, in order; FileNotFoundError without the folder."""
    folder = find_folder(name)
    if folder is None:
        raise FileNotFoundError(f"{name} is neither beside the package nor installed with it")
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"*{suffix}"))}
