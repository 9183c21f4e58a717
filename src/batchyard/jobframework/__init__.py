"""Jobs of all kinds as Workloads: one framework, one small integration per kind."""
