{{/* Environment, volumes and security that pods share. */}}

{{/* Addresses of Redis and NATS, with their passwords, from secrets alone. */}}
{{- define "tandem.dependencyEnvironment" -}}
{{- $v := .Values -}}
{{- range $name := list "redis" "nats" -}}
{{- $part := index $v $name -}}
{{- $upper := upper $name -}}
{{- if eq $part.mode "external" }}
- name: TANDEM_{{ $upper }}_URL
  valueFrom:
    secretKeyRef: { name: {{ $part.external.urlSecret.name | quote }}, key: {{ $part.external.urlSecret.key | quote }} }
{{- else }}
- name: {{ $upper }}_PASSWORD
  valueFrom:
    secretKeyRef: { name: {{ include "tandem.passwordSecret" (dict "root" $ "name" $name) | quote }}, key: {{ $part.passwordSecret.key | quote }} }
- name: TANDEM_{{ $upper }}_URL
  value: {{ include "tandem.bundledUrl" (dict "root" $ "name" $name) }}
{{- end }}
{{- end }}
{{- if $v.tls.caSecret.name }}
- name: SSL_CERT_FILE
  value: /etc/tandem-ca/ca.crt
{{- end }}
{{- end -}}

{{- define "tandem.passwordSecret" -}}
{{- $own := printf "%s-%s" (include "tandem.fullname" .root) .name -}}
{{- default $own (index .root.Values .name).passwordSecret.name -}}
{{- end -}}

{{/* A password other than the random one must be fit for a URL. */}}
{{- define "tandem.bundledUrl" -}}
{{- $host := printf "%s-%s" (include "tandem.fullname" .root) .name -}}
{{- $port := (index .root.Values .name).port | int -}}
{{- if eq .name "redis" -}}
redis://:$(REDIS_PASSWORD)@{{ $host }}:{{ $port }}/0
{{- else -}}
nats://tandem:$(NATS_PASSWORD)@{{ $host }}:{{ $port }}
{{- end -}}
{{- end -}}

{{- define "tandem.podAddress" -}}
- name: POD_IP
  valueFrom:
    fieldRef: { fieldPath: status.podIP }
{{- end -}}

{{- define "tandem.rdmaEnvironment" -}}
{{- $r := .Values.rdma -}}
{{- if $r.enabled }}
{{- with $r.hcas }}
- name: NCCL_IB_HCA
  value: {{ join "," . | quote }}
- name: NVSHMEM_HCA_LIST
  value: {{ join "," . | quote }}
