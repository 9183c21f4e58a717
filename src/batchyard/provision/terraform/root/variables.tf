variable "project" {
  description = "The id of the Google Cloud project in which everything is made."
  type        = string

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", var.project))
    error_message = "A project's id has 6 to 30 lower-case letters, digits and dashes, a letter first."
  }
}

variable "name" {
  description = "The name of the cluster, from which those of the network, the router and the node service account are made."
  type        = string

  validation {
    condition     = can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", var.name))
    error_message = "A cluster's name has up to 40 lower-case letters, digits and dashes, a letter first."
  }
}

variable "region" {
  description = "The region of the cluster, such as us-central1."
  type        = string
}

variable "zones" {
  description = "The zones of the cluster. Pools that name none have nodes in all of them."
  type        = list(string)

  validation {
    condition     = length(var.zones) > 0 && alltrue([for zone in var.zones : startswith(zone, "${var.region}-")])
    error_message = "There is at least one zone, and all lie in the region."
  }
}

variable "labels" {
  description = "Labels of everything that can have labels, which Cloud Billing reports by."
  type        = map(string)
  default     = {}
}

# --- network ---

variable "network" {
  description = <<-EOT
    Addresses, as CIDRs: of nodes, pods, services and the control plane (a /28). `private_endpoint` takes the control
    plane's public address away. `authorized` are the networks that may reach its addresses; none: everyone may, and the
    credentials decide.
  EOT
  type = object({
    nodes            = string
    pods             = string
    services         = string
    control_plane    = string
    private_endpoint = optional(bool, false)
    authorized       = optional(list(object({ name = string, cidr = string })), [])
  })

  validation {
    condition = alltrue([
      for cidr in [var.network.nodes, var.network.pods, var.network.services, var.network.control_plane] :
      can(cidrnetmask(cidr))
    ])
    error_message = "Each range is an IPv4 CIDR such as 10.0.0.0/20."
  }

  validation {
    condition     = endswith(var.network.control_plane, "/28")
    error_message = "The control plane's range is a /28."
  }
}

variable "webhook_ports" {
  description = "Ports of pods at which the control plane asks webhooks, beside 443 and 10250, which it may reach by itself."
  type        = list(number)
  default     = []
}

# --- cluster ---

variable "release_channel" {
  description = "How soon the cluster gets new versions of Kubernetes."
  type        = string
  default     = "REGULAR"

  validation {
    condition     = contains(["RAPID", "REGULAR", "STABLE", "EXTENDED"], var.release_channel)
    error_message = "The channel is RAPID, REGULAR, STABLE or EXTENDED."
  }
}

variable "deletion_protection" {
  description = "Whether `terraform destroy` refuses to delete the cluster."
  type        = bool
  default     = true
}

variable "security_group" {
  description = "The group gke-security-groups@DOMAIN, by which RBAC knows the groups of that domain; null: by none."
  type        = string
  default     = null

  validation {
    condition     = var.security_group == null || can(regex("^gke-security-groups@", var.security_group))
    error_message = "GKE wants the group to be named gke-security-groups@DOMAIN."
  }
}

variable "image_streaming" {
  description = "Whether containers start before their image is there whole."
  type        = bool
  default     = true
}

variable "managed_prometheus" {
  description = "Whether Google's managed Prometheus collects metrics, those of GPUs, pods and JobSets among them."
  type        = bool
  default     = true
}

variable "cost_allocation" {
  description = "Whether Cloud Billing tells costs by namespace and label."
  type        = bool
  default     = true
}

variable "filestore" {
  description = "Whether pods can mount volumes of Filestore: the CSI driver is enabled."
  type        = bool
  default     = true
}

variable "autoscaling_profile" {
  description = "How soon nodes that nobody needs go: BALANCED, or OPTIMIZE_UTILIZATION, which is sooner."
  type        = string
  default     = "BALANCED"

  validation {
    condition     = contains(["BALANCED", "OPTIMIZE_UTILIZATION"], var.autoscaling_profile)
    error_message = "The profile is BALANCED or OPTIMIZE_UTILIZATION."
  }
}

