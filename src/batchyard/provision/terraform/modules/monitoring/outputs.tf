output "dashboard" {
  description = "The id of the dashboard."
  value       = google_monitoring_dashboard.gpus.id
}
