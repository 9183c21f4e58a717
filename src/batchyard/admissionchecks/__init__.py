"""Provisioning admission check of Kueue: one ProvisioningRequest at a time for each Workload and check."""
