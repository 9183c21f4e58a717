output "service_account" {
  description = "The name of the service account that runs builds, as in build/create.yaml and build/destroy.yaml."
  value       = google_service_account.build.name
}
