{{- /* The values of a component, merged over `defaults`. Arguments: (dict "root" $ "values" .Values.beat). */ -}}
{{- define "warmpool.component" -}}
{{- $own := dict -}}
{{- range $key, $value := .values }}{{ if not (kindIs "invalid" $value) }}{{ $_ := set $own $key $value }}{{ end }}{{ end -}}
{{- mergeOverwrite (deepCopy .root.Values.defaults) $own | toYaml -}}
{{- end -}}

{{- define "warmpool.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "warmpool.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "warmpool.databaseEnv" -}}
- name: WARMPOOL_DATABASE_URL
  valueFrom: {secretKeyRef: {{ include "warmpool.databaseRef" . | fromYaml | toJson }}}
{{- end -}}

{{- define "warmpool.plainEnv" -}}
- {name: WARMPOOL_CONFIG, value: /etc/warmpool/warmpool.toml}
- {name: WARMPOOL_DATA_DIR, value: /tmp/warmpool}
- {name: WARMPOOL_RUN_LOG, value: json}
- {name: WARMPOOL_RUN_READY_FILE, value: /run/warmpool/ready}
- {name: WARMPOOL_RUN_ALIVE_FILE, value: /run/warmpool/alive}
{{- end -}}

{{- /* Metrics of the process, on the port named metrics. */ -}}
{{- define "warmpool.metricsEnv" -}}
- {name: WARMPOOL_METRICS_HOST, value: 0.0.0.0}
- {name: WARMPOOL_METRICS_PORT, value: "9107"}
{{- end -}}

{{- /* Each component gets only the secrets that it uses. */ -}}
{{- define "warmpool.brokerEnv" -}}
{{ include "warmpool.plainEnv" . }}
- name: WARMPOOL_BROKER_URL
  valueFrom: {secretKeyRef: {{ include "warmpool.brokerRef" . | fromYaml | toJson }}}
{{- end -}}

{{- define "warmpool.lookingEnv" -}}
{{ include "warmpool.brokerEnv" . }}
{{ include "warmpool.databaseEnv" . }}
{{- end -}}

{{- define "warmpool.env" -}}
{{ include "warmpool.lookingEnv" . }}
{{ include "warmpool.keysEnv" . }}
{{- end -}}

{{- define "warmpool.keysEnv" -}}
- name: WARMPOOL_MASTER_KEY
  valueFrom: {secretKeyRef: {{ include "warmpool.masterKeyRef" . | fromYaml | toJson }}}
{{- with .Values.masterKey.previousSecret }}{{ if .name }}
- name: WARMPOOL_MASTER_KEY_PREVIOUS
  valueFrom: {secretKeyRef: {{ dict "name" .name "key" .key | toJson }}}
{{- end }}{{ end }}
{{- with .Values.masterKey.nextSecret }}{{ if .name }}
- name: WARMPOOL_MASTER_KEY_NEXT
  valueFrom: {secretKeyRef: {{ dict "name" .name "key" .key | toJson }}}
{{- end }}{{ end }}
{{- end -}}

{{- define "warmpool.mounts" -}}
- {name: config, mountPath: /etc/warmpool, readOnly: true}
- {name: run, mountPath: /run/warmpool}
- {name: tmp, mountPath: /tmp}
{{- if .Values.tls.existingSecret }}
- {name: tls, mountPath: /etc/warmpool-tls, readOnly: true}
{{- end }}
{{- end -}}

{{- /* Arguments: (dict "root" $ "config" name-of-the-ConfigMap). */ -}}
{{- define "warmpool.volumes" -}}
- name: config
  configMap: {name: {{ .config }}}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: 256Mi}
{{- with .root.Values.tls.existingSecret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* Restarts a process that is stuck. A process that waits for Redis or the database is not restarted.
       A stuck process does not react to SIGTERM, so its grace period is short. */ -}}
{{- define "warmpool.fileProbes" -}}
{{- with .Values.probes }}
startupProbe:
  exec: {command: [warmpool-alive, /run/warmpool/alive, {{ .silenceSeconds | quote }}]}
  periodSeconds: 2
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: {{ .startFailures }}
livenessProbe:
  exec: {command: [warmpool-alive, /run/warmpool/alive, {{ .silenceSeconds | quote }}]}
  periodSeconds: {{ .periodSeconds }}
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: {{ .failures }}
  terminationGracePeriodSeconds: {{ .graceSeconds }}
