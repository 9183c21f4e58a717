"""What machines cost and for whom: accounts, the records that are kept of them, what is asked of these, budgets."""
