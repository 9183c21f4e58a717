"""Policies that choose nodes, and GPUs on nodes, for pods that share GPUs (`batchyard.dev/gpu-milli`).

Each policy scores the nodes that a pod fits. FGD (fragmentation gradient descent) prefers
the node whose GPU fragmentation grows least; the others are the policies to which its authors compare it. Source: Weng
et al., Beware of Fragmentation (USENIX ATC 2023), and the scores of the simulator published with it.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from batchyard.api.views.pod_shape import PodShape
from batchyard.placement.node_filters import AutoscalingProfile
from batchyard.placement.node_info import WHOLE_GPU, NodeInfo, choose_gpus

_MAX_SCORE: Final = 100


class GpuPolicyName(StrEnum):
    """The names of the policies that choose nodes and GPUs for pods that share GPUs."""

    RANDOM = "random"
    DOT_PRODUCT = "dot-product"
    GPU_CLUSTERING = "gpu-clustering"
    GPU_PACKING = "gpu-packing"
    BEST_FIT = "best-fit"
    FGD = "fgd"


class ExpectedPod(NamedTuple):
    """What an expected pod requests: millicores, thousandths of a GPU, and one of some GPU models.

    Empty `models` allow every GPU model.
    """

    cpu: int
    gpu_milli: int
    models: tuple[str, ...] = ()


class LargestAllocatable(NamedTuple):
    """The largest allocatable amounts of cpu and GPUs on any node, in thousandths; scores are relative to them."""

    cpu: int
    gpu_milli: int


@dataclass(frozen=True, slots=True)
class GpuPlacement:
    """How nodes and GPUs are chosen: the policy, and the pods and nodes to which it adapts."""

    policy: GpuPolicyName
    expected_pods: Sequence[ExpectedPod]
    largest_allocatable: LargestAllocatable
    #: The node label with the GPU model.
    model_label: str


_Score: TypeAlias = Callable[[PodShape, NodeInfo], int]
_GpuChoice: TypeAlias = Callable[[PodShape, NodeInfo], Sequence[int]]
#: Returns a random integer below a bound.
DrawBelow: TypeAlias = Callable[[int], int]


class GpuPolicy(NamedTuple):
    """Scores the nodes that a pod fits, and chooses the GPUs on its node. Equal scores are ordered by node name."""

    score: _Score
    choose_gpus: _GpuChoice
    #: If set, a random node is taken instead of the one with the highest score.
    draw_below: DrawBelow | None = None


#: How the nodes that a pod fits are compared.
NodeScoring: TypeAlias = AutoscalingProfile | GpuPolicy


def make_gpu_policy(placement: GpuPlacement, draw_below: DrawBelow) -> GpuPolicy:
    """Return the GPU placement policy that `placement` names; only GpuPolicyName.RANDOM uses `draw_below`."""
    largest_allocatable = placement.largest_allocatable
    match placement.policy:
        case GpuPolicyName.RANDOM:
            return GpuPolicy(_equal_score, partial(_random_gpus, draw_below), draw_below)
        case GpuPolicyName.DOT_PRODUCT:
            return GpuPolicy(partial(_dot_product_score, largest_allocatable), _fullest_gpus)
        case GpuPolicyName.GPU_CLUSTERING:
            return GpuPolicy(partial(_clustering_score, largest_allocatable), _fullest_gpus)
        case GpuPolicyName.GPU_PACKING:
            return GpuPolicy(_packing_score, _fullest_gpus)
        case GpuPolicyName.BEST_FIT:
            return GpuPolicy(partial(_best_fit_score, largest_allocatable), _fullest_gpus)
        case GpuPolicyName.FGD:
            fragmentation = _Fragmentation(placement.expected_pods, placement.model_label)
            return GpuPolicy(fragmentation.score, fragmentation.choose_gpus)


# The compared policies.


def _equal_score(_shape: PodShape, _node: NodeInfo) -> int:
    return 0


def _fullest_gpus(shape: PodShape, node: NodeInfo) -> Sequence[int]:
    return choose_gpus(shape.gpu_milli, node.gpu_shares.free_shares)


def _random_gpus(draw_below: DrawBelow, shape: PodShape, node: NodeInfo) -> Sequence[int]:
    free_shares = node.gpu_shares.free_shares
    if shape.gpu_milli >= WHOLE_GPU:
        return choose_gpus(shape.gpu_milli, free_shares)
    fitting_gpus = [number for number, free in enumerate(free_shares) if free >= shape.gpu_milli]
    return (fitting_gpus[draw_below(len(fitting_gpus))],)


def _dot_product_score(largest: LargestAllocatable, shape: PodShape, node: NodeInfo) -> int:
    cpu_product = node.free_amounts["cpu"] / largest.cpu * (shape.cpu / largest.cpu)
    gpu_product = sum(node.gpu_shares.free_shares) / largest.gpu_milli * (shape.gpu_milli / largest.gpu_milli)
    return int((1 - (cpu_product + gpu_product) / 2) * _MAX_SCORE)


def _best_fit_score(largest: LargestAllocatable, shape: PodShape, node: NodeInfo) -> int:
    cpu_left = (node.free_amounts["cpu"] - shape.cpu) / largest.cpu
    gpu_left = (sum(node.gpu_shares.free_shares) - shape.gpu_milli) / largest.gpu_milli
    return int((1 - (cpu_left + gpu_left) / 2) * _MAX_SCORE)


def _packing_score(shape: PodShape, node: NodeInfo) -> int:
    """Score a node for packing a pod's GPUs; 0 if the pod requests no GPU.

    The score is highest if the pod fits GPUs that are partly in use, lower if it needs free GPUs on a node in use, and
    lowest on a node without used GPUs.
    """
    if not shape.gpu_milli:
        return 0
    free_shares = node.gpu_shares.free_shares
    free_gpu_count = free_shares.count(WHOLE_GPU)
    if free_gpu_count == len(free_shares):
        return max(_MAX_SCORE // 3 - free_gpu_count, free_gpu_count)
    gpus = choose_gpus(shape.gpu_milli, free_shares)
    free_gpus_used = sum(free_shares[number] == WHOLE_GPU for number in gpus)
    if free_gpus_used:
        return max(_MAX_SCORE // 2 - free_gpus_used, _MAX_SCORE // 3)
    free_percent = sum(free_shares[number] * 100 // WHOLE_GPU for number in gpus)
    return max(_MAX_SCORE - free_percent // 10, _MAX_SCORE // 2)


def _clustering_score(largest: LargestAllocatable, shape: PodShape, node: NodeInfo) -> int:
    """Return a high score for a node whose pods request as many GPUs as this pod, higher the fewer GPUs are free."""
    if not shape.gpu_milli:
        return 0
    quarter = _MAX_SCORE // 4
    score = quarter * (largest.gpu_milli - sum(node.gpu_shares.free_shares)) // largest.gpu_milli
    gpu_counts = {_gpu_count(pod.shape) for pod in node.pods.values() if pod.shape.gpu_milli}
    if not gpu_counts:
        return score + quarter
    if _gpu_count(shape) not in gpu_counts:
        return score
    return score + (3 if len(gpu_counts) == 1 else 2) * quarter


def _gpu_count(shape: PodShape) -> int:
    """Return the number of whole GPUs that a pod requests; 0 if it requests less than one."""
    return shape.gpu_milli // WHOLE_GPU


# FGD: fragmentation gradient descent.
#
# A GPU's free part is unusable for an expected pod that does not fit its node, or that requests more of one GPU than
# is free. The fragmentation of a node is the mean over the expected pods. The pods are grouped by their cpu request,
# so that a node's fragmentation is a few lookups: for a free cpu amount, `_UsableShares` holds the fractions of pods.


#: The fraction of pods, most frequent requests first, that represent the expected pods. Source: the published runs.
_TYPICAL_FRACTION: Final = 0.95
_SCORE_SCALE: Final = 1000


class _UsableShares:
    """The fractions of expected pods that can use free GPUs of a node, by the free amount.

    `fraction_by_pod` contains only the pods that the node's GPU model and free cpu suit.
    """

    def __init__(self, fraction_by_pod: Mapping[ExpectedPod, float]) -> None:
        self._on_one_gpu = {pod: f for pod, f in fraction_by_pod.items() if 0 < pod.gpu_milli <= WHOLE_GPU}
        self._on_several = {pod: f for pod, f in fraction_by_pod.items() if pod.gpu_milli > WHOLE_GPU}
        self._fraction_by_share: dict[int, float] = {}
        self._fraction_by_count: dict[int, float] = {}

    def fraction_for_share(self, free_milli: int) -> float:
        """Return the fraction of pods that request at most one GPU, and at most `free_milli` thousandths of it."""
        fraction = self._fraction_by_share.get(free_milli)
        if fraction is None:
            fraction = sum(f for pod, f in self._on_one_gpu.items() if pod.gpu_milli <= free_milli)
            self._fraction_by_share[free_milli] = fraction
        return fraction

    def fraction_for_count(self, free_gpus: int) -> float:
        """Return the fraction of pods that request several GPUs, at most `free_gpus`."""
        fraction = self._fraction_by_count.get(free_gpus)
        if fraction is None:
            fraction = sum(f for pod, f in self._on_several.items() if pod.gpu_milli <= free_gpus * WHOLE_GPU)
            self._fraction_by_count[free_gpus] = fraction
        return fraction

    def usable_milli(self, free_shares: Iterable[int]) -> float:
        """Return how much of the GPUs' free shares an expected pod can use on average, all in thousandths of a GPU."""
        free_gpus, usable_milli = 0, 0.0
        for free_milli in free_shares:
            usable_milli += free_milli * self.fraction_for_share(free_milli)
            free_gpus += free_milli == WHOLE_GPU
        return usable_milli + free_gpus * WHOLE_GPU * self.fraction_for_count(free_gpus)