- name: UCX_NET_DEVICES
  value: "{{ range $i, $hca := . }}{{ if $i }},{{ end }}{{ $hca }}:1{{ end }}"
{{- end }}
{{- if ne (toString $r.gidIndex) "" }}
{{- range $name := list "NCCL_IB_GID_INDEX" "NVSHMEM_IB_GID_INDEX" "UCX_IB_GID_INDEX" }}
- name: {{ $name }}
  value: {{ $r.gidIndex | quote }}
{{- end }}
{{- end }}
{{- if ne (toString $r.trafficClass) "" }}
{{- range $name := list "NCCL_IB_TC" "NVSHMEM_IB_TRAFFIC_CLASS" "UCX_IB_TRAFFIC_CLASS" }}
- name: {{ $name }}
  value: {{ $r.trafficClass | quote }}
{{- end }}
{{- end }}
{{- with $r.interface }}
{{- range $name := list "NCCL_SOCKET_IFNAME" "GLOO_SOCKET_IFNAME" "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME" }}
- name: {{ $name }}
  value: {{ $r.interface | quote }}
{{- end }}
{{- end }}
{{- range $name, $value := $r.env }}
- name: {{ $name }}
  value: {{ include "tandem.plain" $value | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* A number as it was written: one out of a file is a float, which 1e+06 is the text of. */}}
{{- define "tandem.plain" -}}
{{- if kindIs "float64" . }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
{{- with int .Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: { type: RuntimeDefault }
{{- end -}}

{{- define "tandem.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL] }
{{- end -}}

{{/* of a worker, by securityProfile */}}
{{- define "tandem.workerSecurity" -}}
{{- if eq .Values.securityProfile "privileged" -}}
privileged: true
readOnlyRootFilesystem: true
{{- else if eq .Values.securityProfile "rdma" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: { drop: [ALL], add: [IPC_LOCK] }
{{- else -}}
{{ include "tandem.restricted" . }}
{{- end -}}
{{- end -}}

{{- define "tandem.baseVolumes" -}}
- name: config
  configMap: { name: {{ include "tandem.fullname" . }}-config }
- name: tmp
  emptyDir: {}
{{- if .Values.tls.caSecret.name }}
- name: ca
  secret:
    secretName: {{ .Values.tls.caSecret.name | quote }}
    items: [{ key: {{ .Values.tls.caSecret.key | quote }}, path: ca.crt }]
{{- end }}
{{- end -}}

{{- define "tandem.baseMounts" -}}
- { name: config, mountPath: /etc/tandem, readOnly: true }
- { name: tmp, mountPath: /tmp }
{{- if .Values.tls.caSecret.name }}
- { name: ca, mountPath: /etc/tandem-ca, readOnly: true }
{{- end }}
{{- end -}}

{{- define "tandem.modelVolume" -}}
{{- $store := .Values.model.store -}}
{{- if ne $store.kind "image" }}
- name: model
{{- if eq $store.kind "pvc" }}
  persistentVolumeClaim: { claimName: {{ default (printf "%s-model" (include "tandem.fullname" .)) $store.claimName | quote }} }
{{- else if eq $store.kind "hostPath" }}
  hostPath: { path: {{ $store.hostPath | quote }}, type: Directory }
{{- else }}
  emptyDir: {}
{{- end }}
{{- end }}
{{- if and .Values.model.download.enabled .Values.model.download.caSecret.name }}
- name: download-ca
  secret:
    secretName: {{ .Values.model.download.caSecret.name | quote }}
    items: [{ key: {{ .Values.model.download.caSecret.key | quote }}, path: ca.crt }]
{{- end }}
{{- end -}}

{{- define "tandem.modelMount" -}}
{{- if ne .Values.model.store.kind "image" }}
- { name: model, mountPath: /models, readOnly: true }
{{- end }}
{{- end -}}

{{/* Fills the store before the pod starts; what is there and has its checksum is left alone. */}}
{{- define "tandem.download" -}}
{{- $d := .root.Values.model.download -}}
{{- if $d.enabled }}
- name: download
  image: {{ include "tandem.image" (dict "root" .root "kind" .imageKind) }}
  imagePullPolicy: {{ (index .root.Values.images .imageKind).pullPolicy }}
  command: [tandem, fetch]
  args:
    - --from
    - {{ $d.url | quote }}
    - --sums
    - {{ $d.sums | quote }}
    - --into
    - {{ include "tandem.modelPath" .root }}
{{- range .only }}
    - --only
    - {{ . | quote }}
{{- end }}
  env:
    - { name: HOME, value: /tmp }
{{- if $d.tokenSecret.name }}
    - name: TANDEM_FETCH_TOKEN
      valueFrom:
        secretKeyRef: { name: {{ $d.tokenSecret.name | quote }}, key: {{ $d.tokenSecret.key | quote }} }
{{- end }}
{{- if $d.caSecret.name }}
    - { name: SSL_CERT_FILE, value: /etc/tandem-download-ca/ca.crt }
{{- end }}
{{- with $d.extraEnv }}
    {{- toYaml . | nindent 4 }}
{{- end }}
  securityContext: {{- include "tandem.restricted" .root | nindent 4 }}
  resources:
    requests: { cpu: "1", memory: 512Mi }
    limits: { memory: 2Gi }
  volumeMounts:
    - { name: model, mountPath: /models }
    - { name: tmp, mountPath: /tmp }
{{- if $d.caSecret.name }}
    - { name: download-ca, mountPath: /etc/tandem-download-ca, readOnly: true }
{{- end }}
{{- end }}
{{- end -}}
