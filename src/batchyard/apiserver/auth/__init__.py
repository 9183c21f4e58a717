"""Who a client is and what it may do: authentication, RBAC, impersonation, tokens, reviews."""
