# The platform on Google Cloud, one module a concern. What it is made of is in terraform.tfvars; what the words there
# mean is in variables.tf.

# The APIs that the rest needs. Everything else waits for them.
module "services" {
  source = "./modules/services"

  project = var.project
}

# A VPC of its own: addresses for nodes, pods and services, and a way out for nodes that have no address outside.
module "network" {
  source = "./modules/network"

  name                  = var.name
  region                = var.region
  network               = var.network
  webhook_ports         = var.webhook_ports
  nodes_service_account = module.identity.nodes_email

  depends_on = [module.services]
}

# Who the nodes are: a service account that may write logs and metrics and read images, and nothing more.
module "identity" {
  source = "./modules/identity"

  project = var.project
  name    = var.name

  depends_on = [module.services]
}

# Where the images of jobs are kept. Nodes read them.
module "registry" {
  source = "./modules/registry"

  repositories = merge({ (var.repository) = var.region }, var.more_repositories)
  reader       = module.identity.nodes_member

  depends_on = [module.services]
}

module "cluster" {
  source = "./modules/cluster"

  project               = var.project
  name                  = var.name
  region                = var.region
  zones                 = var.zones
  network               = module.network.network
  subnetwork            = module.network.subnetwork
  pods_range_name       = module.network.pods_range_name
  services_range_name   = module.network.services_range_name
  control_plane_cidr    = var.network.control_plane
  private_endpoint      = var.network.private_endpoint
  authorized_networks   = var.network.authorized
  release_channel       = var.release_channel
  deletion_protection   = var.deletion_protection
  security_group        = var.security_group
  image_streaming       = var.image_streaming
  managed_prometheus    = var.managed_prometheus
  cost_allocation       = var.cost_allocation
  filestore             = var.filestore
  autoscaling_profile   = var.autoscaling_profile
  auto_provisioning     = var.auto_provisioning
  disk                  = var.disk
  nodes_service_account = module.identity.nodes_email

  depends_on = [module.services]
}

# Machines that are paid for whether they are used or not, so that they are there.
module "reservations" {
  source = "./modules/reservations"

  reservations = var.reservations

  depends_on = [module.services]
}

# Machines that are booked for a window of time. A draft reserves nothing.
module "future_reservations" {
  source = "./modules/future_reservations"

  reservations = var.future_reservations

  depends_on = [module.services]
}

module "node_pools" {
  source = "./modules/node_pools"

  cluster               = module.cluster.id
  zones                 = var.zones
  node_pools            = var.node_pools
  disk                  = var.disk
  gpu_driver            = var.gpu_driver
  image_streaming       = var.image_streaming
  nodes_service_account = module.identity.nodes_email

  # A pool on a reservation can have its machines only once they are reserved.
  depends_on = [module.reservations, module.future_reservations]
}

# Who the pods of each team are. It waits for the cluster: the pool of identities comes with the first of a project.
module "teams" {
  source = "./modules/teams"

  project       = var.project
  workload_pool = module.cluster.workload_pool
  teams         = var.teams
}

# What Cloud Monitoring shows of the GPUs.
module "monitoring" {
  source = "./modules/monitoring"
  count  = var.dashboards ? 1 : 0

  cluster = module.cluster.name

  depends_on = [module.services]
}
