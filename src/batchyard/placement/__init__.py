"""Which pod goes to which node: kube-scheduler's decisions, as functions of what the nodes have left."""
