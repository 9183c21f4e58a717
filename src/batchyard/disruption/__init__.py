"""PodDisruptionBudgets: their status and the admission of evictions."""
