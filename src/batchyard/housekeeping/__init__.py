"""Controllers for Namespaces, their default objects, aggregated ClusterRoles, CustomResourceDefinitions and expiry."""
