"""Controllers that keep the cluster tidy: Namespaces, accounts, roles, definitions, expired objects."""
