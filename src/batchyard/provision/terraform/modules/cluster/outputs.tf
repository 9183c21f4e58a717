output "id" {
  description = "The id of the cluster."
  value       = google_container_cluster.this.id
}

output "name" {
  description = "The name of the cluster."
  value       = google_container_cluster.this.name
}

output "workload_pool" {
  description = "The pool of identities of the cluster's pods; it exists as soon as the cluster does."
  value       = google_container_cluster.this.workload_identity_config[0].workload_pool
}
