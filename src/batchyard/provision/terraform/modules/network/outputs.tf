output "network" {
  description = "The id of the VPC."
  value       = google_compute_network.this.id
}

output "subnetwork" {
  description = "The id of the subnet."
  value       = google_compute_subnetwork.this.id
}

output "pods_range_name" {
  description = "The name of the secondary range with the addresses of pods."
  value       = google_compute_subnetwork.this.secondary_ip_range[0].range_name
}

output "services_range_name" {
  description = "The name of the secondary range with the addresses of services."
  value       = google_compute_subnetwork.this.secondary_ip_range[1].range_name
}
