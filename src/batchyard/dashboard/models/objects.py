"""Single objects as YAML, and the search over Workloads, queues and nodes."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

import yaml

from batchyard.api import scheme, well_known
from batchyard.api.meta import Key, Obj, annotation
from batchyard.api.views.pods import pod_view
from batchyard.dashboard.data_source import NamespaceAccess, Query, ViewInputs, ViewJson

#: The kinds whose objects are shown as YAML.
SHOWN_KINDS: Final = (
    *(scheme.WORKLOAD, scheme.JOB, scheme.JOB_SET, scheme.POD, scheme.CLUSTER_QUEUE, scheme.LOCAL_QUEUE),
    *(scheme.COHORT, scheme.RESOURCE_FLAVOR, scheme.NODE),
)
_KINDS_BY_NAME: Final = {scheme.kind_info(constant).kind: constant for constant in SHOWN_KINDS}
#: The maximum length of a YAML text; a longer one is cut at a line.
YAML_LENGTH_MAX: Final = 256 * 1024


def object_yaml(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson | None:
    """Return the document of an object's YAML page; None if the object does not exist or the user may not list it.

    Only objects of the kinds in SHOWN_KINDS have a page. The query parameter `managed=true` includes the object's
    managedFields. A text above YAML_LENGTH_MAX is cut.
    """
    kind, namespace, name = _KINDS_BY_NAME.get(query.get("kind", "")), query.get("namespace", ""), query.get("name", "")
    if kind is None or not access.may_list(kind, namespace):
        return None
    obj = inputs.reader.get(Key(kind, namespace, name))
    if obj is None:
        return None
    text = _dump_yaml(obj if query.get("managed") == "true" else _without_managed_fields(obj))
    is_cut = len(text) > YAML_LENGTH_MAX
    info = scheme.kind_info(kind)
    return {
        "kind": info.kind,
        "namespace": namespace,
        "name": name,
        "yaml": text[: text.rindex("\n", 0, YAML_LENGTH_MAX) + 1] if is_cut else text,
        "isCut": is_cut,
        "command": f"kubectl get {info.plural}{f'.{info.group}' if '.' in info.group else ''}/{name}"
        + (f" -n {namespace}" if namespace else "")
        + " -o yaml",
    }


def _without_managed_fields(obj: Obj) -> Obj:
    return {**obj, "metadata": {field: value for field, value in obj["metadata"].items() if field != "managedFields"}}


class _ObjectYamlDumper(yaml.SafeDumper):
    def ignore_aliases(self, _data: object) -> bool:
        return True


def _represent_text(dumper: _ObjectYamlDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_ObjectYamlDumper.add_representer(str, _represent_text)


def _dump_yaml(obj: Any) -> str:
    text: str = yaml.dump(obj, Dumper=_ObjectYamlDumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    return text


def pod_document(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson | None:
    """Return a pod's containers, phase and Workload for the log page; None if the pod is hidden or does not exist."""
    namespace, name = query.get("namespace", ""), query.get("name", "")
    obj = inputs.reader.get(Key(scheme.POD, namespace, name)) if access.may_list(scheme.POD, namespace) else None
    if obj is None:
        return None
    spec = obj["spec"]
    containers = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    return {
        "namespace": namespace,
        "name": name,
        "containers": [container["name"] for container in containers],
        "phase": pod_view(obj).phase,
        "workload": annotation(obj, well_known.WORKLOAD) or "",
    }


# The search.


#: The maximum number of results of each kind, and of characters of a search text.
RESULTS_MAX: Final = 8
TEXT_LENGTH_MAX: Final = 200


def search(inputs: ViewInputs, access: NamespaceAccess, query: Query) -> ViewJson:
    """Return the Workloads, queues and nodes whose name contains the query's text, if the user may list them.

    Workloads are also found by namespace and owner, LocalQueues by namespace. Workloads, queues and nodes have at most
    RESULTS_MAX results each.
    """
    text = query.get("text", "").strip().lower()[:TEXT_LENGTH_MAX]
    if not text:
        return {"text": text, "results": []}
    result_groups = (
        _find_workloads(inputs, access, text),
        _find_queues(inputs, access, text),
        _find_nodes(inputs, access, text),
    )
    return {"text": text, "results": [result for group in result_groups for result in islice(group, RESULTS_MAX)]}


def _find_workloads(inputs: ViewInputs, access: NamespaceAccess, text: str) -> Iterator[ViewJson]:
    namespaces = access.namespaces(scheme.WORKLOAD, inputs.reader)
    for entry in inputs.workload_list.entries(inputs.reader, namespaces):
        if text in entry.search_text:
            owners = entry.obj["metadata"].get("ownerReferences")
            title = owners[0]["name"] if owners else entry.view.name
            yield {"kind": "Workload", "path": [entry.namespace, entry.view.name], "title": title, "state": entry.state}


def _find_queues(inputs: ViewInputs, access: NamespaceAccess, text: str) -> Iterator[ViewJson]:
    if access.may_list_all(scheme.CLUSTER_QUEUE):
        for name in _matching_names(inputs.reader.list(scheme.CLUSTER_QUEUE), text):
            yield {"kind": "ClusterQueue", "path": [name], "title": name, "state": ""}
    namespaces = access.namespaces(scheme.LOCAL_QUEUE, inputs.reader)
    for namespace in (None,) if namespaces is None else namespaces:
        for obj in inputs.reader.list(scheme.LOCAL_QUEUE, namespace):
            metadata = obj["metadata"]
            if text in f"{metadata['namespace']}/{metadata['name']}".lower():
                path = [metadata["namespace"], metadata["name"]]
                yield {"kind": "LocalQueue", "path": path, "title": metadata["name"], "state": ""}


def _find_nodes(inputs: ViewInputs, access: NamespaceAccess, text: str) -> Iterator[ViewJson]:
    if access.may_list_all(scheme.NODE):
        for name in _matching_names(inputs.reader.list(scheme.NODE), text):
            yield {"kind": "Node", "path": [name], "title": name, "state": ""}


def _matching_names(objects: Iterable[Obj], text: str) -> Iterator[str]:
    return (name for obj in objects if text in (name := str(obj["metadata"]["name"])).lower())
