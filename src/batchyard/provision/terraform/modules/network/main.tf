resource "google_compute_network" "this" {
  name                    = var.name
  description             = "The nodes and pods of ${var.name}."
  auto_create_subnetworks = false
  routing_mode            = "REGIONAL"
}

# Pods and services have addresses of the VPC, from secondary ranges of the subnet (a VPC-native cluster).
resource "google_compute_subnetwork" "this" {
  name          = var.name
  region        = var.region
  network       = google_compute_network.this.id
  ip_cidr_range = var.network.nodes

  # Google's own APIs are reached without NAT.
  private_ip_google_access = true

  secondary_ip_range {
    range_name    = "pods"
    ip_cidr_range = var.network.pods
  }

  secondary_ip_range {
    range_name    = "services"
    ip_cidr_range = var.network.services
  }
}

# GKE lets the control plane reach the ports 443 and 10250 of nodes; other ports of webhooks need this rule.
resource "google_compute_firewall" "webhooks" {
  count = length(var.webhook_ports) > 0 ? 1 : 0

  name                    = "${var.name}-webhooks"
  description             = "The control plane of ${var.name} asks webhooks."
  network                 = google_compute_network.this.id
  direction               = "INGRESS"
  source_ranges           = [var.network.control_plane]
  target_service_accounts = [var.nodes_service_account]

  allow {
    protocol = "tcp"
    ports    = [for port in var.webhook_ports : tostring(port)]
  }
}

# Nodes have no public address; they download images, packages and data through Cloud NAT.
resource "google_compute_router" "this" {
  name    = var.name
  region  = var.region
  network = google_compute_network.this.id
}

resource "google_compute_router_nat" "this" {
  name                               = var.name
  region                             = var.region
  router                             = google_compute_router.this.name
  nat_ip_allocate_option             = "AUTO_ONLY"
  source_subnetwork_ip_ranges_to_nat = "ALL_SUBNETWORKS_ALL_IP_RANGES"

  # Many pods of a node can download at once, so ports are allocated dynamically. This excludes endpoint-independent
  # mapping.
  enable_dynamic_port_allocation      = true
  enable_endpoint_independent_mapping = false
  min_ports_per_vm                    = 64
  max_ports_per_vm                    = 4096

  log_config {
    enable = true
    filter = "ERRORS_ONLY"
  }
}
