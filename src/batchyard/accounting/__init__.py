"""Cost accounting: cost accounts, the cost ledger, CostRecords, cost reports and Budgets."""
