"""Job framework: creates and follows the Workloads of jobs, with one integration per kind."""
