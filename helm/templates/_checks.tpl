{{/*
What cannot work is refused before anything is installed; each message names the values.
*/}}

{{- define "tandem.check" -}}
{{- $v := .Values -}}
{{- $name := include "tandem.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) -}}
{{- fail (printf "name %s: services need letters, digits and -, a letter first; set fullnameOverride" $name) -}}
{{- end -}}
{{- if not (or $v.prefill.enabled $v.decode.enabled) -}}
{{- fail "prefill.enabled = false and decode.enabled = false: nothing would serve" -}}
{{- end -}}
{{- range $role := list "prefill" "decode" -}}
{{- $pool := index $v $role -}}
{{- if $pool.enabled -}}
{{- include "tandem.checkShape" (dict "root" $ "role" $role "pool" $pool) -}}
{{- include "tandem.checkLayout" (dict "root" $ "role" $role "pool" $pool) -}}
{{- include "tandem.checkPod" (dict "root" $ "role" $role "pool" $pool) -}}
{{- if eq $v.model.device "cuda" -}}
{{- include "tandem.checkMemory" (dict "root" $ "role" $role "pool" $pool) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "tandem.checkModel" $ -}}
{{- include "tandem.checkRdma" $ -}}
{{- include "tandem.checkScheduler" $ -}}
{{- if $v.autoscaler.enabled -}}
{{- include "tandem.checkAutoscaler" $ -}}
{{- end -}}
{{- include "tandem.checkDependencies" $ -}}
{{- end -}}

{{- define "tandem.checkShape" -}}
{{- $p := .pool -}}
{{- $r := .role -}}
{{- $facts := .root.Values.model.facts -}}
{{- if ne (int $p.ep) (mul $p.dp $p.tp | int) -}}
{{- fail (printf "%s.ep = %d: must be dp * tp = %d * %d = %d" $r (int $p.ep) (int $p.dp) (int $p.tp) (mul $p.dp $p.tp)) -}}
{{- end -}}
{{- if ne (int $p.ep) (mul $p.nodes $p.gpusPerNode | int) -}}
{{- fail (printf "%s.ep = %d: must be nodes * gpusPerNode = %d * %d = %d" $r (int $p.ep) (int $p.nodes) (int $p.gpusPerNode) (mul $p.nodes $p.gpusPerNode)) -}}
{{- end -}}
{{- if ne (mod $p.gpusPerNode $p.tp) 0 -}}
{{- fail (printf "%s.tp = %d: must divide gpusPerNode = %d, an instance does not span nodes" $r (int $p.tp) (int $p.gpusPerNode)) -}}
{{- end -}}
{{- if ne (mod $facts.routedExperts $p.ep) 0 -}}
{{- fail (printf "%s.ep = %d: must divide model.facts.routedExperts = %d" $r (int $p.ep) (int $facts.routedExperts)) -}}
{{- end -}}
{{- if ne (mod $facts.attentionHeads $p.tp) 0 -}}
{{- fail (printf "%s.tp = %d: must divide model.facts.attentionHeads = %d" $r (int $p.tp) (int $facts.attentionHeads)) -}}
{{- end -}}
{{- $need := div (add (sub (int .root.Values.contextTokens) 1) (int .root.Values.layout.blockTokens)) (int .root.Values.layout.blockTokens) -}}
{{- if lt (int $p.settings.blocks) (int $need) -}}
{{- fail (printf "%s.settings.blocks = %d: one sequence of contextTokens = %d needs %d blocks of layout.blockTokens = %d" $r (int $p.settings.blocks) (int .root.Values.contextTokens) (int $need) (int .root.Values.layout.blockTokens)) -}}
{{- end -}}
{{- $scale := $p.autoscale -}}
{{- if and .root.Values.autoscaler.enabled (or (gt (int $scale.minGroups) (int $p.groups)) (lt (int $scale.maxGroups) (int $p.groups))) -}}
{{- fail (printf "%s.groups = %d: must lie from autoscale.minGroups = %d to autoscale.maxGroups = %d" $r (int $p.groups) (int $scale.minGroups) (int $scale.maxGroups)) -}}
{{- end -}}
{{- if and (eq (int $p.rollout.maxUnavailable) 0) (eq (int $p.rollout.maxSurge) 0) -}}
{{- fail (printf "%s.rollout: maxUnavailable = 0 and maxSurge = 0: no group could be replaced" $r) -}}
{{- end -}}
{{- if and $p.exclusiveTopology (ne .root.Values.groupController "LeaderWorkerSet") -}}
{{- fail (printf "%s.exclusiveTopology = %s: only groupController = LeaderWorkerSet has it, not %s" $r $p.exclusiveTopology .root.Values.groupController) -}}
{{- end -}}
{{- end -}}

{{/* Blocks cross between the pools as they are, so both must be cut alike. */}}
{{- define "tandem.checkLayout" -}}
{{- $shared := .root.Values.layout -}}
{{- $role := .role -}}
{{- range $field, $value := .pool.layout -}}
{{- if ne (toString $value) (toString (index $shared $field)) -}}
{{- fail (printf "%s.layout.%s = %v: the other pool has layout.%s = %v, decode could not use prefill's blocks" $role $field $value $field (index $shared $field)) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkMemory" -}}
{{- $p := .pool -}}
{{- $v := .root.Values -}}
{{- $facts := $v.model.facts -}}
{{- $elementBytes := ternary 4 2 (eq $v.layout.dtype "float32") -}}
{{- $experts := divf $facts.expertGiB $p.ep -}}
{{- $kv := divf (mulf $p.settings.blocks $v.layout.blockTokens $facts.latentLayers $facts.latentWidth $elementBytes) 1073741824.0 -}}
{{- $need := addf $experts $facts.otherGiB $kv $p.gpu.reserveGiB -}}
{{- if gt $need (float64 $p.gpu.memoryGiB) -}}
{{- fail (printf "%s.gpu.memoryGiB = %v: ep = %d needs %.1f GiB a GPU: %.1f of experts (model.facts.expertGiB = %v over ep), %.1f of other weights, %.1f of latent (settings.blocks = %d), %.1f reserved; take a larger ep, fewer blocks or a larger card" .role $p.gpu.memoryGiB (int $p.ep) $need $experts $facts.expertGiB (float64 $facts.otherGiB) $kv (int $p.settings.blocks) (float64 $p.gpu.reserveGiB)) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkModel" -}}
{{- $v := .Values -}}
{{- $store := $v.model.store -}}
{{- if gt (int $v.contextTokens) (int $v.model.facts.contextTokens) -}}
{{- fail (printf "contextTokens = %d: the model knows model.facts.contextTokens = %d positions" (int $v.contextTokens) (int $v.model.facts.contextTokens)) -}}
{{- end -}}
{{- if and (gt (int $v.layout.draftTokens) 0) (eq (int $v.model.facts.mtpLayers) 0) -}}
{{- fail (printf "layout.draftTokens = %d: model.facts.mtpLayers = 0, set 0" (int $v.layout.draftTokens)) -}}
{{- end -}}
{{- if and $v.model.download.enabled (not $v.model.download.url) -}}
{{- fail "model.download.url is empty: model.download.enabled = true needs the directory to load from" -}}
{{- end -}}
{{- if and $v.model.download.enabled (eq $store.kind "image") -}}
{{- fail "model.store.kind = image: nothing can be downloaded into an image, take pvc, hostPath or scratch" -}}
{{- end -}}
{{- if and (eq $store.kind "scratch") (not $v.model.download.enabled) -}}
{{- fail "model.store.kind = scratch: starts empty, so model.download.enabled must be true" -}}
{{- end -}}
{{- if and (eq $v.jitCache.kind "pvc") (not $v.jitCache.claimName) -}}
{{- fail "jitCache.claimName is empty: jitCache.kind = pvc needs an existing claim" -}}
{{- end -}}
{{- $mode := $store.accessMode -}}
{{- if and (eq $store.kind "pvc") (not $store.claimName) -}}
{{- if and (hasPrefix "ReadWriteOnce" $mode) (eq $v.model.device "cuda") -}}
{{- fail (printf "model.store.accessMode = %s: scheduler, prefill and decode run on several nodes, take ReadWriteMany, or a claim of your own" $mode) -}}
{{- end -}}
{{- if eq $mode "ReadOnlyMany" -}}
{{- fail "model.store.accessMode = ReadOnlyMany: the claim that the chart makes starts empty, take ReadWriteMany, or name a filled one" -}}
{{- end -}}
{{- end -}}
{{- $directory := $store.directory -}}
{{- if ne (hasPrefix "/" $directory) (eq $store.kind "image") -}}
{{- fail (printf "model.store.directory = %s: model.store.kind = %s takes one that is %s" $directory $store.kind (ternary "absolute" "relative to the store" (eq $store.kind "image"))) -}}
{{- end -}}
{{- if has ".." (splitList "/" $directory) -}}
{{- fail (printf "model.store.directory = %s: must lie below the store" $directory) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkRdma" -}}
{{- $v := .Values -}}
{{- if and $v.rdma.enabled (eq $v.model.device "cpu") -}}
{{- fail "rdma.enabled = true: model.device = cpu reads over shared memory and TCP" -}}
{{- end -}}
{{- if and $v.rdma.enabled (eq $v.securityProfile "restricted") -}}
{{- fail "securityProfile = restricted: rdma.enabled = true pins memory, take rdma (IPC_LOCK) or privileged" -}}
{{- end -}}
{{- if and $v.rdma.enabled (not $v.rdma.resources) (ne $v.securityProfile "privileged") -}}
{{- fail "rdma.resources is empty: name the resource of the site's device plugin, such as {rdma/ib: 8}" -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkDependencies" -}}
{{- $v := .Values -}}
{{- range $name := list "redis" "nats" -}}
{{- $part := index $v $name -}}
{{- if and (eq $part.mode "external") (not $part.external.urlSecret.name) -}}
{{- fail (printf "%s.external.urlSecret.name is empty: %s.mode = external needs the secret that holds the URL" $name $name) -}}
{{- end -}}
{{- end -}}
{{- $late := ceil (max $v.redis.startTimeoutSeconds $v.nats.startTimeoutSeconds) -}}
{{- if and $v.doctor.hook (lt (int $v.doctor.timeoutSeconds) (add $late 60 | int)) -}}
{{- fail (printf "doctor.timeoutSeconds = %d: at least 60 more than redis.startTimeoutSeconds and nats.startTimeoutSeconds, %d" (int $v.doctor.timeoutSeconds) (add $late 60 | int)) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkAutoscaler" -}}
{{- $a := .Values.autoscaler.settings -}}
{{- $lease := default 15 $a.lease_duration_s -}}
{{- $least := addf (default 5 $a.lease_renew_s) (default 5 $a.api_timeout_s) -}}
{{- if le (float64 $lease) $least -}}
{{- fail (printf "autoscaler.settings.lease_duration_s = %v: must be over lease_renew_s + api_timeout_s = %v" $lease $least) -}}
{{- end -}}
{{- $hold := default 30 $a.hold_s -}}
{{- $interval := default 5 $a.interval_s -}}
{{- if lt (float64 $hold) (mulf 2 $interval) -}}
{{- fail (printf "autoscaler.settings.hold_s = %v: at least twice interval_s = %v" $hold $interval) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.checkScheduler" -}}
{{- $v := .Values -}}
{{- $s := $v.scheduler -}}
{{- include "tandem.checkPorts" (dict "part" "scheduler" "ranges" (list (list "grpc" $s.ports.grpc 1) (list "http" $s.ports.http 1) (list "metrics" $s.ports.metrics 1))) -}}
{{- include "tandem.checkEnvironment" (dict "root" . "part" "scheduler" "entries" $s.extraEnv "taken" list) -}}
{{- include "tandem.checkResources" (dict "part" "scheduler" "resources" $s.resources) -}}
{{- $hpa := $v.scheduler.autoscaling -}}
{{- if and $hpa.enabled (gt (int $hpa.minReplicas) (int $hpa.maxReplicas)) -}}
{{- fail (printf "scheduler.autoscaling.minReplicas = %d: at most maxReplicas = %d" (int $hpa.minReplicas) (int $hpa.maxReplicas)) -}}
{{- end -}}
{{- if and $hpa.enabled (not (dig "requests" "cpu" "" $s.resources)) -}}
{{- fail "scheduler.resources.requests.cpu is not set: scheduler.autoscaling measures use against it" -}}
{{- end -}}
{{- end -}}
