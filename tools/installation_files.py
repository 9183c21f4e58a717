"""Write what is made of batchyard.install below deploy/: `python tools/installation_files.py`.

deploy/operator/base              the kustomization, as `batchyard install --out` writes it
deploy/charts/batchyard/files     what the chart's templates put together: kinds, rights and webhooks by group of
                                  controllers, and the roles for people

A test holds that they are there as this would write them.
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
    """Write all of them."""
    for path, text in files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def files() -> dict[Path, str]:
    """Their places and texts."""
    base = {DEPLOY / "operator/base" / name: text for name, text in kustomization(InstallSettings()).items()}
    chart = {
        "definitions.json": [{"groups": groups, "definition": obj} for groups, obj in definitions()],
        "rights.json": {group: controller_rules([group]) for group in REMOTE_GROUPS},
        "roles.json": [
            obj
            for obj in manifests_by_file(InstallSettings())["rights"]
            if obj["metadata"]["name"].startswith("kueue-")
        ],
        "webhooks.json": {group: webhooks(group) for group in REMOTE_GROUPS},
    }
    return base | {DEPLOY / "charts/batchyard/files" / name: _text(held) for name, held in chart.items()}


def definitions() -> list[tuple[list[str], Mapping[str, Any]]]:
    """All kinds, each with the groups that need it; converted by a Service that the chart names."""
    found = []
    for obj in manifests_by_file(InstallSettings(controllers=REMOTE_GROUPS))["definitions"]:
        spec = obj["spec"]
        groups = [group for group in REMOTE_GROUPS if f"{spec['names']['kind']}.{spec['group']}" in kinds_read([group])]
        found.append((groups, obj))
    return found


def webhooks(group: str) -> dict[str, Any]:
    """The webhooks of a group, by whether they change objects."""
    configurations = manifests_by_file(InstallSettings(controllers=(group,))).get("webhooks", ())
    found = {obj["kind"].removesuffix("WebhookConfiguration"): obj["webhooks"] for obj in configurations}
    return {word: found.get(word, []) for word in ("Mutating", "Validating")}


def _text(held: Any) -> str:
    """One line for each item."""
    is_list = isinstance(held, list)
    items = held if is_list else [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in held.items()]
    lines = ",\n".join(json.dumps(item, separators=(",", ":")) if is_list else item for item in items)
    return f"[\n{lines}\n]\n" if is_list else f"{{\n{lines}\n}}\n"


if __name__ == "__main__":
    main()
