"""The ledger of what machines cost, the records it leaves, and budgets."""
