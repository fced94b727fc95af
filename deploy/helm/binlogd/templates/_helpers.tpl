{{- define "binlogd.name" -}}
{{- if contains "binlogd" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-binlogd{{ end }}
{{- end }}

{{- define "binlogd.labels" -}}
{app.kubernetes.io/name: binlogd, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end }}

{{- define "binlogd.image" -}}
{{- with .Values.image }}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- /* The configuration: what is known here, and the values, which win. */}}
{{- define "binlogd.toml" -}}
{{- $name := include "binlogd.name" . }}
{{- $known := dict "addr" "0.0.0.0:8250" "node-id" (printf "%s-0" $name) "advertise-addr" (printf "%s-0.%s:8250" $name $name) }}
{{- $security := dict }}
{{- if .Values.tls.secretName }}
{{- $security = dict "ssl-ca" "/etc/binlogd-tls/ca.crt" "ssl-cert" "/etc/binlogd-tls/tls.crt" "ssl-key" "/etc/binlogd-tls/tls.key" }}
{{- with .Values.tls.clientNames }}{{ $_ := set $security "cert-allowed-cn" . }}{{ end }}
{{- end }}
{{- with .Values.secret.adminToken }}{{ $_ := set $security "admin-token-file" (printf "/etc/binlogd-secret/%s" .) }}{{ end }}
{{- if $security }}{{ $_ := set $known "security" $security }}{{ end }}
{{- with .Values.secret.replicaPassword }}
{{- $_ := set $known "syncer" (dict "to" (dict "password-file" (printf "/etc/binlogd-secret/%s" .))) }}
{{- end }}
{{- include "binlogd.table" (dict "path" "" "table" (mergeOverwrite $known (deepCopy .Values.config))) | trim }}
{{- end }}

{{- /* A table of TOML. JSON's texts, numbers and lists are TOML's too; Helm's own toToml makes fractions of whole numbers. */}}
{{- define "binlogd.table" -}}
{{- $path := .path }}
{{- range $key, $value := .table }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "binlogd.value" $value }}
{{- end }}
{{- end }}
{{- range $key, $value := .table }}
{{- if kindIs "map" $value }}
{{- $inner := ternary $key (printf "%s.%s" $path $key) (eq $path "") }}

[{{ $inner }}]
{{- include "binlogd.table" (dict "path" $inner "table" $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "binlogd.value" -}}
{{- if kindIs "map" . -}}
{ {{- range $i, $key := keys . | sortAlpha }}{{ if $i }}, {{ end }}{{ $key }} = {{ include "binlogd.value" (index $ $key) }}{{ end -}} }
{{- else if kindIs "slice" . -}}
[{{ range $i, $each := . }}{{ if $i }}, {{ end }}{{ include "binlogd.value" $each }}{{ end }}]
{{- else -}}
{{ toRawJson . }}
{{- end -}}
{{- end }}