readinessProbe:
  exec: {command: [warmpool-alive, /run/warmpool/ready, {{ .silenceSeconds | quote }}]}
  periodSeconds: 5
  timeoutSeconds: {{ .timeoutSeconds }}
{{- end }}
{{- end -}}

{{- /* Arguments: (dict "root" $ "path" "/healthcheck"). The container's port is named http. */ -}}
{{- define "warmpool.httpProbes" -}}
{{- $get := dict "path" .path "port" "http" -}}
{{- with .root.Values.probes }}
startupProbe:
  httpGet: {{ $get | toJson }}
  periodSeconds: 2
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: {{ .startFailures }}
livenessProbe:
  httpGet: {{ $get | toJson }}
  periodSeconds: {{ .periodSeconds }}
  timeoutSeconds: {{ .timeoutSeconds }}
  failureThreshold: {{ .failures }}
  terminationGracePeriodSeconds: {{ .graceSeconds }}
readinessProbe:
  httpGet: {{ $get | toJson }}
  periodSeconds: 5
  timeoutSeconds: {{ .timeoutSeconds }}
{{- end }}
{{- end -}}

{{- /* A Deployment. Arguments: root, component, values, command, env, probes (both rendered); optional: api, ports, waits. */ -}}
{{- define "warmpool.deployment" -}}
{{- $root := .root -}}
{{- $name := printf "%s-%s" (include "warmpool.fullname" $root) .component -}}
{{- $own := include "warmpool.component" (dict "root" $root "values" .values) | fromYaml -}}
{{- $who := dict "root" $root "component" .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels: {{- include "warmpool.labels" $who | nindent 4 }}
spec:
  {{- if not (and $root.Values.keda.enabled (has .component (list "acquire" "bind"))) }}
  replicas: {{ $own.replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  selector:
    matchLabels: {{- include "warmpool.selector" $who | nindent 6 }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxUnavailable: 0, maxSurge: 1}
  template:
    metadata:
      labels:
        {{- include "warmpool.labels" $who | nindent 8 }}
        {{- if has .component (list "acquire" "fleet" "bind" "passes" "beat" "flower" "exporter") }}
        warmpool.dev/client: "true"
        {{- end }}
        {{- with $own.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/config: {{ include "warmpool.toml" $root | sha256sum }}
        checksum/secrets: {{ list $root.Values.masterKey $root.Values.redis $root.Values.database $root.Values.flower.auth $root.Values.board.auth $root.Values.tls | toJson | sha256sum }}
        {{- with $own.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: {{ default false .api }}
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ $own.terminationGracePeriodSeconds }}
      securityContext: {{- include "warmpool.podSecurity" $root | nindent 8 }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with default (include "warmpool.controlPriorityClass" $root) $own.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      {{- with $own.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $own.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $own.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $own.topologySpreadKeys }}
      topologySpreadConstraints:
        {{- range . }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- include "warmpool.selector" $who | nindent 14 }}
        {{- end }}
      {{- end }}
      {{- if .waits }}
      initContainers:
        - name: wait-for-migrations
          image: {{ include "warmpool.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: [warmpool-init, warmpool, migrate, --wait, {{ $root.Values.migrate.waitSeconds | quote }}]
          env:
            {{- include "warmpool.plainEnv" $root | nindent 12 }}
            {{- include "warmpool.databaseEnv" $root | nindent 12 }}
          securityContext: {{- include "warmpool.containerSecurity" $root | nindent 12 }}
          resources: {{- toYaml $root.Values.migrate.resources | nindent 12 }}
          volumeMounts: {{- include "warmpool.mounts" $root | nindent 12 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "warmpool.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          command: {{ prepend .command "warmpool-init" | toJson }}
          env:
            {{- .env | nindent 12 }}
            {{- with $own.extraEnv }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with .ports }}
          ports: {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- .probes | nindent 10 }}
          securityContext: {{- include "warmpool.containerSecurity" $root | nindent 12 }}
          resources: {{- toYaml $own.resources | nindent 12 }}
          volumeMounts:
            {{- include "warmpool.mounts" $root | nindent 12 }}
            {{- with $own.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
        {{- with $own.extraContainers }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      volumes:
        {{- include "warmpool.volumes" (dict "root" $root "config" (include "warmpool.fullname" $root)) | nindent 8 }}
        {{- with $own.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
