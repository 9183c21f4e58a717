// Times and labels. Ages are updated between two models.

let platformClock = { at: performance.now(), time: Date.now(), speed: 1 };

export function setClock(envelope) {
  if (envelope.time) platformClock = { at: performance.now(), time: Date.parse(envelope.time), speed: envelope.speed };
}

// Virtual seconds per real second; 0 if the time is stopped.
export function speedOf() {
  return platformClock.speed;
}

export function nowOf() {
  return platformClock.time + (platformClock.speed ? (performance.now() - platformClock.at) * platformClock.speed : 0);
}

export function ageText(milliseconds) {
  const total = Math.max(0, Math.floor(milliseconds / 1000));
  const minutes = Math.floor(total / 60), hours = Math.floor(total / 3600), days = Math.floor(total / 86400);
  if (total < 120) return `${total}s`;
  if (minutes < 10) return total % 60 ? `${minutes}m${total % 60}s` : `${minutes}m`;
  if (minutes < 180) return `${minutes}m`;
  if (hours < 8) return minutes % 60 ? `${hours}h${minutes % 60}m` : `${hours}h`;
  return hours < 48 ? `${hours}h` : `${days}d`;
}

export function timeText(text) {
  return text ? text.replace("T", " ").replace(/(\.\d+)?Z/, "") : "";
}

export function clockText(milliseconds) {
  return timeText(new Date(milliseconds).toISOString().slice(0, 19) + "Z");
}

export function countText(count, word) {
  return `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
}

const STATE_WORDS = {
  Pending: "pending", QuotaReserved: "quota reserved", Admitted: "admitted", Running: "running",
  Evicted: "evicted", Finished: "finished", Failed: "failed", Inactive: "inactive",
};

export function stateWord(state) {
  return STATE_WORDS[state] || state;
}
