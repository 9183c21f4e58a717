"""Admission policies: ValidatingAdmissionPolicies and MutatingAdmissionPolicies with their bindings."""
