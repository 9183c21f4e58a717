"""Node lifecycle, as kube-controller-manager does it: health, taints, pods driven out or left behind."""
