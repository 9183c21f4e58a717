output "apis" {
  description = "The APIs that are on."
  value       = sort(keys(google_project_service.this))
}
