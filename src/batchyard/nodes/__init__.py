"""Node lifecycle, as in kube-controller-manager: health, taints, taint eviction and pod garbage collection."""
