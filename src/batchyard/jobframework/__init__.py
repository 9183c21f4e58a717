"""Job framework: creates the Workloads of jobs and keeps jobs and Workloads in sync, for all job kinds."""
