locals {
  # The Dynamic Workload Scheduler gives these machines for a time, and takes them back.
  flex_start = { for name, pool in var.node_pools : name => contains(["flex-start", "queued"], pool.provisioning) }
}

resource "google_container_node_pool" "this" {
  for_each = var.node_pools

  name           = each.key
  cluster        = var.cluster
  node_locations = coalesce(each.value.zones, var.zones)

  # Per zone, both. Without autoscaling the number is kept; with it the pool begins with so many, and the autoscaler goes on.
  node_count         = each.value.autoscaling == null ? each.value.node_count : null
  initial_node_count = each.value.autoscaling == null ? null : each.value.node_count
  max_pods_per_node  = each.value.max_pods_per_node

  dynamic "autoscaling" {
    for_each = each.value.autoscaling == null ? [] : [each.value.autoscaling]

    content {
      # Over all zones.
      total_min_node_count = autoscaling.value.total_max == null ? null : coalesce(autoscaling.value.total_min, 0)
      total_max_node_count = autoscaling.value.total_max

      # Of each zone.
      min_node_count = autoscaling.value.max == null ? null : coalesce(autoscaling.value.min, 0)
      max_node_count = autoscaling.value.max

      # ANY takes what a zone has; BALANCED keeps zones equal.
      location_policy = autoscaling.value.location_policy
    }
  }

  # Nodes come with ProvisioningRequests alone: all that a request asks for, or none.
  dynamic "queued_provisioning" {
    for_each = each.value.provisioning == "queued" ? [true] : []

    content {
      enabled = true
    }
  }

  # A slice of TPUs has a topology; other machines that lie close together have none.
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

    # What the nodes may do is said by the roles of their service account, not by scopes.
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

    # The machines of one reservation, or of none: never of one that lies about.
    reservation_affinity {
      consume_reservation_type = each.value.reservation == null ? "NO_RESERVATION" : "SPECIFIC_RESERVATION"
      key                      = each.value.reservation == null ? null : "compute.googleapis.com/reservation-name"
      values                   = each.value.reservation == null ? null : [each.value.reservation]
    }

    # Pods find their files on the SSDs that some machines come with.
    dynamic "ephemeral_storage_local_ssd_config" {
      for_each = each.value.local_ssds > 0 ? [each.value.local_ssds] : []

      content {
        local_ssd_count = ephemeral_storage_local_ssd_config.value
      }
    }

    gcfs_config {
      enabled = var.image_streaming
    }

    # Pods see their own identity, and not that of the node.
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
    auto_repair  = !local.flex_start[each.key] # such a machine is not given twice
  }

  # Machines with accelerators are seldom to be had beside the ones there are: they are upgraded one by one in place.
  # Those of the Dynamic Workload Scheduler have a way of their own (SHORT_LIVED), which GKE sets.
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
    # From then on it is the autoscaler's.
    ignore_changes = [initial_node_count]
  }
}
