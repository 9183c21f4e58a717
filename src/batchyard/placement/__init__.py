"""Pod scheduling: kube-scheduler's decisions as functions of a cluster snapshot, and the placement controller."""
