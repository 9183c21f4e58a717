output "cluster" {
  description = "The name of the cluster."
  value       = module.cluster.name
}

output "region" {
  description = "Where it is."
  value       = var.region
}

output "get_credentials" {
  description = "The command that gives kubectl its credentials. It goes by the DNS endpoint, which a private cluster has too."
  value       = "gcloud container clusters get-credentials ${module.cluster.name} --project ${var.project} --location ${var.region} --dns-endpoint"
}

output "apis" {
  description = "The APIs that are on. They stay on when the platform goes: others in the project may need them."
  value       = module.services.apis
}

output "network" {
  description = "The VPC."
  value       = module.network.network
}

output "node_pools" {
  description = "The node pools that were made."
  value       = module.node_pools.names
}

output "reservations" {
  description = "The reservations that were made. They cost money until they are deleted."
  value       = module.reservations.names
}

output "future_reservations" {
  description = "By future reservation: DRAFT, which costs nothing, or SUBMITTED, which is paid for once Google approves it."
  value       = module.future_reservations.planning_status
}

output "node_service_account" {
  description = "Who the nodes are."
  value       = module.identity.nodes_email
}

output "team_service_accounts" {
  description = "By team: the Google service account that its pods act as."
  value       = module.teams.accounts
}

output "repositories" {
  description = "By repository: the beginning of the names of its images, as in docker push THIS/NAME:TAG."
  value       = module.registry.urls
}

output "dashboard" {
  description = "The id of the GPU dashboard; null where there is none."
  value       = one(module.monitoring[*].dashboard)
}
