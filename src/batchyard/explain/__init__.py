"""Explanation of why a Workload is pending: the quota figures of all flavors at all levels of the cohort tree."""
