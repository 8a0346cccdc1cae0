{{- /* A value as TOML. Helm's toToml writes whole numbers as floats. */ -}}
{{- define "warmpool.tomlValue" -}}
{{- if kindIs "map" . -}}
{ {{- $first := true }}{{ range $key, $value := . }}{{ if not $first }}, {{ end }}{{ $first = false }}{{ $key | toJson }} = {{ include "warmpool.tomlValue" $value }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[{{- range $i, $value := . }}{{ if $i }}, {{ end }}{{ include "warmpool.tomlValue" $value }}{{ end -}}]
{{- else if kindIs "float64" . -}}
{{- if eq (floor .) . }}{{ printf "%.0f" . }}{{ else }}{{ . }}{{ end -}}
{{- else -}}
{{- . | toJson -}}
{{- end -}}
{{- end -}}

{{- define "warmpool.tomlTable" -}}
{{- range $key, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "warmpool.tomlValue" $value }}
{{- end }}
{{- end }}
{{- end -}}

{{- /* warmpool.toml. The chart sets addresses, names and the driver; values cannot override them. */ -}}
{{- define "warmpool.toml" -}}
[pool]
driver = "kubernetes"
{{- include "warmpool.tomlTable" .Values.config.pool }}

[kubernetes]
namespace = {{ include "warmpool.workerNamespace" . | toJson }}
anchor = {{ include "warmpool.anchor" . | toJson }}
worker_priority_class = {{ include "warmpool.workerPriorityClass" . | toJson }}
placeholder_priority_class = {{ include "warmpool.placeholderPriorityClass" . | toJson }}
{{- include "warmpool.tomlTable" .Values.config.kubernetes }}
{{ range $name, $profile := .Values.config.profiles }}
[profiles.{{ $name }}]
{{- if hasKey $profile "image" }}
{{- include "warmpool.tomlTable" $profile }}
{{- else }}
{{- $ours := dict "image" (include "warmpool.image" $) "command" (list "warmpool-init" "python" "-m" "pool.drivers.local.worker") "run_as_user" 65532.0 }}
{{- include "warmpool.tomlTable" (merge (deepCopy $profile) $ours) }}
{{- end }}
{{ end }}
[orgs]
auto_create = {{ .Values.config.orgsAutoCreate }}
{{ range $name, $org := .Values.config.orgs }}
[orgs.{{ $name | toJson }}]
{{- include "warmpool.tomlTable" $org }}
{{ end }}
{{- end -}}
