variable "reservations" {
  description = "Machines to reserve, by the reservation's name; `accelerator`: the GPUs of one machine."
  type = map(object({
    machine_type = string
    zone         = string
    count        = number
    accelerator  = optional(object({ type = string, count = number }))
  }))
}
