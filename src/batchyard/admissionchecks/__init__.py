"""Kueue's admission check that asks for capacity: one ProvisioningRequest at a time for each Workload and check."""