variable "auto_provisioning" {
  description = <<-EOT
    What the whole cluster may come to for node auto-provisioning to make pools: cores, gigabytes of memory,
    accelerators by their type. Empty: it makes none.
  EOT
  type        = list(object({ resource = string, min = optional(number, 0), max = number }))
  default     = []

  validation {
    condition     = length(var.auto_provisioning) == 0 || length(setsubtract(["cpu", "memory"], var.auto_provisioning[*].resource)) == 0
    error_message = "Node auto-provisioning needs limits of cpu and of memory."
  }
}

# --- nodes ---

variable "disk" {
  description = "The boot disk of each node."
  type        = object({ size_gb = number, type = string })
  default     = { size_gb = 100, type = "pd-balanced" }

  validation {
    condition     = var.disk.size_gb >= 10
    error_message = "A boot disk has 10 GB at least."
  }
}

variable "gpu_driver" {
  description = "Which driver GKE puts on nodes with GPUs; INSTALLATION_DISABLED leaves it to a DaemonSet."
  type        = string
  default     = "DEFAULT"

  validation {
    condition     = contains(["DEFAULT", "LATEST", "INSTALLATION_DISABLED"], var.gpu_driver)
    error_message = "The driver is DEFAULT, LATEST or INSTALLATION_DISABLED."
  }
}

variable "node_pools" {
  description = <<-EOT
    The node pools, by name.
    `zones`: those it has nodes in; null: all of the cluster.
    `accelerator`: the GPUs of one machine.
    `node_count`: how many nodes each zone has; with `autoscaling`: begins with.
    `autoscaling`: bounds over all zones (`total_min`, `total_max`), or of each (`min`, `max`).
    `provisioning`: standard, spot, flex-start (Dynamic Workload Scheduler, a node at a time) or queued (all at once).
    `reservation`: the reservation it takes its machines from, and from nowhere else.
    `max_run_duration`: after how long a machine is taken away, such as 3600s.
    `tpu_topology`: of a slice of TPUs that needs several machines, such as 2x4. `compact`: machines lie close together.
    `disk_type`: where the machine cannot have the usual boot disk. `local_ssds`: those it comes with, for files of pods.
  EOT
  type = map(object({
    machine_type = string
    zones        = optional(list(string))
    accelerator  = optional(object({ type = string, count = number }))
    node_count   = optional(number, 0)
    autoscaling = optional(object({
      total_min       = optional(number)
      total_max       = optional(number)
      min             = optional(number)
      max             = optional(number)
      location_policy = optional(string, "BALANCED")
    }))
    provisioning      = optional(string, "standard")
    reservation       = optional(string)
    max_run_duration  = optional(string)
    max_pods_per_node = optional(number)
    tpu_topology      = optional(string)
    compact           = optional(bool, false)
    disk_type         = optional(string)
    local_ssds        = optional(number, 0)
    labels            = optional(map(string), {})
    taints            = optional(list(object({ key = string, value = string, effect = string })), [])
  }))

  validation {
    condition     = alltrue([for name in keys(var.node_pools) : can(regex("^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$", name))])
    error_message = "A pool's name has up to 40 lower-case letters, digits and dashes, a letter first."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : contains(["standard", "spot", "flex-start", "queued"], pool.provisioning)])
    error_message = "Machines are had standard, spot, flex-start or queued."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : pool.reservation == null || pool.provisioning == "standard"])
    error_message = "Only standard machines come from reservations."
  }

  validation {
    condition     = alltrue([for pool in values(var.node_pools) : pool.provisioning != "queued" || pool.autoscaling != null])
    error_message = "A queued pool has autoscaling: it grows by requests alone."
  }

  validation {
    condition = alltrue([
      for pool in values(var.node_pools) : !pool.compact && pool.tpu_topology == null || length(coalesce(pool.zones, var.zones)) == 1
    ])
    error_message = "Machines that lie close together lie in one zone: name it in `zones`."
  }

  validation {
    condition = alltrue(flatten([
      for pool in values(var.node_pools) : [
        for taint in pool.taints : contains(["NO_SCHEDULE", "PREFER_NO_SCHEDULE", "NO_EXECUTE"], taint.effect)
      ]
    ]))
    error_message = "A taint's effect is NO_SCHEDULE, PREFER_NO_SCHEDULE or NO_EXECUTE."
  }
}

