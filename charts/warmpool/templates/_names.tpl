{{- define "warmpool.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* Base of object names: short enough that it fits into 63 characters with every suffix. */ -}}
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
{{- /* Namespaces are cluster-wide, so the name includes the namespace of the release. */ -}}
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

{{- /* Selector of a Deployment; it must not change during the life of a release. Arguments: (dict "root" $ "component" "beat"). */ -}}
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

{{- /* A third-party image: its name and, if set, its digest, which takes precedence over the tag. */ -}}
{{- define "warmpool.bundledImage" -}}
{{ .image }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
