"""The controllers of this package by their names. The composition imports this module when it needs one of them."""

from collections.abc import Callable, Mapping
from typing import Final

from batchyard.apps.cron_job import CronJobController
from batchyard.apps.daemon_set import DaemonSetController
from batchyard.apps.deployment import DeploymentController
from batchyard.apps.replica_set import ReplicaSetController
from batchyard.apps.stateful_set import StatefulSetController
from batchyard.interfaces.controller import Controller

#: Creates each controller, by its name.
CONTROLLER_BY_NAME: Final[Mapping[str, Callable[[], Controller]]] = {
    DeploymentController.name: DeploymentController,
    ReplicaSetController.name: ReplicaSetController,
    StatefulSetController.name: StatefulSetController,
    DaemonSetController.name: DaemonSetController,
    CronJobController.name: CronJobController,
}
