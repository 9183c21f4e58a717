"""The examples in the help of each command.

Each example works as it is, either in the root of the repository or while a platform runs. Tests parse all examples
and run those that need no platform.
"""

from collections.abc import Mapping, Sequence
from typing import Final

#: Two to four examples of each command, the simplest first, by the command's name below `batchyard`.
EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "simulate": (
        "batchyard simulate examples/first-steps",
        "batchyard simulate examples/preemption --until 2h -o wide",
        "batchyard simulate examples/first-steps --events -",
        "batchyard simulate examples/budgets --report run.html",
    ),
    "compare": (
        """batchyard compare examples/compare/configurations/apart.yaml \\
    examples/compare/configurations/fair.yaml --trace examples/compare/load""",
        "batchyard compare before.yaml after.yaml --trace state.json --seeds 5",
    ),
    "whatif": (
        "batchyard whatif examples/first-steps --delete job/team/train-a",
        "batchyard whatif -f change.yaml",
        "batchyard whatif --state state.json -f change.yaml --until 12h",
    ),
    "defrag": (
        "batchyard defrag jobs --at 2h",
        "batchyard defrag --workload team-a/train -o json",
        "batchyard defrag --workload team-a/train --checkpointed --apply",
    ),
    "guide": ("batchyard guide", "batchyard guide --step low-priority --verbose", "batchyard guide -o json"),
    "lint": (
        "batchyard lint examples/first-steps",
        "batchyard lint examples/refarch --severity warning",
        "kubectl get clusterqueues -o yaml | batchyard lint -",
    ),
    "convert": ("batchyard convert examples/refarch", "kubectl get clusterqueues -o yaml | batchyard convert -"),
    "up": (
        "batchyard up",
        "batchyard up --cluster local --detach",
        "batchyard up --cluster examples/refarch/cluster.yaml --speed 60x",
    ),
    "down": ("batchyard down", "batchyard down --data-dir .batchyard --end-pods"),
    "submit": (
        "batchyard submit --queue lq-team-a -n team-a -- python train.py",
        "batchyard submit --queue lq-team-a -n team-a --gpus 1 . -- python train.py",
        "batchyard submit --queue lq-team-a -n team-a --dry-run -o yaml -- sleep 60",
    ),
    "page": ("batchyard page", "batchyard page --user alice --group team-a --hours 8"),
    "jobs": ("batchyard jobs -n team-a", "batchyard jobs -A -o wide", "batchyard jobs --queue lq-team-a -o json"),
    "queue": ("batchyard queue -n team-a", "batchyard queue job/train -n team-a", "batchyard queue -A -o wide"),
    "logs": ("batchyard logs job/train -n team-a -f", "batchyard logs train --index 3 --tail 50"),
    "cancel": ("batchyard cancel job/train -n team-a", "batchyard cancel job/train job/report --yes"),
    "suspend": ("batchyard suspend job/train -n team-a", "batchyard suspend train report"),
    "resume": ("batchyard resume job/train -n team-a", "batchyard resume train report"),
    "priority": ("batchyard priority job/train high -n team-a", "batchyard priority train low"),
    "top": ("batchyard top", "batchyard top -n team-a", "batchyard top --once"),
    "why": (
        "batchyard why job/train -n team-a",
        "batchyard why clusterqueue/team-a-queue -o yaml",
        "batchyard why job/report -f examples/why/nominal.yaml --at 1m",
    ),
    "eta": (
        "batchyard eta job/train -n team-a",
        "batchyard eta --all --until 12h",
        "batchyard eta job/train -n team-a -f state.json",
    ),
    "status": ("batchyard status", "batchyard status -o json"),
    "decisions": ("batchyard decisions job/train -n team-a", "batchyard decisions -A --reason Preempted --since 2h"),
    "cost": (
        "batchyard cost",
        "batchyard cost --by workload --since 7d",
        "batchyard cost --by pool --from 2026-11-01T00:00:00Z -o csv",
    ),
    "snapshot": (
        "batchyard snapshot state.json",
        "batchyard snapshot --kubeconfig ~/.kube/config --redact state.json",
        "batchyard snapshot | gzip > state.json.gz",
    ),
    "user": ("batchyard user alice --group team-a -n team-a", "batchyard user bob --days 7"),
    "backup": ("batchyard backup monday.db", "batchyard backup --data-dir .batchyard monday.db"),
    "restore": ("batchyard restore monday.db", "batchyard restore monday.db --data-dir restored"),
    "promote": ("batchyard promote", "batchyard promote --data-dir standby"),
    "monitoring": ("batchyard monitoring", "batchyard monitoring --detach --no-grafana", "batchyard monitoring --end"),
    "fault": ('batchyard fault node "$(hostname)" --reclaim', 'batchyard fault node "$(hostname)" --drain'),
    "fault node": (
        'batchyard fault node "$(hostname)" --crash',
        'batchyard fault node "$(hostname)" --reclaim',
        'batchyard fault node "$(hostname)" --drain',
    ),
    "operator": (
        "batchyard operator --kubeconfig ~/.kube/config --install-crds",
        "batchyard operator --shadow --for 1h -o text",
    ),
    "install": (
        "batchyard install",
        "batchyard install | kubectl apply --server-side -f -",
        "batchyard install --replicas 1 --no-webhooks --out operator",
    ),
    "platform": ("batchyard platform init platform.yaml", "batchyard platform plan examples/platforms/refarch.yaml"),
    "platform init": ("batchyard platform init", "batchyard platform init gpus.yaml --example dws"),
    "platform plan": (
        "batchyard platform plan examples/platforms/refarch.yaml",
        "batchyard platform plan examples/platforms/dws.yaml -o json",
    ),
    "platform render": (
        "batchyard platform render examples/platforms/dws.yaml --out rendered",
        "batchyard platform render --out rendered --overwrite",
    ),
    "platform create": (
        "batchyard platform create --dry-run",
        "batchyard platform create platform.yaml --project my-project --yes",
    ),
    "platform status": ("batchyard platform status", "batchyard platform status platform.yaml -o json"),
    "platform destroy": (
        "batchyard platform destroy --dry-run",
        "batchyard platform destroy platform.yaml --unprotect",
    ),
    "completion": (
        "source <(batchyard completion bash)",
        "batchyard completion zsh > ~/.zfunc/_batchyard",
        "batchyard completion fish > ~/.config/fish/completions/batchyard.fish",
    ),
}
