{{- define "gpuspawner.name" -}}
{{- $own := ternary .Release.Name (printf "%s-gpuspawner" .Release.Name) (contains "gpuspawner" .Release.Name) -}}
{{- .Values.fullnameOverride | default $own | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "gpuspawner.selector" -}}
app.kubernetes.io/name: gpuspawner
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Takes a list of the root and the part's name. */ -}}
{{- define "gpuspawner.labels" -}}
{{- $root := index . 0 -}}
{{ include "gpuspawner.selector" $root }}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "gpuspawner.image" -}}
{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- define "gpuspawner.account" -}}
{{ ternary (include "gpuspawner.name" .) .Values.rights.serviceAccount .Values.rights.create }}
{{- end }}

{{- define "gpuspawner.workspaces" -}}
{{ .Values.workspaces.namespace | default .Release.Namespace }}
{{- end }}

{{- define "gpuspawner.secret" -}}
{{ .Values.existingSecret | default (printf "%s-secret" (include "gpuspawner.name" .)) }}
{{- end }}

{{- /* The Secret with the token that the chart makes for Prometheus; "" where it makes none. */ -}}
{{- define "gpuspawner.metricsSecret" -}}
{{- with .Values.monitoring.serviceMonitor -}}
{{- if and .enabled (not .tokenSecret) -}}
{{ include "gpuspawner.name" $ }}-metrics
{{- end -}}
{{- end -}}
{{- end }}

{{- define "gpuspawner.claim" -}}
{{ .Values.persistence.existingClaim | default (printf "%s-data" (include "gpuspawner.name" .)) }}
{{- end }}

{{- define "gpuspawner.catalog" -}}
{{- if kindIs "string" .Values.catalog -}}
{{ .Values.catalog }}
{{- else -}}
{{ toYaml .Values.catalog }}
{{- end -}}
{{- end }}

{{- /* The restricted Pod Security Standard, of pod and container. */ -}}
{{- define "gpuspawner.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "gpuspawner.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "gpuspawner.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}
