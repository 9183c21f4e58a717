"""Why a Workload waits: the figures behind a decision, for all flavors and all levels of the cohort tree."""
