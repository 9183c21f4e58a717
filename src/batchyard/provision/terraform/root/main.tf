# The platform on Google Cloud, with one module for each concern. terraform.tfvars contains the platform's values, and
# variables.tf describes the variables.

# The Google Cloud APIs, which all other modules need.
module "services" {
  source = "./modules/services"

  project = var.project
}

# The platform's VPC: addresses of nodes, pods and services, and Cloud NAT for nodes without a public address.
module "network" {
  source = "./modules/network"

  name                  = var.name
  region                = var.region
  network               = var.network
  webhook_ports         = var.webhook_ports
  nodes_service_account = module.identity.nodes_email

  depends_on = [module.services]
}

# The nodes' service account, which may only write logs and metrics, and read images.
module "identity" {
  source = "./modules/identity"

  project = var.project
  name    = var.name

  depends_on = [module.services]
}

# The repositories of images, which the nodes read.
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

# Reserved machines, which are billed even if they are unused.
module "reservations" {
  source = "./modules/reservations"

  reservations = var.reservations

  depends_on = [module.services]
}

# Machines that are booked for a time window. A draft reserves nothing.
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

  # A pool with a reservation needs the reserved machines.
  depends_on = [module.reservations, module.future_reservations]
}

# The service accounts of the teams' pods. They need the workload identity pool, which exists once the project has a
# cluster.
module "teams" {
  source = "./modules/teams"

  project       = var.project
  workload_pool = module.cluster.workload_pool
  teams         = var.teams
}

# The GPU dashboard in Cloud Monitoring.
module "monitoring" {
  source = "./modules/monitoring"
  count  = var.dashboards ? 1 : 0

  cluster = module.cluster.name

  depends_on = [module.services]
}