variable "reservations" {
  description = "Machines to reserve, by the reservation's name. Those that exist already are not listed."
  type = map(object({
    machine_type = string
    zone         = string
    count        = number
    accelerator  = optional(object({ type = string, count = number }))
  }))
  default = {}

  validation {
    condition     = alltrue([for reservation in values(var.reservations) : reservation.count > 0])
    error_message = "A reservation has one machine at least."
  }
}

variable "future_reservations" {
  description = <<-EOT
    Machines to book for a window of time, by the reservation's name. Times are in RFC 3339, such as 2026-12-01T20:00:00Z.
    `planning_status`: DRAFT reserves nothing and costs nothing. SUBMITTED asks Google for the machines. They are paid for once
    Google approves the request, and a request in calendar mode cannot be canceled, changed or deleted.
  EOT
  type = map(object({
    machine_type    = string
    zone            = string
    count           = number
    start_time      = string
    end_time        = string
    planning_status = optional(string, "DRAFT")
    accelerator     = optional(object({ type = string, count = number }))
  }))
  default = {}

  validation {
    condition     = alltrue([for reservation in values(var.future_reservations) : reservation.count > 0])
    error_message = "A future reservation has one machine at least."
  }

  validation {
    condition = alltrue([
      for reservation in values(var.future_reservations) : contains(["DRAFT", "SUBMITTED"], reservation.planning_status)
    ])
    error_message = "The planning status of a future reservation is DRAFT or SUBMITTED."
  }

  validation {
    condition = alltrue([
      for reservation in values(var.future_reservations) :
      try(timecmp(reservation.start_time, reservation.end_time) < 0, false)
    ])
    error_message = "A future reservation starts before it ends, both as times such as 2026-12-01T20:00:00Z."
  }

  validation {
    condition     = length(setintersection(keys(var.reservations), keys(var.future_reservations))) == 0
    error_message = "A future reservation has a name that no other reservation has."
  }
}

# --- who uses it ---

variable "repository" {
  description = "The name of the repository in Artifact Registry."
  type        = string
}

variable "more_repositories" {
  description = "Further repositories by name, and the location of each: a region, or us, europe or asia."
  type        = map(string)
  default     = {}
}

variable "teams" {
  description = <<-EOT
    Who the pods of each team are: the Kubernetes service account `service_account` of `namespace` acts as the Google
    service account `account`, which has these roles in the project, and reads and writes objects in these buckets.
  EOT
  type = map(object({
    namespace       = string
    service_account = string
    account         = string
    roles           = optional(list(string), [])
    buckets         = optional(list(string), [])
  }))
  default = {}

  validation {
    condition     = alltrue([for team in values(var.teams) : can(regex("^[a-z][a-z0-9-]{4,28}[a-z0-9]$", team.account))])
    error_message = "A service account's id has 6 to 30 lower-case letters, digits and dashes, a letter first."
  }

  validation {
    condition     = length(setintersection(["roles/owner", "roles/editor"], flatten(values(var.teams)[*].roles))) == 0
    error_message = "A team's pods are neither owner nor editor of the project: name the roles that their work needs."
  }
}

variable "dashboards" {
  description = "Whether Cloud Monitoring gets a dashboard of GPUs."
  type        = bool
  default     = true
}
