"""Kueue's provisioning admission check: creates ProvisioningRequests for Workloads and reads their results."""
