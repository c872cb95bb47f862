{{- define "tapestore.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 52 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "tapestore.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tapestore.labels" -}}
{{ include "tapestore.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "tapestore.image" -}}
{{- if .Values.image.digest }}{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}{{ else }}{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}{{ end }}
{{- end }}

{{- define "tapestore.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}{{ .Values.serviceAccount.name }}{{ else if .Values.serviceAccount.create }}{{ include "tapestore.name" . }}{{ else }}default{{ end }}
{{- end }}

{{- define "tapestore.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "tapestore.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* Settings that cannot work, found before anything is installed. */ -}}
{{- define "tapestore.check" -}}
{{- if and (not .Values.store.url) (not .Values.store.existingSecret) }}{{ fail "set store.url or store.existingSecret" }}{{ end }}
{{- if and .Values.store.url .Values.store.existingSecret }}{{ fail "set store.url or store.existingSecret, not both" }}{{ end }}
{{- if not .Values.insecure }}
{{- if not .Values.tls.existingSecret }}{{ fail "set tls.existingSecret, or insecure=true: the server refuses to listen for other pods without TLS" }}{{ end }}
{{- if and (not .Values.auth.existingSecret) (not .Values.auth.oidc.issuer) }}{{ fail "set auth.existingSecret or auth.oidc.issuer, or insecure=true: the server refuses to listen for other pods without authentication" }}{{ end }}
{{- end }}
{{- if and .Values.auth.oidc.issuer (not .Values.auth.oidc.audience) }}{{ fail "auth.oidc.issuer needs auth.oidc.audience" }}{{ end }}
{{- $engine := .Values.store.engine }}
{{- if .Values.store.existingSecret }}
{{- if not (regexMatch "^(postgres|alloydb|bigtable|spanner|sqlite|memory)$" $engine) }}{{ fail "store.existingSecret needs store.engine: postgres, alloydb, bigtable, spanner, sqlite or memory" }}{{ end }}
{{- else }}
{{- if $engine }}{{ fail "store.engine goes with store.existingSecret; store.url names its engine itself" }}{{ end }}
{{- if regexMatch "^(postgres(ql)?|alloydb|bigtable|spanner)://" .Values.store.url }}{{ $engine = "served" }}
{{- else if regexMatch "^memory(:|$)" .Values.store.url }}{{ $engine = "memory" }}
{{- else }}{{ $engine = "sqlite" }}{{ end }}
{{- end }}
{{- if and (eq $engine "sqlite") (not .Values.persistence.enabled) }}{{ fail "a store in a file needs persistence.enabled=true" }}{{ end }}
{{- if and (eq $engine "memory") (gt (int .Values.replicas) 1) }}{{ fail "a store in memory goes with replicas=1" }}{{ end }}
{{- if not (regexMatch "^(RollingUpdate|Recreate)$" .Values.strategy) }}{{ fail "strategy is RollingUpdate or Recreate" }}{{ end }}
{{- with .Values.retention }}
{{- $archive := default "" .archive }}
{{- range $name, $age := dict "journals" .journals "feed" .feed "tasks" .tasks "deadTasks" .deadTasks }}
{{- if and $age (not (regexMatch "^[0-9]+[dwh]" (printf "%v" $age))) }}{{ fail (printf "retention.%s is a duration of at least a day, such as 90d" $name) }}{{ end }}
{{- end }}
{{- if not (regexMatch "^[0-9]+$" (printf "%v" .pace)) }}{{ fail "retention.pace is a whole number, 0 for no limit" }}{{ end }}
{{- if and .journals (not $archive) }}{{ fail "retention.journals needs retention.archive: gs://BUCKET, /archive, or none" }}{{ end }}
{{- if and (not .journals) (or $archive .feed) }}{{ fail "retention.archive and retention.feed go with retention.journals" }}{{ end }}
{{- if and $archive (not (regexMatch "^(none|gs://.+|/archive(/.*)?)$" $archive)) }}{{ fail "retention.archive is gs://BUCKET, /archive or a directory in it, or none: other directories end with the pod" }}{{ end }}
{{- if and (regexMatch "^/archive" $archive) (not .archiveClaim) }}{{ fail "retention.archive in /archive needs retention.archiveClaim" }}{{ end }}
{{- if and .archiveClaim (not (regexMatch "^/archive" $archive)) }}{{ fail "retention.archiveClaim is for retention.archive=/archive" }}{{ end }}
{{- end }}
{{- if .Values.migrate.enabled }}
{{- if and (ne .Values.strategy "Recreate") (gt (int .Values.replicas) 0) }}{{ fail "migrate.enabled needs strategy=Recreate or replicas=0: old servers may not go on with the new schema, see docs/compatibility.md" }}{{ end }}
{{- if not .Values.migrate.existingSecret }}{{ fail "migrate.enabled needs migrate.existingSecret" }}{{ end }}
{{- if or (eq $engine "sqlite") (eq $engine "memory") }}{{ fail "migrate.enabled goes with an engine behind a server: the job has no volume, and a server creates and migrates its file itself" }}{{ end }}
{{- end }}
{{- end }}
