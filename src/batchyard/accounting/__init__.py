"""Cost accounting: accounts, the ledger, CostRecords, reports and budgets."""
