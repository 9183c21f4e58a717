"""The cluster autoscaler: requests machines for unschedulable pods, and removes nodes that are not needed."""
