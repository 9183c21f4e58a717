"""Workload lifecycle: functions that compute a Workload's next status, and the controllers that write it."""
