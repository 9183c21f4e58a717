"""Requests that other servers answer: aggregated APIs (APIServices with a Service), and ports of pods and Services."""
