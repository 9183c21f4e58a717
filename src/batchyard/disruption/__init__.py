"""PodDisruptionBudgets: their controller, and the decision whether a pod may be evicted."""
