"""How many nodes a cluster needs: the decisions of GKE's cluster autoscaler, as functions of what is there."""
