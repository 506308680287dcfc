{{/*
Prefill and decode differ in names and numbers alone, so one definition makes both.
Arguments: root, role, pool; group and leader of a StatefulSet's pod.
*/}}

{{/* How often a startup probe may fail: the time to start, and that in which Redis and NATS may come up late. */}}
{{- define "tandem.startProbes" -}}
{{- $seconds := add .seconds (ceil .root.Values.redis.startTimeoutSeconds) (ceil .root.Values.nats.startTimeoutSeconds) 30 -}}
{{- div (add $seconds (sub .period 1)) .period -}}
{{- end -}}

{{/* Grace is what ending can take: out of the endpoints, drain, read leases, and 10 s to close. */}}
{{- define "tandem.grace" -}}
{{- add .preStopSeconds .drainSeconds (default 0 .leaseSeconds) 10 -}}
{{- end -}}

{{- define "tandem.workerResources" -}}
{{- $root := .root -}}
{{- $devices := dict -}}
{{- if eq $root.Values.model.device "cuda" -}}
{{- $_ := set $devices .pool.gpu.resource (toString .pool.gpusPerNode) -}}
{{- end -}}
{{- if $root.Values.rdma.enabled -}}
{{- range $name, $count := $root.Values.rdma.resources -}}
{{- $_ := set $devices $name (toString $count) -}}
{{- end -}}
{{- end -}}
requests: {{- merge (deepCopy $devices) .pool.resources.requests | toYaml | nindent 2 }}
limits: {{- merge (deepCopy $devices) .pool.resources.limits | toYaml | nindent 2 }}
{{- end -}}

