"""Job framework: creates the Workloads of jobs (such as Jobs and JobSets) and keeps jobs and Workloads in sync."""
