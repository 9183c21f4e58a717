output "service_account" {
  description = "Who runs builds, as build/create.yaml and build/destroy.yaml name it."
  value       = google_service_account.build.name
}
