"""Housekeeping controllers: Namespaces, ServiceAccounts, roles, CustomResourceDefinitions, expiry."""
