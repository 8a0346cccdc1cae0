{{- define "warmpool.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Names of objects: short enough that every suffix of ours fits into 63 characters. */ -}}
{{- define "warmpool.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "warmpool.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "warmpool.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "warmpool.anchor" -}}{{ include "warmpool.fullname" . }}-anchor{{- end -}}
{{- define "warmpool.secret" -}}{{ include "warmpool.fullname" . }}{{- end -}}
{{- /* Namespaces are the whole cluster's, so the release's own namespace is in the name. */ -}}
{{- define "warmpool.workerNamespace" -}}
{{- $place := list .Release.Namespace (include "warmpool.fullname" .) | uniq | join "-" | trunc 55 | trimSuffix "-" -}}
{{- default (printf "%s-workers" $place) .Values.workers.namespace -}}
{{- end -}}
{{- define "warmpool.controlPriorityClass" -}}
{{- with .Values.priorityClasses.controlPlane -}}
{{- if .create }}{{ default (printf "%s-%s-control-%d-%s" $.Release.Namespace (include "warmpool.fullname" $) (int64 .value) (.preemptionPolicy | lower)) .name }}{{ else }}{{ .name }}{{ end -}}
{{- end -}}
{{- end -}}
{{- define "warmpool.workerPriorityClass" -}}
{{- if .Values.priorityClasses.worker.create }}{{ default (printf "%s-%s-worker-%d" .Release.Namespace (include "warmpool.fullname" .) (int64 .Values.priorityClasses.worker.value)) .Values.priorityClasses.worker.name }}{{ else }}{{ .Values.priorityClasses.worker.name }}{{ end -}}
{{- end -}}
{{- define "warmpool.placeholderPriorityClass" -}}
{{- if .Values.priorityClasses.placeholder.create }}{{ default (printf "%s-%s-placeholder" .Release.Namespace (include "warmpool.fullname" .)) .Values.priorityClasses.placeholder.name }}{{ else }}{{ .Values.priorityClasses.placeholder.name }}{{ end -}}
{{- end -}}

{{- /* What a Deployment selects by; it never changes for the life of a release. Takes (dict "root" $ "component" "beat"). */ -}}
{{- define "warmpool.selector" -}}
app.kubernetes.io/name: {{ include "warmpool.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "warmpool.labels" -}}
{{ include "warmpool.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: warmpool
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "warmpool.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ default $.Chart.AppVersion .tag }}{{ end -}}
{{- end -}}
{{- end -}}

{{- /* An image that is not ours, by its name and, if there is one, its digest: which then decides, whatever the tag. */ -}}
{{- define "warmpool.bundledImage" -}}
{{ .image }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
