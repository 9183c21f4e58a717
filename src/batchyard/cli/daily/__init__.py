"""The daily commands: the line of a queue, jobs and their logs, changes of a job, and the live view `top`."""
