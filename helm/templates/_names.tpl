{{/* Names and labels. */}}

{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- /* Names of pods and of what their controllers label them with must stay under 63 with what is appended. */ -}}
{{- if gt (len $full) 40 -}}
{{- printf "%s-%s" ($full | trunc 33 | trimSuffix "-") ($full | sha256sum | trunc 6) -}}
{{- else -}}
{{- $full -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The prefix of keys and subjects. Another release on the same Redis or NATS has another, unless both say the same. */}}
{{- define "tandem.cluster" -}}
{{- $own := printf "%s-%s" .Release.Namespace (include "tandem.fullname" .) -}}
{{- if .Values.cluster -}}
{{- .Values.cluster -}}
{{- else if gt (len $own) 63 -}}
{{- printf "%s-%s" ($own | trunc 50 | trimSuffix "-") ($own | sha256sum | trunc 12) -}}
{{- else -}}
{{- $own -}}
{{- end -}}
{{- end -}}

{{- define "tandem.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Of pods: nothing that a new version of the chart alone would change, or it would restart every group. */}}
{{- define "tandem.podLabels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/part-of: tandem
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* image of a kind, cpu or gpu */}}
{{- define "tandem.image" -}}
{{- $image := index .root.Values.images .kind -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- $tag := default (printf "%s-%s" .root.Chart.AppVersion .kind) $image.tag -}}
{{- if eq $tag "latest" -}}
{{- fail (printf "images.%s.tag = latest: name a version, or pods of one group run different code" .kind) -}}
{{- end -}}
{{- printf "%s:%s" $image.repository $tag -}}
{{- end -}}
{{- end -}}

{{- define "tandem.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The image of workers: cpu when the model runs there. */}}
{{- define "tandem.workerImageKind" -}}
{{- if eq .Values.model.device "cpu" }}cpu{{ else }}gpu{{ end -}}
{{- end -}}

{{/*
What changes when the part of the file that a role reads does, so that its pods are replaced and no others. More groups
are no change of those that run.
*/}}
{{- define "tandem.configDigest" -}}
{{- $config := include "tandem.config" .root | fromYaml -}}
{{- if has .role (list "prefill" "decode") -}}
{{- $pool := index $config .role -}}
{{- $_ := unset $pool.parallel "groups" -}}
{{- $config = omit $config "autoscaler" "scheduler" (ternary "decode" "prefill" (eq .role "prefill")) -}}
{{- else if eq .role "scheduler" -}}
{{- $_ := set $config "prefill" (pick $config.prefill "chunk_tokens") -}}
{{- $config = omit $config "autoscaler" "decode" -}}
{{- end -}}
{{- toJson $config | sha256sum | trunc 16 -}}
{{- end -}}
