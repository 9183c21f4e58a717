"""Generates the files of deploy/ from batchyard.operator_manifests: `python tools/installation_files.py`.

deploy/operator/base              the kustomization, as `batchyard install --out` writes it
deploy/charts/batchyard/files     the data of the chart's templates: CRDs, permissions and webhooks by controller group,
                                  and the roles for users

A test checks that the files are up to date.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchyard.cli.commands.install import kustomization_files as kustomization
from batchyard.controller_groups import REMOTE_GROUPS, kinds_read
from batchyard.operator_manifests import InstallSettings, manifests_by_file
from batchyard.operator_manifests.rights import controller_rules

DEPLOY = Path(__file__).parents[1] / "deploy"


def main() -> None:
    """Write all files."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def files() -> dict[Path, str]:
    """Return the path and text of each file."""
    base = {DEPLOY / "operator/base" / name: text for name, text in kustomization(InstallSettings()).items()}
    chart = {
        "definitions.json": [{"groups": groups, "definition": obj} for groups, obj in crd_definitions()],
        "rights.json": {group: controller_rules([group]) for group in REMOTE_GROUPS},
        "roles.json": [
            obj
            for obj in manifests_by_file(InstallSettings())["rights"]
            if obj["metadata"]["name"].startswith("kueue-")
        ],
        "webhooks.json": {group: webhooks(group) for group in REMOTE_GROUPS},
    }
    return base | {DEPLOY / "charts/batchyard/files" / name: _text(data) for name, data in chart.items()}


def crd_definitions() -> list[tuple[list[str], Mapping[str, Any]]]:
    """Return all CRDs, each with the controller groups that need it; the chart sets the Service of their conversion."""
    rows = []
    for obj in manifests_by_file(InstallSettings(controllers=REMOTE_GROUPS))["definitions"]:
        spec = obj["spec"]
        groups = [group for group in REMOTE_GROUPS if f"{spec['names']['kind']}.{spec['group']}" in kinds_read([group])]
        rows.append((groups, obj))
    return rows


def webhooks(group: str) -> dict[str, Any]:
    """Return the webhooks of a controller group, as `Mutating` and `Validating`."""
    configurations = manifests_by_file(InstallSettings(controllers=(group,))).get("webhooks", ())
    by_type = {obj["kind"].removesuffix("WebhookConfiguration"): obj["webhooks"] for obj in configurations}
    return {name: by_type.get(name, []) for name in ("Mutating", "Validating")}


def _text(data: Any) -> str:
    """Return data as JSON text with one line per item."""
    is_list = isinstance(data, list)
    items = data if is_list else [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in data.items()]
    lines = ",\n".join(json.dumps(item, separators=(",", ":")) if is_list else item for item in items)
    return f"[\n{lines}\n]\n" if is_list else f"{{\n{lines}\n}}\n"


if __name__ == "__main__":
    main()
