output "nodes_email" {
  description = "The service account of the nodes. It is told once its role is there, so that no node starts without."
  value       = google_service_account.nodes.email
  depends_on  = [google_project_iam_member.nodes]
}

output "nodes_member" {
  description = "The same, as policies name it."
  value       = google_service_account.nodes.member
}
