{{- define "warmpool.dnsEgress" -}}
- to:
    - namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: {{ .Values.networkPolicy.dns.namespace }}}}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end -}}

{{- /* Peers of a server: the pods of the bundled one, else the addresses in values. Arguments: (dict "root" $ "what" "redis"). */ -}}
{{- define "warmpool.serverEgress" -}}
{{- $given := index .root.Values.networkPolicy .what -}}
{{- $bundled := (index .root.Values .what).bundled.enabled -}}
- ports:
    - {protocol: TCP, port: {{ if $bundled }}{{ eq .what "redis" | ternary 6379 5432 }}{{ else }}{{ $given.port }}{{ end }}}
    {{- if and (not $bundled) $given.sentinelPort }}
    - {protocol: TCP, port: {{ $given.sentinelPort }}}
    {{- end }}
  {{- if $bundled }}
  to:
    - podSelector:
        matchLabels: {{- include "warmpool.selector" (dict "root" .root "component" (eq .what "redis" | ternary "redis" "postgres")) | nindent 10 }}
  {{- else if $given.to }}
  to: {{- toYaml $given.to | nindent 4 }}
  {{- end }}
{{- end -}}
