"""Generates the files of deploy/ from batchyard.operator_manifests: `python tools/installation_files.py`.

deploy/operator/base              the kustomization, as `batchyard install --out` writes it
deploy/charts/batchyard/files     the data of the chart's templates: CRDs, permissions and webhooks by controller group,
                                  and the roles for users

A test checks that the files are up to date.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchyard.cli.commands.install import kustomization_files as kustomization
from batchyard.controller_groups import JOBSET, PODS, REMOTE_GROUPS, kinds_read
from batchyard.operator_manifests import InstallSettings, manifests_by_file
from batchyard.operator_manifests.rights import controller_rules

DEPLOY = Path(__file__).parents[1] / "deploy"
#: The key of the webhooks of pods where both groups run: their match conditions then include pods of JobSets.
BOTH_POD_GROUPS = f"{PODS} and {JOBSET}"


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
        "webhooks.json": {
            **{group: webhooks([group]) for group in REMOTE_GROUPS},
            BOTH_POD_GROUPS: {
                phase: [hook for hook in hooks if "matchConditions" in hook]
                for phase, hooks in webhooks([PODS, JOBSET]).items()
            },
        },
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


def webhooks(groups: Sequence[str]) -> dict[str, Any]:
    """Return the webhooks of controller groups, as `Mutating` and `Validating`."""
    configurations = manifests_by_file(InstallSettings(controllers=tuple(groups))).get("webhooks", ())
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
