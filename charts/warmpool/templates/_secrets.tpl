{{- /* A generated value that upgrades keep: an existing value in the cluster is reused. Arguments: (dict "root" $ "key" "master-key" "bytes" 48). */ -}}
{{- define "warmpool.kept" -}}
{{- $made := lookup "v1" "Secret" .root.Release.Namespace (include "warmpool.secret" .root) -}}
{{- $data := default dict (default dict $made).data -}}
{{- if hasKey $data .key }}{{ index $data .key | b64dec }}{{ else }}{{ randAlphaNum 48 }}{{ end -}}
{{- end -}}

{{- /* Passwords of the bundled Redis, generated once per rendering so that the ACL file and the URLs match. */ -}}
{{- define "warmpool.passwords" -}}
{{- $root := . -}}
{{- $names := list "redis-control-password" "redis-flower-password" "redis-producer-password" "postgres-password" -}}
{{- range $names }}
{{ . }}: {{ include "warmpool.kept" (dict "root" $root "key" .) }}
{{- end }}
{{- end -}}

{{- /* The Secret and key of each URL: (dict "name" … "key" …) as YAML. */ -}}
{{- define "warmpool.brokerRef" -}}
{{- with .Values.redis.existingSecret -}}
name: {{ default (include "warmpool.secret" $) .name }}
key: {{ if .name }}{{ .key }}{{ else }}broker-url{{ end }}
{{- end -}}
{{- end -}}
{{- define "warmpool.flowerBrokerRef" -}}
{{- with .Values.redis.existingSecret -}}
{{- if .name -}}
name: {{ .name }}
key: {{ default .key .flowerKey }}
{{- else -}}
name: {{ include "warmpool.secret" $ }}
key: flower-broker-url
{{- end -}}
{{- end -}}
{{- end -}}
{{- define "warmpool.producerBrokerRef" -}}
{{- with .Values.redis.existingSecret -}}
{{- if .name -}}
name: {{ .name }}
key: {{ default .key .producerKey }}
{{- else -}}
name: {{ include "warmpool.secret" $ }}
key: producer-broker-url
{{- end -}}
{{- end -}}
{{- end -}}
{{- define "warmpool.databaseRef" -}}
{{- with .Values.database.existingSecret -}}
name: {{ default (include "warmpool.secret" $) .name }}
key: {{ if .name }}{{ .key }}{{ else }}database-url{{ end }}
{{- end -}}
{{- end -}}
{{- define "warmpool.masterKeyRef" -}}
{{- with .Values.masterKey.existingSecret -}}
name: {{ default (include "warmpool.secret" $) .name }}
key: {{ if .name }}{{ .key }}{{ else }}master-key{{ end }}
{{- end -}}
{{- end -}}
{{- define "warmpool.flowerAuthRef" -}}
{{- with .Values.flower.auth.existingSecret -}}
name: {{ default (include "warmpool.secret" $) .name }}
key: {{ if .name }}{{ .key }}{{ else }}flower-basic-auth{{ end }}
{{- end -}}
{{- end -}}

{{- define "warmpool.boardAuthRef" -}}
{{- with .Values.board.auth.existingSecret -}}
name: {{ default (include "warmpool.secret" $) .name }}
key: {{ if .name }}{{ .key }}{{ else }}board-password{{ end }}
{{- end -}}
{{- end -}}

{{- define "warmpool.databaseUrl" -}}
{{- if .root.Values.database.bundled.enabled -}}
postgresql://warmpool:{{ index .passwords "postgres-password" }}@{{ include "warmpool.bundledHost" (dict "root" .root "component" "postgres") }}:5432/warmpool
{{- else -}}
{{ .root.Values.database.url }}
{{- end -}}
{{- end -}}
