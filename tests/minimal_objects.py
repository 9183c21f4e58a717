"""Minimal objects of each Kubernetes kind, and the stored objects, field by field.

Source: Kubernetes 1.36, pkg/apis/*/v1/{defaults.go,zz_generated.defaults.go}, and the non-pointer fields of its Go
types, which it always writes.
"""

from typing import Final

CONTAINER = "terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File"
POD_SPEC = (
    "dnsPolicy: ClusterFirst, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30"
)
WHOLE = f"{{name: c, image: 'busybox:1', imagePullPolicy: IfNotPresent, resources: {{}}, {CONTAINER}}}"
TEMPLATE = "{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: 'busybox:1'}]}}"
STORED_TEMPLATE = (
    f"{{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{WHOLE}], restartPolicy: Always, {POD_SPEC}}}}}"
)
RUN_ONCE = "{spec: {restartPolicy: Never, containers: [{name: c, image: 'busybox:1'}]}}"
STORED_RUN_ONCE = f"{{metadata: {{}}, spec: {{containers: [{WHOLE}], restartPolicy: Never, {POD_SPEC}}}}}"
SELECTOR = "selector: {matchLabels: {a: b}}"
PORT = "{port: 80, protocol: TCP, targetPort: 80}"
WEBHOOK = (
    "{name: a.b.c, clientConfig: {service: {name: s, namespace: n}}, sideEffects: None, admissionReviewVersions: [v1]"
)
STORED_WEBHOOK = (
    "{name: a.b.c, clientConfig: {service: {name: s, namespace: n, port: 443}}, sideEffects: None, "
    "admissionReviewVersions: [v1], failurePolicy: Fail, matchPolicy: Equivalent, namespaceSelector: {}, "
    "objectSelector: {}, timeoutSeconds: 10"
)
RULES = "rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]"
POLICY_RULE = "{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]"
POLICY_RULES = f"matchConstraints: {{resourceRules: [{POLICY_RULE}}}"
STORED_SELECTORS = "matchPolicy: Equivalent, namespaceSelector: {}, objectSelector: {}"
STORED_POLICY_RULES = (
    f"failurePolicy: Fail, matchConstraints: {{resourceRules: [{POLICY_RULE}, scope: '*'}}], {STORED_SELECTORS}}}"
)
MUTATIONS = "mutations: [{patchType: JSONPatch, jsonPatch: {expression: '[JSONPatch{}]'}}]"
#: Kind, sent fields and stored fields, without apiVersion, kind and metadata.
MINIMAL_OBJECTS: Final = [
    (
        "v1 Pod",
        "spec: {containers: [{name: c, image: 'busybox:1', resources: {limits: {cpu: 1}}}]}",
        (
            f"spec: {{containers: [{{name: c, image: 'busybox:1', imagePullPolicy: IfNotPresent, {CONTAINER}, "
            f"resources: {{limits: {{cpu: '1'}}, requests: {{cpu: '1'}}}}}}], restartPolicy: Always, "
            f"enableServiceLinks: true, {POD_SPEC}}}\nstatus: {{phase: Pending}}"
        ),
    ),
    ("v1 PodTemplate", f"template: {TEMPLATE}", f"template: {STORED_TEMPLATE}"),
    (
        "batch/v1 Job",
        f"spec: {{template: {RUN_ONCE}}}",
        (
            f"spec: {{template: {STORED_RUN_ONCE}, parallelism: 1, completions: 1, backoffLimit: 6, suspend: false, "
            "completionMode: NonIndexed, manualSelector: false, podReplacementPolicy: TerminatingOrFailed}"
        ),
    ),
    (
        "batch/v1 CronJob",
        f"spec: {{schedule: '* * * * *', jobTemplate: {{spec: {{template: {RUN_ONCE}}}}}}}",
        (
            "spec: {schedule: '* * * * *', "
            f"jobTemplate: {{metadata: {{}}, spec: {{template: {STORED_RUN_ONCE}}}}}, "
            "concurrencyPolicy: Allow, suspend: false, successfulJobsHistoryLimit: 3, failedJobsHistoryLimit: 1}\n"
            "status: {}"
        ),
    ),
    (
        "apps/v1 Deployment",
        f"spec: {{{SELECTOR}, template: {TEMPLATE}}}",
        (
            f"spec: {{{SELECTOR}, template: {STORED_TEMPLATE}, replicas: 1, revisionHistoryLimit: 10, "
            "progressDeadlineSeconds: 600, "
            "strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}}\nstatus: {}"
        ),
    ),
    (
        "apps/v1 ReplicaSet",
        f"spec: {{{SELECTOR}, template: {TEMPLATE}}}",
        f"spec: {{{SELECTOR}, template: {STORED_TEMPLATE}, replicas: 1}}\nstatus: {{replicas: 0}}",
    ),
    (
        "apps/v1 DaemonSet",
        f"spec: {{{SELECTOR}, template: {TEMPLATE}}}",
        (
            f"spec: {{{SELECTOR}, template: {STORED_TEMPLATE}, revisionHistoryLimit: 10, "
            "updateStrategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 0, maxUnavailable: 1}}}\n"
            "status: {currentNumberScheduled: 0, desiredNumberScheduled: 0, numberMisscheduled: 0, numberReady: 0}"
        ),
    ),
    (
        "apps/v1 StatefulSet",
        (
            f"spec: {{{SELECTOR}, template: {TEMPLATE}, volumeClaimTemplates: [{{metadata: {{name: d}}, "
            "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]}"
        ),
        (
            f"spec: {{{SELECTOR}, template: {STORED_TEMPLATE}, replicas: 1, revisionHistoryLimit: 10, "
            "podManagementPolicy: OrderedReady, serviceName: '', "
            "updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0}}, "
            "persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}, "
            "volumeClaimTemplates: [{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: d}, "
            "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, volumeMode: Filesystem}, "
            "status: {phase: Pending}}]}\nstatus: {availableReplicas: 0, replicas: 0}"
        ),
    ),
    (
        "v1 ReplicationController",
        f"spec: {{template: {TEMPLATE}}}",
        f"spec: {{template: {STORED_TEMPLATE}, replicas: 1, selector: {{a: b}}}}\nstatus: {{replicas: 0}}",
    ),
    (
        "v1 Service",
        "spec: {ports: [{port: 80}]}",
        (
            f"spec: {{ports: [{PORT}], type: ClusterIP, sessionAffinity: None, internalTrafficPolicy: Cluster}}\n"
            "status: {loadBalancer: {}}"
        ),
    ),
    (
        "v1 Service",
        "spec: {type: LoadBalancer, sessionAffinity: ClientIP, ports: [{port: 80, targetPort: web}]}",
        (
            "spec: {ports: [{port: 80, protocol: TCP, targetPort: web}], type: LoadBalancer, "
            "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 10800}}, "
            "internalTrafficPolicy: Cluster, externalTrafficPolicy: Cluster, allocateLoadBalancerNodePorts: true}\n"
            "status: {loadBalancer: {}}"
        ),
    ),
    (
        "v1 Service",
        "spec: {type: ExternalName, externalName: a.b}",
        "spec: {type: ExternalName, externalName: a.b, sessionAffinity: None}\nstatus: {loadBalancer: {}}",
    ),
    ("v1 Secret", "data: {}", "type: Opaque"),
    ("scheduling.k8s.io/v1 PriorityClass", "value: 1", "{value: 1, preemptionPolicy: PreemptLowerPriority}"),
    (
        "v1 LimitRange",
        "spec: {limits: [{type: Container, max: {cpu: 2}, min: {memory: 1Gi}}]}",
        (
            "spec: {limits: [{type: Container, max: {cpu: '2'}, min: {memory: 1Gi}, default: {cpu: '2'}, "
            "defaultRequest: {cpu: '2', memory: 1Gi}}]}"
        ),
    ),
    (
        "networking.k8s.io/v1 NetworkPolicy",
        "spec: {podSelector: {}, ingress: [{ports: [{port: 1}]}]}",
        "spec: {podSelector: {}, ingress: [{ports: [{port: 1, protocol: TCP}]}], policyTypes: [Ingress]}",
    ),
    (
        "networking.k8s.io/v1 NetworkPolicy",
        "spec: {podSelector: {}, egress: [{}]}",
        "spec: {podSelector: {}, egress: [{}], policyTypes: [Ingress, Egress]}",
    ),
    (
        "v1 Endpoints",
        "subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80}]}]",
        "subsets: [{addresses: [{ip: 10.0.0.1}], ports: [{port: 80, protocol: TCP}]}]",
    ),
    (
        "discovery.k8s.io/v1 EndpointSlice",
        "{addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}], ports: [{port: 80}]}",
        "{addressType: IPv4, endpoints: [{addresses: [10.0.0.1]}], ports: [{port: 80, protocol: TCP, name: ''}]}",
    ),
    (
        "v1 PersistentVolume",
        "spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /a}}",
        (
            "spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: /a, type: ''}, "
            "persistentVolumeReclaimPolicy: Retain, volumeMode: Filesystem}\nstatus: {phase: Pending}"
        ),
    ),
    (
        "v1 PersistentVolumeClaim",
        "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}",
        (
            "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, volumeMode: Filesystem}\n"
            "status: {phase: Pending}"
        ),
    ),
    (
        "rbac.authorization.k8s.io/v1 RoleBinding",
        "{roleRef: {kind: Role, name: r}, subjects: [{kind: User, name: u}, {kind: ServiceAccount, name: s}]}",
        (
            "{roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: r}, "
            "subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: u}, "
            "{kind: ServiceAccount, name: s}]}"
        ),
    ),
    (
        "autoscaling/v2 HorizontalPodAutoscaler",
        "spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}, maxReplicas: 3}",
        (
            "spec: {scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: d}, maxReplicas: 3, minReplicas: 1, "
            "metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]}"
            "\nstatus: {desiredReplicas: 0}"
        ),
    ),
    (
        "storage.k8s.io/v1 StorageClass",
        "provisioner: x.io/disks",
        "{provisioner: x.io/disks, reclaimPolicy: Delete, volumeBindingMode: Immediate}",
    ),
    (
        "admissionregistration.k8s.io/v1 MutatingWebhookConfiguration",
        f"webhooks: [{WEBHOOK}, {RULES}}}]}}]",
        f"webhooks: [{STORED_WEBHOOK}, reinvocationPolicy: Never, {RULES}, scope: '*'}}]}}]",
    ),
    (
        "admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration",
        f"webhooks: [{WEBHOOK}, {RULES}}}]}}]",
        f"webhooks: [{STORED_WEBHOOK}, {RULES}, scope: '*'}}]}}]",
    ),
    (
        "admissionregistration.k8s.io/v1 MutatingAdmissionPolicy",
        f"spec: {{{POLICY_RULES}]}}, reinvocationPolicy: Never, {MUTATIONS}}}",
        f"spec: {{{STORED_POLICY_RULES}, reinvocationPolicy: Never, {MUTATIONS}}}",
    ),
    (
        "admissionregistration.k8s.io/v1 MutatingAdmissionPolicyBinding",
        "spec: {policyName: p, matchResources: {}}",
        f"spec: {{policyName: p, matchResources: {{{STORED_SELECTORS}}}}}",
    ),
    (
        "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy",
        f"spec: {{{POLICY_RULES}]}}, validations: [{{expression: 'true'}}]}}",
        f"spec: {{{STORED_POLICY_RULES}, validations: [{{expression: 'true'}}]}}\nstatus: {{}}",
    ),
    (
        "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding",
        "spec: {policyName: p, validationActions: [Deny]}",
        "spec: {policyName: p, validationActions: [Deny]}",
    ),
]
