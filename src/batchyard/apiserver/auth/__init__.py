"""Authentication and authorization: users, RBAC, impersonation, tokens, reviews."""
