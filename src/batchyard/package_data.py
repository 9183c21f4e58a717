"""Locations of the package's data files: the examples, and the configuration files for monitoring.

A source checkout has them beside `src`. An installation has them in the folder `share/batchyard` of its prefix, or of
the target folder of `pip install --target`.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path


def find_folder(name: str) -> Path | None:
    """Return the path of a data folder such as `examples/refarch`; None if it does not exist."""
    return next((folder for root in _data_roots() if (folder := root / name).is_dir()), None)


def find_file(name: str) -> Path | None:
    """Return the path of a data file such as `LICENSE`; None if it does not exist."""
    return next((file for root in _data_roots() if (file := root / name).is_file()), None)


def _data_roots() -> Iterator[Path]:
    """Yield the folders that can hold the data files; the package lies in PREFIX/lib/pythonX.Y/site-packages."""
    folders = Path(__file__).resolve().parents
    yield folders[2]
    prefixes = (folders[1], *folders[4:5], Path(sysconfig.get_path("data")))
    yield from (prefix / "share" / "batchyard" for prefix in prefixes)


def read_folder(name: str, suffix: str) -> dict[str, str]:
    """Return the texts of a data folder's files with a suffix, by file name.

    Raises FileNotFoundError if the folder does not exist.
    """
    folder = find_folder(name)
    if folder is None:
        raise FileNotFoundError(f"the data folder {name} is neither in the checkout nor installed; reinstall batchyard")
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob(f"*{suffix}"))}
