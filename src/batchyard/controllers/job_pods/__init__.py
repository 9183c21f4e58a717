"""The pods of Jobs: made, counted and deleted as Kubernetes's Job controller does."""
