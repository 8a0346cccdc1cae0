{{- /* A Service. Arguments: root, component, port. */ -}}
{{- define "warmpool.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "warmpool.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "warmpool.labels" . | nindent 4 }}
spec:
  selector: {{- include "warmpool.selector" . | nindent 4 }}
  ports:
    - {name: http, port: {{ .port }}, targetPort: http}
{{- end -}}
