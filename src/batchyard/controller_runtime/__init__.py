"""Runtime for controllers: event loop, work queues, runner, and Events."""
