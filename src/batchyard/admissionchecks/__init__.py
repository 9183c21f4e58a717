"""Provisioning admission check of Kueue: creates ProvisioningRequests for Workloads and evaluates them."""
