{{/* The cluster's file, as common/config reads it. Values in ${} come from the pod's environment. */}}

{{- define "tandem.modelPath" -}}
{{- if eq .Values.model.store.kind "image" -}}
{{ .Values.model.store.directory }}
{{- else -}}
/models/{{ .Values.model.store.directory }}
{{- end -}}
{{- end -}}

{{- define "tandem.config" -}}
{{- $v := .Values -}}
{{- $scheduler := dict
      "host" "0.0.0.0"
      "port" (int $v.scheduler.ports.grpc)
      "http_port" (int $v.scheduler.ports.http)
      "metrics_port" (int $v.scheduler.ports.metrics)
      "drain_timeout_s" (int $v.scheduler.lifecycle.drainSeconds) -}}
{{- $config := dict
      "cluster" (include "tandem.cluster" .)
      "model" (dict "path" (include "tandem.modelPath" .) "name" $v.model.name "dtype" $v.layout.dtype "device" $v.model.device)
      "block_tokens" (int $v.layout.blockTokens)
      "context_tokens" (int $v.contextTokens)
      "draft_tokens" (int $v.layout.draftTokens)
      "prefill" (include "tandem.poolConfig" (dict "root" . "role" "prefill") | fromYaml)
      "decode" (include "tandem.poolConfig" (dict "root" . "role" "decode") | fromYaml)
      "scheduler" (merge $scheduler (deepCopy $v.scheduler.settings))
      "redis" (dict "url" "${TANDEM_REDIS_URL}" "timeout_s" $v.redis.timeoutSeconds "start_timeout_s" $v.redis.startTimeoutSeconds "worker_lease_s" $v.redis.workerLeaseSeconds)
      "nats" (dict "url" "${TANDEM_NATS_URL}" "timeout_s" $v.nats.timeoutSeconds "start_timeout_s" $v.nats.startTimeoutSeconds "load_interval_s" $v.nats.loadIntervalSeconds) -}}
{{- if $v.autoscaler.enabled -}}
{{- $_ := set $config "autoscaler" (include "tandem.autoscalerConfig" . | fromYaml) -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{- define "tandem.poolConfig" -}}
{{- $v := .root.Values -}}
{{- $p := index $v .role -}}
{{- /* A group added by the autoscaler or beside others during an upgrade must be one that the file knows. */ -}}
{{- $groups := include "tandem.mostGroups" (dict "root" .root "pool" $p) | int -}}
{{- if eq $v.groupController "LeaderWorkerSet" -}}
{{- $groups = add $groups $p.rollout.maxSurge -}}
{{- end -}}
{{- $worker := dict
      "host" "${POD_IP}"
      "first_port" (int $p.ports.grpc)
      "first_metrics_port" (int $p.ports.metrics)
      "start_timeout_s" (int $p.lifecycle.loadSeconds)
      "drain_timeout_s" (add $p.lifecycle.drainSeconds $p.lifecycle.leaseSeconds) -}}
{{- $pool := dict
      "parallel" (dict "groups" (ternary $groups 0 $p.enabled) "ep" (int $p.ep) "tp" (int $p.tp) "instances_per_pod" (div $p.gpusPerNode $p.tp))
      "worker" (merge $worker (deepCopy $p.worker)) -}}
{{- if eq .role "prefill" -}}
{{- $_ := set $pool "lease_s" (int $p.lifecycle.leaseSeconds) -}}
{{- end -}}
{{ toYaml (merge $pool (deepCopy $p.settings)) }}
{{- end -}}

{{- define "tandem.autoscalerConfig" -}}
{{- $v := .Values -}}
{{- $name := include "tandem.fullname" . -}}
{{- $scaling := dict
      "host" "${POD_IP}"
      "metrics_port" (int $v.autoscaler.ports.metrics)
      "schedulers" (list (printf "%s-schedulers.%s.svc:%d" $name .Release.Namespace (int $v.scheduler.ports.grpc)))
      "group_controller" $v.groupController
      "selector" (printf "app.kubernetes.io/part-of=tandem,app.kubernetes.io/instance=%s" .Release.Name)
      "lease_name" (printf "%s-autoscaler" $name) -}}
{{- range $role := list "prefill" "decode" -}}
{{- $pool := index $v $role -}}
{{- $bounds := ternary $pool.autoscale (dict "minGroups" 0 "maxGroups" 0) $pool.enabled -}}
{{- $_ := set $scaling $role (dict "min_groups" (int $bounds.minGroups) "max_groups" (int $bounds.maxGroups)) -}}
{{- end -}}
{{ toYaml (merge $scaling (deepCopy $v.autoscaler.settings)) }}
{{- end -}}
