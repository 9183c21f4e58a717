output "id" {
  description = "The id of the cluster."
  value       = google_container_cluster.this.id
}

output "name" {
  description = "The name of the cluster."
  value       = google_container_cluster.this.name
}

output "workload_pool" {
  description = "The workload identity pool of the cluster's pods; it exists once the cluster exists."
  value       = google_container_cluster.this.workload_identity_config[0].workload_pool
}
