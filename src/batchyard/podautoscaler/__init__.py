"""HorizontalPodAutoscalers: the number of replicas of an object that follows the usage of its pods."""
