{{- /* The host name of a bundled server, valid in every namespace. Arguments: root, component. */ -}}
{{- define "warmpool.bundledHost" -}}
{{ include "warmpool.fullname" .root }}-{{ .component }}.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{- /* A server for trials: one replica, one volume, no backups. Arguments: root, component, given (its values), port, container (its YAML), volumes. */ -}}
{{- define "warmpool.bundled" -}}
{{- $name := printf "%s-%s" (include "warmpool.fullname" .root) .component -}}
{{- $who := dict "root" .root "component" .component -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "warmpool.labels" $who | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "warmpool.labels" $who | nindent 4 }}
spec:
  clusterIP: None
  selector: {{- include "warmpool.selector" $who | nindent 4 }}
  ports: [{name: {{ .component }}, port: {{ .port }}, targetPort: {{ .port }}}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{ $name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "warmpool.labels" $who | nindent 4 }}
spec:
  serviceName: {{ $name }}
  replicas: 1
  selector:
    matchLabels: {{- include "warmpool.selector" $who | nindent 6 }}
  template:
    metadata:
      labels: {{- include "warmpool.labels" $who | nindent 8 }}
    spec:
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: 60
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with include "warmpool.controlPriorityClass" .root }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 999
        runAsGroup: 999
        fsGroup: 999
        # Otherwise every new pod gets data that the whole group may change.
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: {type: RuntimeDefault}
      containers:
        - name: {{ .component }}
          image: {{ include "warmpool.bundledImage" .given }}
          securityContext: {{- include "warmpool.containerSecurity" .root | nindent 12 }}
          resources: {{- toYaml .given.resources | nindent 12 }}
          ports: [{name: {{ .component }}, containerPort: {{ .port }}}]
          {{- .container | nindent 10 }}
      volumes: {{- .volumes | nindent 8 }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        accessModes: [ReadWriteOnce]
        {{- with .given.storageClass }}
        storageClassName: {{ . }}
        {{- end }}
        resources: {requests: {storage: {{ .given.storage }}}}
{{- end -}}
