output "cluster" {
  description = "The name of the cluster."
  value       = module.cluster.name
}

output "region" {
  description = "The region of the cluster."
  value       = var.region
}

output "get_credentials" {
  description = "The command that writes credentials for kubectl, with the DNS endpoint, which private clusters have too."
  value       = "gcloud container clusters get-credentials ${module.cluster.name} --project ${var.project} --location ${var.region} --dns-endpoint"
}

output "apis" {
  description = "The enabled APIs. They stay enabled after `terraform destroy`, because other programs may need them."
  value       = module.services.apis
}

output "network" {
  description = "The id of the VPC."
  value       = module.network.network
}

output "node_pools" {
  description = "The names of the node pools."
  value       = module.node_pools.names
}

output "reservations" {
  description = "The names of the reservations. They are billed until they are deleted."
  value       = module.reservations.names
}

output "future_reservations" {
  description = "By future reservation: DRAFT, which costs nothing, or SUBMITTED, which is billed once Google approves it."
  value       = module.future_reservations.planning_status
}

output "node_service_account" {
  description = "The email address of the nodes' service account."
  value       = module.identity.nodes_email
}

output "team_service_accounts" {
  description = "By team: the email address of the Google service account that the team's pods use."
  value       = module.teams.accounts
}

output "repositories" {
  description = "By repository: the prefix of its image names, as in docker push PREFIX/NAME:TAG."
  value       = module.registry.urls
}

output "dashboard" {
  description = "The id of the GPU dashboard; null without a dashboard."
  value       = one(module.monitoring[*].dashboard)
}
