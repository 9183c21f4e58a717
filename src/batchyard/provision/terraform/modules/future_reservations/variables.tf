variable "reservations" {
  description = "Machines to book, by the reservation's name, as the platform's own variable future_reservations describes them."
  type = map(object({
    machine_type    = string
    zone            = string
    count           = number
    start_time      = string
    end_time        = string
    planning_status = string
    accelerator     = object({ type = string, count = number })
  }))
}