{{/* Which node of which group a pod is. */}}
{{- define "tandem.workerPlace" -}}
{{- $root := .root -}}
{{- if eq $root.Values.groupController "LeaderWorkerSet" }}
- name: GROUP
  valueFrom:
    fieldRef: { fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']" }
- name: NODE
  valueFrom:
    fieldRef: { fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']" }
{{- else }}
- { name: GROUP, value: {{ .group | quote }} }
- name: NODE
  valueFrom:
    fieldRef: { fieldPath: "metadata.labels['apps.kubernetes.io/pod-index']" }
{{- end }}
{{- end -}}

{{- define "tandem.workerEnvironment" -}}
{{- $root := .root -}}
{{ include "tandem.podAddress" $root }}
- { name: HOME, value: /tmp }
- { name: TRITON_CACHE_DIR, value: /cache/triton }
- { name: DG_JIT_CACHE_DIR, value: /cache/deep_gemm }
- { name: FLASHINFER_WORKSPACE_BASE, value: /cache/flashinfer }
{{- include "tandem.dependencyEnvironment" $root }}
{{- include "tandem.rdmaEnvironment" $root }}
{{- with .pool.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tandem.workerMounts" -}}
{{ include "tandem.baseMounts" .root }}
{{- include "tandem.modelMount" .root }}
- { name: shm, mountPath: /dev/shm }
- { name: jit-cache, mountPath: /cache }
{{- end -}}

{{- define "tandem.worker" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $p := .pool -}}
{{- $kind := include "tandem.workerImageKind" $root -}}
{{- $instances := div $p.gpusPerNode $p.tp | int -}}
{{- $leader := default "$(LWS_LEADER_ADDRESS)" .leader -}}
metadata:
  labels:
    {{- include "tandem.podLabels" (dict "root" $root "component" .role) | nindent 4 }}
    {{- if ne (toString (default "" .group)) "" }}
    tandem/group: {{ .group | quote }}
    {{- end }}
    {{- with $p.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    tandem/config: {{ include "tandem.configDigest" (dict "root" $root "role" .role) }}
    {{- if and $v.rdma.enabled $v.rdma.networks }}
    k8s.v1.cni.cncf.io/networks: {{ $v.rdma.networks | quote }}
    {{- end }}
    {{- with $p.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "tandem.fullname" $root }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "tandem.grace" $p.lifecycle }}
  {{- include "tandem.pullSecrets" $root | nindent 2 }}
  {{- if and $p.gpu.runtimeClassName (eq $v.model.device "cuda") }}
  runtimeClassName: {{ $p.gpu.runtimeClassName | quote }}
  {{- end }}
  securityContext: {{- include "tandem.podSecurity" $root | nindent 4 }}
  {{- with $p.priorityClassName }}
  priorityClassName: {{ . | quote }}
  {{- end }}
  {{- with $p.schedulerName }}
  schedulerName: {{ . | quote }}
  {{- end }}
  {{- with $p.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $p.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or (and $p.gpu.products (eq $v.model.device "cuda")) $p.topologyKey }}
  affinity:
    {{- if and $p.gpu.products (eq $v.model.device "cuda") }}
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
          - matchExpressions:
              - { key: nvidia.com/gpu.product, operator: In, values: {{ toJson $p.gpu.products }} }
    {{- end }}
    {{- if $p.topologyKey }}
    podAffinity:
      preferredDuringSchedulingIgnoredDuringExecution:
        - weight: 100
          podAffinityTerm:
            topologyKey: {{ $p.topologyKey | quote }}
            labelSelector:
              matchLabels:
                {{- include "tandem.selector" (dict "root" $root "component" .role) | nindent 16 }}
    {{- end }}
  {{- end }}
  {{- if or $v.model.download.enabled $v.doctor.initContainer }}
  initContainers:
    {{- include "tandem.download" (dict "root" $root "imageKind" $kind) | nindent 4 }}
    {{- if $v.doctor.initContainer }}
    - name: doctor
      image: {{ include "tandem.image" (dict "root" $root "kind" $kind) }}
      imagePullPolicy: {{ (index $v.images $kind).pullPolicy }}
      command: [tandem, doctor]
      args: [--config, /etc/tandem/tandem.yaml, --role, {{ .role }}, --wait]
      env: {{- include "tandem.workerEnvironment" . | nindent 8 }}
      securityContext: {{- include "tandem.workerSecurity" $root | nindent 8 }}
      resources: {{- include "tandem.workerResources" . | nindent 8 }}
      volumeMounts: {{- include "tandem.workerMounts" . | nindent 8 }}
    {{- end }}
  {{- end }}
  containers:
    - name: {{ .role }}
      image: {{ include "tandem.image" (dict "root" $root "kind" $kind) }}
      imagePullPolicy: {{ (index $v.images $kind).pullPolicy }}
      command: [python, -m, services.{{ .role }}.pod]
      args:
        - --config
        - /etc/tandem/tandem.yaml
        - --group
        - $(GROUP)
        - --node
        - $(NODE)
        - --rendezvous
        - {{ printf "%s:%d" $leader (int $p.ports.rendezvous) }}
        - --health-port
        - {{ int $p.ports.health | quote }}
        - --clear-shared-memory
        - /dev/shm
        - --log-format
        - json
      env:
        {{- include "tandem.workerPlace" . | nindent 8 }}
        {{- include "tandem.workerEnvironment" . | nindent 8 }}
      ports:
        {{- range $i := until $instances }}
        - { name: grpc-{{ $i }}, containerPort: {{ add $p.ports.grpc $i }} }
        - { name: metrics-{{ $i }}, containerPort: {{ add $p.ports.metrics $i }} }
        {{- end }}
        - { name: rendezvous, containerPort: {{ int $p.ports.rendezvous }} }
        - { name: health, containerPort: {{ int $p.ports.health }} }
      startupProbe:
        httpGet: { path: /healthz, port: health }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ include "tandem.startProbes" (dict "root" $root "seconds" $p.lifecycle.loadSeconds "period" 10) }}
      livenessProbe:
        httpGet: { path: /healthz, port: health }
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 3
      readinessProbe:
        httpGet: { path: /readyz, port: health }
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: 1
      lifecycle:
        preStop:
          exec: { command: [sleep, {{ int $p.lifecycle.preStopSeconds | quote }}] }
      securityContext: {{- include "tandem.workerSecurity" $root | nindent 8 }}
      resources: {{- include "tandem.workerResources" . | nindent 8 }}
      volumeMounts: {{- include "tandem.workerMounts" . | nindent 8 }}
  volumes:
    {{- include "tandem.baseVolumes" $root | nindent 4 }}
    {{- include "tandem.modelVolume" $root | nindent 4 }}
    - name: shm
      emptyDir: { medium: Memory, sizeLimit: {{ $p.shm | quote }} }
    - name: jit-cache
      {{- if eq $v.jitCache.kind "hostPath" }}
      hostPath: { path: {{ $v.jitCache.hostPath | quote }}, type: Directory }
      {{- else if eq $v.jitCache.kind "pvc" }}
      persistentVolumeClaim: { claimName: {{ $v.jitCache.claimName | quote }} }
      {{- else }}
      emptyDir: {}
      {{- end }}
{{- end -}}

{{/* What the autoscaler has decided outlives an upgrade, within the bounds that are its own from now on. */}}
{{- define "tandem.liveReplicas" -}}
{{- $live := dict -}}
{{- if .root.Values.autoscaler.enabled -}}
{{- $live = lookup .apiVersion .kind .root.Release.Namespace .name -}}
{{- end -}}
{{- if $live }}{{ int $live.spec.replicas }}{{ else }}{{ int .count }}{{ end -}}
{{- end -}}

{{- define "tandem.replicas" -}}
{{- $replicas := include "tandem.liveReplicas" . | int -}}
{{- if .root.Values.autoscaler.enabled -}}
{{- max (int .pool.autoscale.minGroups) (min (int .pool.autoscale.maxGroups) $replicas) -}}
{{- else -}}
{{- $replicas -}}
{{- end -}}
{{- end -}}

{{- define "tandem.mostGroups" -}}
{{- ternary (max (int .pool.groups) (int .pool.autoscale.maxGroups)) (int .pool.groups) .root.Values.autoscaler.enabled -}}
{{- end -}}

{{/*
A pool as one LeaderWorkerSet, or as one StatefulSet a group with a service by which its pods find each other. Those are
named as nothing is that a LeaderWorkerSet's controller makes, so that an upgrade may change from one to the other.
*/}}
{{- define "tandem.pool" -}}
{{- $root := .root -}}
{{- $v := $root.Values -}}
{{- $p := .pool -}}
{{- $name := printf "%s-%s" (include "tandem.fullname" $root) .role -}}
{{- if eq $v.groupController "LeaderWorkerSet" }}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata:
  name: {{ $name }}
  labels: {{- include "tandem.labels" (dict "root" $root "component" .role) | nindent 4 }}
  {{- with $p.exclusiveTopology }}
  annotations:
    leaderworkerset.sigs.k8s.io/exclusive-topology: {{ . | quote }}
  {{- end }}
spec:
  replicas: {{ include "tandem.replicas" (dict "root" $root "apiVersion" "leaderworkerset.x-k8s.io/v1" "kind" "LeaderWorkerSet" "name" $name "count" $p.groups "pool" $p) }}
  startupPolicy: LeaderCreated
  rolloutStrategy:
    type: RollingUpdate
    rollingUpdateConfiguration: { maxUnavailable: {{ int $p.rollout.maxUnavailable }}, maxSurge: {{ int $p.rollout.maxSurge }} }
  leaderWorkerTemplate:
    size: {{ int $p.nodes }}
    restartPolicy: RecreateGroupOnPodRestart
    workerTemplate: {{- include "tandem.worker" . | nindent 6 }}
{{- else }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}-pods
  labels: {{- include "tandem.labels" (dict "root" $root "component" .role) | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true # ranks meet before they are ready
  selector: {{- include "tandem.selector" (dict "root" $root "component" .role) | nindent 4 }}
  ports:
    - { name: rendezvous, port: {{ int $p.ports.rendezvous }} }
{{- $groups := include "tandem.mostGroups" (dict "root" $root "pool" $p) | int }}
{{- range $group := until $groups }}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}-g{{ $group }}
  labels:
    {{- include "tandem.labels" (dict "root" $root "component" $.role) | nindent 4 }}
    tandem/group: {{ $group | quote }}
  annotations:
    tandem/nodes: {{ int $p.nodes | quote }}
spec:
  {{- /* All of a group's pods or none, however many they were before. */}}
  {{- $count := ternary 1 0 (lt $group (int $p.groups)) }}
  {{- $runs := include "tandem.liveReplicas" (dict "root" $root "apiVersion" "apps/v1" "kind" "StatefulSet" "name" (printf "%s-g%d" $name $group) "count" $count) | int }}
  replicas: {{ ternary (int $p.nodes) 0 (gt $runs 0) }}
  serviceName: {{ $name }}-pods
  podManagementPolicy: Parallel
  {{- /* Kubernetes would replace pod by pod, each a member of a group whose others still run the old version, and in every
         set at once. */}}
  updateStrategy: { type: {{ ternary "RollingUpdate" "OnDelete" (eq (mul $p.nodes $groups | int) 1) }} }
  selector:
    matchLabels:
      {{- include "tandem.selector" (dict "root" $root "component" $.role) | nindent 6 }}
      tandem/group: {{ $group | quote }}
  {{- $leader := printf "%s-g%d-0.%s-pods.%s.svc" $name $group $name $root.Release.Namespace }}
  template: {{- include "tandem.worker" (dict "root" $root "role" $.role "pool" $p "group" (toString $group) "leader" $leader) | nindent 4 }}
{{- end }}
{{- end }}
{{- if $p.pdb.enabled }}
---
# Groups are what is counted: evicting one pod ends its whole group, so after (n - 1) whole groups one pod more may go.
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $name }}
  labels: {{- include "tandem.labels" (dict "root" $root "component" .role) | nindent 4 }}
spec:
  maxUnavailable: {{ add (mul (sub $p.pdb.maxUnavailableGroups 1) $p.nodes) 1 }}
  unhealthyPodEvictionPolicy: AlwaysAllow # who is not ready serves nobody, and must not hold up a node for hours
  selector:
    matchLabels: {{- include "tandem.selector" (dict "root" $root "component" .role) | nindent 6 }}
{{- end }}
{{- end -}}
