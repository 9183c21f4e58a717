"""PodDisruptionBudgets: which disruptions are allowed."""
