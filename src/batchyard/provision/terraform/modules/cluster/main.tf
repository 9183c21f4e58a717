resource "google_container_cluster" "this" {
  name           = var.name
  location       = var.region # a region instead of a zone: the control plane survives the loss of a zone
  node_locations = var.zones

  deletion_protection = var.deletion_protection

  release_channel {
    channel = var.release_channel
  }

  # --- network ---

  network         = var.network
  subnetwork      = var.subnetwork
  networking_mode = "VPC_NATIVE"

  # Dataplane V2 enforces NetworkPolicies, which isolate the teams.
  datapath_provider           = "ADVANCED_DATAPATH"
  enable_intranode_visibility = true

  ip_allocation_policy {
    cluster_secondary_range_name  = var.pods_range_name
    services_secondary_range_name = var.services_range_name
  }

  private_cluster_config {
    enable_private_nodes    = true
    enable_private_endpoint = var.private_endpoint
    master_ipv4_cidr_block  = var.control_plane_cidr
  }

  # Accounts with the permission container.clusters.connect can use the DNS endpoint from anywhere, as Cloud Build does.
  control_plane_endpoints_config {
    dns_endpoint_config {
      allow_external_traffic = true
    }
  }

  # Without a public address, GKE requires this block even if it is empty. Then only the subnet has access.
  dynamic "master_authorized_networks_config" {
    for_each = var.private_endpoint || length(var.authorized_networks) > 0 ? [var.authorized_networks] : []

    content {
      dynamic "cidr_blocks" {
        for_each = master_authorized_networks_config.value

        content {
          display_name = cidr_blocks.value.name
          cidr_block   = cidr_blocks.value.cidr
        }
      }
    }
  }

  # --- identities ---

  # Pods use Google service accounts without keys (see the module `teams`).
  workload_identity_config {
    workload_pool = "${var.project}.svc.id.goog"
  }

  # The groups of the organization to which RBAC can refer.
  dynamic "authenticator_groups_config" {
    for_each = var.security_group == null ? [] : [var.security_group]

    content {
      security_group = authenticator_groups_config.value
    }
  }

  # Users authenticate with their Google accounts; no client certificate is issued.
  master_auth {
    client_certificate_config {
      issue_client_certificate = false
    }
  }

  enable_legacy_abac    = false
  enable_shielded_nodes = true

  # Roles cannot be bound to all users with a Google account.
  rbac_binding_config {
    enable_insecure_binding_system_authenticated   = false
    enable_insecure_binding_system_unauthenticated = false
  }

  security_posture_config {
    mode               = "BASIC"
    vulnerability_mode = "VULNERABILITY_DISABLED"
  }

  # --- nodes ---

  # The default pool is removed after creation; the module `node_pools` contains all pools.
  remove_default_node_pool = true
  initial_node_count       = 1

  node_config {
    machine_type    = "e2-medium"
    service_account = var.nodes_service_account
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }
  }

  cluster_autoscaling {
    autoscaling_profile = var.autoscaling_profile
    enabled             = length(var.auto_provisioning) > 0

    # Node auto-provisioning creates pools in the cluster's zones until a resource limit is reached.
    auto_provisioning_locations = length(var.auto_provisioning) > 0 ? var.zones : null

    dynamic "resource_limits" {
      for_each = var.auto_provisioning

      content {
        resource_type = resource_limits.value.resource
        minimum       = resource_limits.value.min
        maximum       = resource_limits.value.max
      }
    }

    dynamic "auto_provisioning_defaults" {
      for_each = length(var.auto_provisioning) > 0 ? [var.disk] : []

      content {
        service_account = var.nodes_service_account
        oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]
        disk_size       = auto_provisioning_defaults.value.size_gb
        disk_type       = auto_provisioning_defaults.value.type
        image_type      = "COS_CONTAINERD"

        management {
          auto_repair  = true
          auto_upgrade = true
        }

        shielded_instance_config {
          enable_secure_boot          = true
          enable_integrity_monitoring = true
        }

        # Additional machines with GPUs are often unavailable, so nodes are upgraded without surge.
        upgrade_settings {
          strategy        = "SURGE"
          max_surge       = 0
          max_unavailable = 1
        }
      }
    }
  }

  # Defaults of auto-provisioned pools.
  node_pool_defaults {
    node_config_defaults {
      insecure_kubelet_readonly_port_enabled = "FALSE"

      gcfs_config {
        enabled = var.image_streaming
      }
    }
  }

  addons_config {
    dns_cache_config {
      enabled = true
    }

    gce_persistent_disk_csi_driver_config {
      enabled = true
    }

    # Volumes that many pods can write at the same time.
    gcp_filestore_csi_driver_config {
      enabled = var.filestore
    }

    # Training data and checkpoints, as files.
    gcs_fuse_csi_driver_config {
      enabled = true
    }
  }

  # --- logs, metrics and costs ---

  logging_config {
    enable_components = ["SYSTEM_COMPONENTS", "WORKLOADS"]
  }

  monitoring_config {
    # Managed Prometheus collects all but the first. DCGM: NVIDIA's GPU metrics.
    enable_components = (
      var.managed_prometheus
      ? ["SYSTEM_COMPONENTS", "CADVISOR", "DCGM", "JOBSET", "KUBELET", "POD"]
      : ["SYSTEM_COMPONENTS"]
    )

    managed_prometheus {
      enabled = var.managed_prometheus
    }
  }

  cost_management_config {
    enabled = var.cost_allocation
  }

  timeouts {
    create = "60m"
    update = "60m"
    delete = "60m"
  }

  lifecycle {
    # These fields describe the removed default pool.
    ignore_changes = [initial_node_count, node_config]
  }
}
