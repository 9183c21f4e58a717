"""The daily commands: pending jobs in queue order, jobs and their logs, changes of a job, and the live view `top`."""