class _Fragmentation:
    """Scores nodes by how much the fragmentation of their GPUs would change."""

    def __init__(self, expected_pods: Iterable[ExpectedPod], model_label: str) -> None:
        self._fraction_by_pod = _typical_pods(expected_pods)
        self._model_label = model_label
        self._cpu_steps = sorted({pod.cpu for pod in self._fraction_by_pod})
        self._usable_shares: dict[tuple[str, int], _UsableShares] = {}

    def score(self, shape: PodShape, node: NodeInfo) -> int:
        """Return the node's score with the best choice of GPUs, from 0 to 100; 50 if its fragmentation is unchanged."""
        return self._best_choice(shape, node)[0]

    def choose_gpus(self, shape: PodShape, node: NodeInfo) -> Sequence[int]:
        """Return the indices of the GPUs with the highest score; () for a pod without GPUs."""
        return self._best_choice(shape, node)[1]

    def _best_choice(self, shape: PodShape, node: NodeInfo) -> tuple[int, Sequence[int]]:
        shares_before = self._usable_shares_of(node, node.free_amounts["cpu"])
        shares_after = self._usable_shares_of(node, node.free_amounts["cpu"] - shape.cpu)
        free_shares = node.gpu_shares.free_shares
        usable_before = shares_before.usable_milli(free_shares)
        best_choice: tuple[int, Sequence[int]] = (-1, ())
        tried_shares: dict[int, None] = {}
        for gpus in _possible_gpus(shape.gpu_milli, free_shares):
            if len(gpus) == 1 and free_shares[gpus[0]] in tried_shares:
                continue
            new_shares = list(free_shares)
            for number in gpus:
                new_shares[number] -= min(shape.gpu_milli, WHOLE_GPU)
                tried_shares[free_shares[number]] = None
            # The fragmentation is the free amount without the usable one.
            reduction = shape.gpu_milli - (usable_before - shares_after.usable_milli(new_shares))
            score = int(_sigmoid(reduction / _SCORE_SCALE) * _MAX_SCORE)
            if score > best_choice[0]:
                best_choice = score, gpus
        return best_choice

    def _usable_shares_of(self, node: NodeInfo, free_cpu: int) -> _UsableShares:
        model, step = node.view.labels.get(self._model_label, ""), bisect_right(self._cpu_steps, free_cpu)
        shares = self._usable_shares.get((model, step))
        if shares is None:
            cpu_limit = self._cpu_steps[step - 1] if step else -1
            shares = self._usable_shares[model, step] = _UsableShares(
                {
                    pod: fraction
                    for pod, fraction in self._fraction_by_pod.items()
                    if pod.cpu <= cpu_limit and (not pod.models or model in pod.models)
                }
            )
        return shares


def _typical_pods(expected_pods: Iterable[ExpectedPod]) -> dict[ExpectedPod, float]:
    """Return the most frequent requests of the expected pods, with the relative frequency of each.

    Together they cover at least 95 % of the pods. The frequencies are relative to the covered pods, and their sum is 1.
    """
    counts: dict[ExpectedPod, int] = {}
    for pod in expected_pods:
        counts[pod] = counts.get(pod, 0) + 1
    needed_count, typical_counts, total_count = _TYPICAL_FRACTION * sum(counts.values()), {}, 0
    for pod in sorted(counts, key=lambda pod: (counts[pod], pod), reverse=True):
        if total_count >= needed_count:
            break
        typical_counts[pod] = counts[pod]
        total_count += counts[pod]
    return {pod: count / total_count for pod, count in typical_counts.items()}


def _possible_gpus(gpu_milli: int, free_shares: Sequence[int]) -> Iterable[Sequence[int]]:
    if 0 < gpu_milli < WHOLE_GPU:
        return [(number,) for number, free in enumerate(free_shares) if free >= gpu_milli]
    return [choose_gpus(gpu_milli, free_shares) if gpu_milli else ()]


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))
