locals {
  # The Dynamic Workload Scheduler provides these machines for a limited time.
  flex_start = { for name, pool in var.node_pools : name => contains(["flex-start", "queued"], pool.provisioning) }
}

resource "google_container_node_pool" "this" {
  for_each = var.node_pools

  name           = each.key
  cluster        = var.cluster
  node_locations = coalesce(each.value.zones, var.zones)

  # Numbers of nodes per zone: constant without autoscaling, otherwise initial.
  node_count         = each.value.autoscaling == null ? each.value.node_count : null
  initial_node_count = each.value.autoscaling == null ? null : each.value.node_count
  max_pods_per_node  = each.value.max_pods_per_node

  dynamic "autoscaling" {
    for_each = each.value.autoscaling == null ? [] : [each.value.autoscaling]

    content {
      # Bounds for all zones together.
      total_min_node_count = autoscaling.value.total_max == null ? null : coalesce(autoscaling.value.total_min, 0)
      total_max_node_count = autoscaling.value.total_max

      # Bounds for each zone.
      min_node_count = autoscaling.value.max == null ? null : coalesce(autoscaling.value.min, 0)
      max_node_count = autoscaling.value.max

      # ANY uses any zone with capacity; BALANCED keeps the zones equal.
      location_policy = autoscaling.value.location_policy
    }
  }

  # Nodes are created only for ProvisioningRequests: all nodes of a request, or none.
  dynamic "queued_provisioning" {
    for_each = each.value.provisioning == "queued" ? [true] : []

    content {
      enabled = true
    }
  }

  # TPU slices have a topology; other pools with compact placement have none.
  dynamic "placement_policy" {
    for_each = each.value.compact || each.value.tpu_topology != null ? [each.value.tpu_topology] : []

    content {
      type         = "COMPACT"
      tpu_topology = placement_policy.value
    }
  }

  node_config {
    machine_type     = each.value.machine_type
    disk_size_gb     = var.disk.size_gb
    disk_type        = coalesce(each.value.disk_type, var.disk.type)
    image_type       = "COS_CONTAINERD"
    spot             = each.value.provisioning == "spot"
    flex_start       = local.flex_start[each.key] ? true : null
    max_run_duration = each.value.max_run_duration
    labels           = each.value.labels

    # The roles of the service account determine the rights of the nodes, instead of the scopes.
    service_account = var.nodes_service_account
    oauth_scopes    = ["https://www.googleapis.com/auth/cloud-platform"]

    dynamic "guest_accelerator" {
      for_each = each.value.accelerator == null ? [] : [each.value.accelerator]

      content {
        type  = guest_accelerator.value.type
        count = guest_accelerator.value.count

        gpu_driver_installation_config {
          gpu_driver_version = var.gpu_driver
        }
      }
    }

    dynamic "taint" {
      for_each = each.value.taints

      content {
        key    = taint.value.key
        value  = taint.value.value
        effect = taint.value.effect
      }
    }

    # The pool uses machines of its own reservation or of none, and never those of other matching reservations.
    reservation_affinity {
      consume_reservation_type = each.value.reservation == null ? "NO_RESERVATION" : "SPECIFIC_RESERVATION"
      key                      = each.value.reservation == null ? null : "compute.googleapis.com/reservation-name"
      values                   = each.value.reservation == null ? null : [each.value.reservation]
    }

    # The pods' ephemeral storage is on the local SSDs of machines that have some.
    dynamic "ephemeral_storage_local_ssd_config" {
      for_each = each.value.local_ssds > 0 ? [each.value.local_ssds] : []

      content {
        local_ssd_count = ephemeral_storage_local_ssd_config.value
      }
    }

    gcfs_config {
      enabled = var.image_streaming
    }

    # Pods see their own identity instead of the node's.
    workload_metadata_config {
      mode = "GKE_METADATA"
    }

    shielded_instance_config {
      enable_secure_boot          = true
      enable_integrity_monitoring = true
    }

    kubelet_config {
      insecure_kubelet_readonly_port_enabled = "FALSE"
    }
  }

  management {
    auto_upgrade = true
    auto_repair  = !local.flex_start[each.key] # such machines cannot be replaced
  }

  # Additional machines with accelerators are often unavailable, so these nodes are upgraded one by one, without surge.
  # For machines of the Dynamic Workload Scheduler, GKE itself sets the strategy (SHORT_LIVED).
  dynamic "upgrade_settings" {
    for_each = local.flex_start[each.key] ? [] : [each.value.accelerator != null || each.value.tpu_topology != null]

    content {
      strategy        = "SURGE"
      max_surge       = upgrade_settings.value ? 0 : 1
      max_unavailable = upgrade_settings.value ? 1 : 0
    }
  }

  timeouts {
    create = "60m"
    update = "60m"
    delete = "60m"
  }

  lifecycle {
    # After the creation, the autoscaler changes the number of nodes.
    ignore_changes = [initial_node_count]
  }
}
