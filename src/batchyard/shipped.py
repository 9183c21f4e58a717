"""Where the files lie that come with the package and are not code: examples, and what monitoring needs.

In the repository they are beside the package, else among the data of the installation.
"""

import sysconfig
from pathlib import Path


def find_folder(name: str) -> Path | None:
    """The folder of a name such as `examples/refarch`; None where there is none."""
    roots = (Path(__file__).parents[2], Path(sysconfig.get_path("data"), "share", "batchyard"))
    return next((folder for root in roots if (folder := root / name).is_dir()), None)
