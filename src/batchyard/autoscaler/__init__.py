"""The cluster autoscaler: it asks the cloud for machines that pods wait for, and gives up those that nobody needs."""
