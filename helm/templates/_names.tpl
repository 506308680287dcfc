{{/* Names and labels. */}}

{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tandem
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
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The image of workers: cpu when the model runs there. */}}
{{- define "tandem.workerImageKind" -}}
{{- if eq .Values.model.device "cpu" }}cpu{{ else }}gpu{{ end -}}
{{- end -}}

{{/* What changes when the configuration does, so that pods are replaced. */}}
{{- define "tandem.configDigest" -}}
{{- include "tandem.config" . | sha256sum | trunc 16 -}}
{{- end -}}
